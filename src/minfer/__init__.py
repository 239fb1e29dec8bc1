"""minfer: run GGUF language models on CPUs and NVIDIA GPUs, with kernels of its own."""

__version__ = "0.1.0"
