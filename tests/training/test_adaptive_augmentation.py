"""An augmentation that adapts (CTAugment) in a run: what it learns in a step, and that a checkpoint keeps it."""

from __future__ import annotations

import copy

import pytest
import torch

from mixmatch import data, networks
from mixmatch.augment import CTAugment
from mixmatch.data.split import make_split
from mixmatch.settings import resolve
from mixmatch.training.trainer import Trainer

B = 4
RATES = "augmentation/rates"


def trainer_for(method: str = "fixmatch") -> Trainer:
    given = {"method": method, "labels": 20, "batch_size": B, "steps": 6, "network": "wrn-10-1", "strong": "ctaugment"}
    settings, source = resolve("digits", given), data.load("digits")
    torch.manual_seed(0)
    network = networks.build(settings.network, 10, source.input_shape)
    return Trainer(settings, source, make_split(source, 20, 1), network, torch.device("cpu"))


def test_a_step_learns_from_how_the_averaged_model_sees_augmented_labeled_images() -> None:
    trainer = trainer_for()
    strong = trainer.objective.strong
    assert isinstance(strong, CTAugment)
    before = trainer.state[RATES].clone()
    network = copy.deepcopy(trainer.model.network).eval()  # its average, and the statistics before the first step
    draws = {name: torch.from_numpy(draw) for name, draw in trainer.batches.draw(0).items()}
    probe = {name.removeprefix("probe/"): draw for name, draw in draws.items() if name.startswith("probe/")}
    images = strong.probe(torch.from_numpy(trainer.source.train.inputs[draws["labeled"].numpy()]), probe)[0]
    labels = trainer.source.train.labels[draws["labeled"].numpy()]
    trainer.advance(1)
    with torch.no_grad():
        probs = network(images).softmax(1).double()
    apart = sum((probs[:, c] - (torch.from_numpy(labels) == c).double()).abs() for c in range(10))
    proximity = 1 - apart / 2

    expected = before.double()
    for image in range(B):
        for slot in range(2):
            operation = int(probe["operation"][0, image, slot])
            for parameter, level in enumerate(probe["level"][0, image, slot].tolist()):
                bins = int((before[operation, parameter] >= 0).sum())
                if bins:
                    place = int(level * bins * 0.999)
                    rate = expected[operation, parameter, place]
                    expected[operation, parameter, place] = 0.99 * rate + 0.01 * proximity[image]
    assert (trainer.state[RATES] != before).any()
    torch.testing.assert_close(trainer.state[RATES].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["fixmatch", "remixmatch"])
def test_a_checkpoint_keeps_what_was_learned(method: str) -> None:
    whole, first, second = (trainer_for(method) for _ in range(3))
    whole.advance(6)
    first.advance(3)
    second.restore(first.checkpoint())
    second.advance(6)
    assert torch.equal(second.state[RATES], whole.state[RATES])
    for name, value in whole.model.network.state_dict().items():
        assert torch.equal(second.model.network.state_dict()[name], value), name


def test_methods_without_strong_views_have_no_such_state() -> None:
    assert trainer_for("mixmatch").state == {}
