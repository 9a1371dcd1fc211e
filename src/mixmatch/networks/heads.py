"""Further heads on a network's features: linear layers beside its classifier, for a method that needs more outputs.

A network offers its features by three names: `features(x)` gives what enters its last linear layer, (N, F);
`classify(features)` gives the logits; `feature_size` is F. Then `forward(x)` is `classify(features(x))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mixmatch.errors import MixMatchError, unknown
from mixmatch.networks.wide_resnet import linear


def offers_features(network: nn.Module) -> bool:
    """Whether a network offers its features. The name alone does not tell: in some libraries `features` is a layer."""
    return isinstance(getattr(network, "feature_size", None), int)


class WithHeads(nn.Module):
    """A network and further heads on its features, each one linear layer.

    Parameters and buffers of the network keep their names here, in `state_dict` and in `named_parameters`; those of a
    head are `heads.NAME.weight` and `heads.NAME.bias`. The classifier alone is `network`, which shares its tensors with
    this module: `model.network.state_dict()` is what a network without heads loads.

    Args:
        network: one that offers its features.
        heads: how many outputs each head has, by name.

    >>> from mixmatch.networks import build
    >>> model = WithHeads(build("mlp", num_classes=10), {"rotation": 4})
    >>> model.heads["rotation"]
    Linear(in_features=256, out_features=4, bias=True)
    """

    network: Any
    heads: nn.ModuleDict

    def __init__(self, network: nn.Module, heads: Mapping[str, int]) -> None:
        super().__init__()
        kind = type(network).__name__
        if not offers_features(network):
            raise MixMatchError(
                f"network {kind} offers no features for the heads {', '.join(heads)}: "
                "give it features(x), classify(features) and feature_size, or choose another with network="
            )
        if hasattr(network, "heads"):
            raise MixMatchError(f"network {kind} has a part named 'heads', the name of further heads: rename it")
        # Names would begin with "network." if the network were registered as a part. Its own parts are, instead, and
        # what it holds itself is held by both, so that moving, replacing or loading a tensor here reaches the network.
        self.__dict__["network"] = network
        self._parameters = network._parameters
        self._buffers = network._buffers
        self._non_persistent_buffers_set = network._non_persistent_buffers_set
        self._modules = dict(network._modules)
        self.heads = nn.ModuleDict({name: linear(self.network.feature_size, size) for name, size in heads.items()})

    def forward(self, x: Tensor, head: str | None = None, with_heads: Sequence[str] = ()) -> Tensor:
        """Logits of the classifier, (N, classes), or of a head, (N, its outputs). The outputs of `with_heads` follow
        the classifier's, (N, classes + ...)."""
        for name in [*([] if head is None else [head]), *with_heads]:
            if name not in self.heads:
                raise unknown("head", name, self.heads)
        if head is None and not with_heads:
            logits: Tensor = self.network(x)
            return logits
        features = self.network.features(x)
        parts = [self.heads[name](features) for name in ([head] if head is not None else with_heads)]
        return parts[0] if head is not None else torch.cat([self.network.classify(features), *parts], dim=1)

    def train(self, mode: bool = True) -> WithHeads:
        """Switch to training, or to prediction, the network too: it is no registered part."""
        self.network.training = mode
        return super().train(mode)
