"""How near bf16 comes to fp32 on this GPU: our kernels beside PyTorch's autocast, for WRN-28-2.

    python benchmarks/kernel_accuracy.py      # needs a GPU; seconds

Three batches of 64 random images, each normalized by itself: the largest difference of a logit from fp32's, and the
cosine of each parameter's gradient with fp32's, the least and the mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixmatch import networks
from mixmatch.networks import cuda
from mixmatch.networks.precision import full_fp32

BATCHES, SIZE = 3, 64


def cosine(a: Tensor | None, b: Tensor | None) -> float:
    assert a is not None
    assert b is not None
    return torch.nn.functional.cosine_similarity(a.flatten().double(), b.flatten().double(), dim=0).item()


def main() -> None:
    torch.manual_seed(0)
    names = ("fp32", "kernels", "autocast")
    built = [networks.build("wrn-28-2", 10, (3, 32, 32)) for _ in names]
    for network in built:
        network.load_state_dict(built[0].state_dict())
        network.cuda().to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    exact, ours, theirs = built
    x = torch.randn(BATCHES * SIZE, 3, 32, 32, device="cuda")
    shape = cuda.shape_of(ours, (3, 32, 32))
    assert shape is not None
    with full_fp32():
        logits = [torch.cat([exact(batch) for batch in x.split(SIZE)])]
    tensors = {**dict(ours.named_parameters()), **dict(ours.named_buffers())}
    logits.append(torch.cat(cuda.forward(ours, shape, tensors, [], list(x.split(SIZE)), update=False)[1]))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits.append(torch.cat([theirs(batch) for batch in x.split(SIZE)]).float())
    direction = torch.randn_like(logits[0])
    for output in logits:
        with full_fp32():
            (output * direction).sum().backward()
    learned = [name for name, parameter in ours.named_parameters() if parameter.grad is not None]
    for kind, network, output in list(zip(names, built, logits, strict=True))[1:]:
        cosines = [cosine(network.get_parameter(name).grad, exact.get_parameter(name).grad) for name in learned]
        difference = (output - logits[0]).abs().max().item()
        print(f"{kind:9} logits {difference:.4f}  gradients {min(cosines):.4f} {sum(cosines) / len(cosines):.4f}")


if __name__ == "__main__":
    main()
