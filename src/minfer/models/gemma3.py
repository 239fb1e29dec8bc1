"""Gemma 3 (text): sliding-window layers with a rotation of their own, norms after each part.

Of every six layers the first five see a window and rotate with base 10,000 unscaled; the sixth
sees everything and takes the file's base and scaling. Norm weights in GGUF include the +1.
"""

import numpy as np

from minfer.gguf import GGUFFile
from minfer.models.config import DecoderConfig, LayerConfig, read_config
from minfer.models.rope import plain_rope, rope_spec

GLOBAL_EVERY = 6
LAYERS_OF_27B = 62


def config(file: GGUFFile) -> DecoderConfig:
    """Read a `gemma3` file."""
    meta = file.metadata
    n_layers = meta.get_int("gemma3.block_count")
    width = meta.get_int("gemma3.embedding_length")
    n_heads = meta.get_int("gemma3.attention.head_count")
    head_dim = meta.get_int("gemma3.attention.key_length", 256)
    window = meta.get_int("gemma3.attention.sliding_window", 0)
    base = meta.get_float("gemma3.rope.freq_base_swa", 10000.0)
    everything = LayerConfig(rope_spec(file, "neox", head_dim))
    windowed = LayerConfig(plain_rope("neox", base, head_dim), window)
    # The 27B model scales scores by width per head; the others by the head size.
    scale = (width / n_heads) ** -0.5 if n_layers == LAYERS_OF_27B else head_dim**-0.5
    return read_config(
        file,
        rope_style="neox",
        act="gelu",
        qk_norm=True,
        post_norms=True,
        # HF rounds this factor to the model's bfloat16 only when it runs in bfloat16
        embed_scale=float(np.sqrt(np.float32(width))),
        attn_scale=scale,
        layers=tuple(
            everything if (i + 1) % GLOBAL_EVERY == 0 else windowed for i in range(n_layers)
        ),
    )
