"""Llama 2, 3, 3.1, Mistral, SmolLM2: interleaved RoPE, optional `rope_freqs` and scaling."""

from minfer.gguf import GGUFFile
from minfer.models.config import DecoderConfig, read_config


def config(file: GGUFFile) -> DecoderConfig:
    """Read a `llama` file."""
    return read_config(file, rope_style="interleaved")
