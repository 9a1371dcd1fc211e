"""What `train` learns from by default for a user's images: what is likely best here in ten minutes.

On a GPU a network learns from the pixels. A CPU is too slow for that, so a small network learns from frozen features:
those of a pretrained network if its weights are on this machine already, else the basic ones, which need none.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, NamedTuple

from mixmatch.networks.frozen import BASIC
from mixmatch.training.device import pick_device

SUGGESTED = "timm:tf_efficientnet_lite0.in1k"
"""Small, fast on a CPU, trained on ImageNet."""


class Choice(NamedTuple):
    """The features, and why, in words."""

    features: str
    why: str


def choose_features(device: str) -> Choice:
    """What to learn from, on this device."""
    if pick_device(device).type != "cpu":
        return Choice("none", "")
    longer = "learning from the pixels takes hours here (features=none), minutes on a GPU"
    if weights_are_here(SUGGESTED):
        return Choice(SUGGESTED, f"learning from features of {SUGGESTED}, a pretrained network; {longer}")
    missing = "" if importlib.util.find_spec("timm") else ", after pip install 'mixmatch[timm]'"
    return Choice(
        BASIC,
        f"learning from basic features, which need no pretrained weights; features={SUGGESTED} is likely to be much "
        f"better and downloads 19 MB once{missing}; {longer}",
    )


def weights_are_here(name: str) -> bool:
    """Whether timm has downloaded the weights of a model before. Nothing is downloaded to find out."""
    try:
        timm: Any = importlib.import_module("timm")
        hub: Any = importlib.import_module("huggingface_hub")
        place = timm.get_pretrained_cfg(name.removeprefix("timm:")).hf_hub_id
        found = hub.try_to_load_from_cache(place, "model.safetensors")
    except Exception:  # none, or a damaged install, which is not worth a run: basic features need none of it
        return False
    return isinstance(found, str)
