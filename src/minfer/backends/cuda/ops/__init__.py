"""The ops of the CUDA backend: one module an op, host side and `.cu` twin of the same name."""
