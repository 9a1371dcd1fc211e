"""The Wide ResNet's kernels for CUDA."""
