"""Qwen2 and Qwen2.5 (and distillations on them): half-split RoPE, biases on q, k and v."""

from minfer.gguf import GGUFFile
from minfer.models.config import DecoderConfig, read_config


def config(file: GGUFFile) -> DecoderConfig:
    """Read a `qwen2` file."""
    return read_config(file, rope_style="neox", qkv_bias=True)
