"""A program that tries a few steps of training and says how many fit into some minutes on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mixmatch.data import Reading, read_user_data
from mixmatch.label.program import answering
from mixmatch.training.device import pick_device
from mixmatch.training.timing import measure


def budget(asked: dict[str, Any]) -> dict[str, Any]:
    """Steps and image size with which training ends in time; None where the defaults do."""
    user = read_user_data(Path(asked["root"]), Reading(labels_file=asked["labels"]))
    cost = measure(user, pick_device("auto"), method=asked["method"])
    first = replace(cost, baseline=None).first_run(60.0 * asked["minutes"])
    return {"steps": first.steps or cost.usual.settings.steps, "image_size": first.image_size, "seconds": first.seconds}


if __name__ == "__main__":
    answering(budget)
