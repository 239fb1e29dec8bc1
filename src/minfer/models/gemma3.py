"""Gemma 3 (text): sliding-window layers with a rotation of their own, norms after each part.

Of every six layers the first five see a window and rotate with base 10,000 unscaled; the sixth
sees everything and takes the file's base and scaling. Norm weights in GGUF include the +1.
"""

from dataclasses import replace

import numpy as np

from minfer.gguf import GGUFFile
from minfer.models.config import DecoderConfig, LayerConfig, read_config
from minfer.models.rope import plain_rope

GLOBAL_EVERY = 6
LAYERS_OF_27B = 62


def config(file: GGUFFile) -> DecoderConfig:
    """Read a `gemma3` file."""
    base = read_config(file, rope_style="neox", act="gelu", qk_norm=True, post_norms=True)
    n_layers = len(base.layers)
    window = file.metadata.get_int("gemma3.attention.sliding_window", 0)
    rope = plain_rope(file, "neox", "gemma3.rope.freq_base_swa", base.head_dim)
    local = LayerConfig(rope, window)
    # The 27B model scales scores by width per head; the others by the head size.
    scale_by = base.width / base.n_heads if n_layers == LAYERS_OF_27B else base.head_dim
    return replace(
        base,
        # HF rounds this factor to the model's bfloat16 only when it runs in bfloat16
        embed_scale=float(np.sqrt(np.float32(base.width))),
        attn_scale=scale_by**-0.5,
        layers=tuple(
            everything if (i + 1) % GLOBAL_EVERY == 0 else local
            for i, everything in enumerate(base.layers)
        ),
    )
