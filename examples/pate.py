# %% [markdown]
# # Learning from private images: PATE
#
# Teachers learn from disjoint shards of private images and vote on public ones. Noise is added to the votes, and an
# image is answered only where enough teachers agree. A student learns from those few answers and from the other public
# images, unlabeled, by MixMatch. Only the answers and the student may be published; epsilon says how much they reveal.

# %% tags=["parameters"]
OUT = "runs/examples/pate"
TEACHERS = 50
TEACHER_STEPS = 100
QUERIES = 80
STUDENT_STEPS = 1000
NOISE_SEED = None  # a number makes the answers repeatable, and worthless as privacy

# %%
from pathlib import Path

from mixmatch.privacy.mechanisms import ConfidentGNMax
from mixmatch.privacy.pipeline import run_all
from mixmatch.privacy.runs import RunOptions
from mixmatch.privacy.teachers import Plan
from mixmatch.training.progress import Quiet

# %% [markdown]
# ## Teachers, answers, students
#
# The training images of `digits` are private, a random half of its test images is the public pool. The threshold and
# the noise follow the number of teachers. Answers are kept in a ledger, so another run asks no query twice.

# %%
summary = run_all(
    Plan("digits", TEACHERS, settings={"steps": TEACHER_STEPS, "batch_size": 16}),
    Path(OUT),
    ConfidentGNMax(threshold=0.6 * TEACHERS, sigma1=0.4 * TEACHERS, sigma2=0.15 * TEACHERS),
    queries=QUERIES,
    delta=1e-4,
    noise_seed=NOISE_SEED,
    steps=STUDENT_STEPS,
    options=RunOptions(resume=True, reporter=Quiet),
    say=print,
)

# %% [markdown]
# ## The result
#
# With few teachers one vote is hidden badly, so epsilon is large: this shows the parts, not privacy to rely on. The
# paper has 250 teachers on SVHN.

# %%
print(f"{summary['labels']} of {summary['queries']} images answered, {summary['labels_right']:.0f} % of them right")
for method, student in summary["students"].items():
    print(f"student by {method}: {student['accuracy']:.1f} % of {summary['test']} other images right")
privacy = summary["privacy"]
print(f"epsilon {privacy['epsilon_data_independent_all_charged']:.2f} at delta {privacy['delta']:g}, safe to publish")
print("what each answer cost:", Path(OUT) / "privacy.png")
