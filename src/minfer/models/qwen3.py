"""Qwen3 dense: half-split RoPE, a norm on each head of q and k, head size of its own."""

from minfer.gguf import GGUFFile
from minfer.models.config import DecoderConfig, read_config


def config(file: GGUFFile) -> DecoderConfig:
    """Read a `qwen3` file."""
    return read_config(file, rope_style="neox", qk_norm=True)
