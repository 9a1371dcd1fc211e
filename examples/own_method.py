# %% [markdown]
# # A method of your own
#
# Entropy minimization (Grandvalet and Bengio, 2005): predictions for unlabeled images should be confident. It takes
# one line of loss; data, averaged weights, exact resume, compiled steps and the report come with it.

# %% tags=["parameters"]
OUT = "runs/examples/method"
STEPS = 500
SEEDS = [1, 2, 3]
LABELS = 20

# %%
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import mixmatch
from mixmatch import functional
from mixmatch.experiments.compare import compare
from mixmatch.methods.base import Method, Step, forward_each, setting


@dataclass(frozen=True)
class EntropyMinimization(Method):
    """Labeled cross-entropy, and the entropy of predictions for unlabeled images."""

    weight: float = setting(0.3, "Weight of the entropy.", least=0)

    views = ("weak",)

    def loss(self, model, batch, draws, progress, state):
        logits_x, logits_u = forward_each(model, [batch.x, batch.u[0]], stats="update")
        loss_x = functional.labeled_loss(logits_x, batch.y)
        log_q = logits_u.log_softmax(dim=-1)
        entropy = -(log_q.exp() * log_q).sum(dim=-1).mean()
        return Step(loss_x + self.weight * entropy, {"loss_x": loss_x, "entropy": entropy})


# %% [markdown]
# ## Train it like any other

# %%
record = mixmatch.train(
    "digits", method=EntropyMinimization(weight=0.5), labels=LABELS, steps=STEPS, out=f"{OUT}/one", resume=True
)
record

# %% [markdown]
# ## Compare it with others
#
# The same labels and steps for each, over a few seeds.

# %%
methods = ["supervised", EntropyMinimization(), "mixmatch"]
records = compare("digits", methods, SEEDS, Path(OUT) / "compare", labels=LABELS, steps=STEPS)
for name in dict.fromkeys(each["method"] for each in records):
    errors = [each["error"] for each in records if each["method"] == name]
    print(f"{name:28} {mean(errors):5.1f} % test error, seeds {', '.join(f'{error:.1f}' for error in errors)}")
