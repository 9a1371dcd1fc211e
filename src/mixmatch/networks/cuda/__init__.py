"""The wide residual network on CUDA, in Triton kernels. This is all that the rest of the package needs of it:

- `shape_of(network, image)` is what the kernels must know of a network, or None if they are not made for it;
- `available()` says whether there is a GPU for them, `fits(shape, sizes)` whether batches divide into tiles, and
  `problem(network, shape, images, device)` tries them;
- `forward(...)` computes logits, with gradients.

Inside, from the top down: `wide_resnet` (the passes, as operators of PyTorch), `launch` (a kernel launch per layer),
`kernels` and `line_kernels` (the Triton code, imported when the first pass runs); below them `shape`, `tiles`, `tma`,
`lines` and `streams`.
"""

from mixmatch.networks.cuda.shape import Shape, fits, shape_of
from mixmatch.networks.cuda.wide_resnet import available, forward, problem

__all__ = ["Shape", "available", "fits", "forward", "problem", "shape_of"]
