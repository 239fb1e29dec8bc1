"""The tensors a decoder has, by name and shape, and the check that a file holds just these.

A tensor missing or misshapen is a damaged file; one too many is a part of the model that nobody
would compute. Both are found here, before a graph is built. Types are the backends' affair.
"""

from __future__ import annotations

from minfer.errors import FormatError, UnsupportedError
from minfer.models.config import DecoderConfig

Shapes = dict[str, tuple[int, ...]]

COMPUTED = ("blk.", "output", "token_embd", "rope_")
"""Beginnings of names that belong to the decoder; others (a vision tower's) are left alone."""
HARMLESS = frozenset({"rope_freqs.weight"})
"""Read with the configuration, not by the graph."""


def check_tensors(config: DecoderConfig) -> None:
    """Check the file's tensors against the configuration.

    Raises:
        FormatError: for one that is missing or has another shape.
        UnsupportedError: for one the architecture has no use for.
    """
    expected = expected_tensors(config)
    for name, shape in expected.items():
        found = config.weights.get(name)
        if found is None:
            raise FormatError(
                f"the tensor is missing; {config.arch} with {len(config.layers)} blocks needs it",
                where=name,
            )
        if found.shape != shape:
            raise FormatError(
                f"shape {list(found.shape)} does not fit the metadata; expected {list(shape)}",
                where=name,
            )
    for name in config.weights:
        if name.startswith(COMPUTED) and name not in expected and name not in HARMLESS:
            raise UnsupportedError(
                f"the {config.arch} that minfer knows has no such tensor, and without it the "
                "model would compute something else",
                where=name,
            )


def expected_tensors(config: DecoderConfig) -> Shapes:
    """Shape of every tensor the graph reads, by name."""
    shapes: Shapes = {"token_embd.weight": (config.width, config.n_vocab)}
    for layer in range(len(config.layers)):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in _block(config).items()}
    shapes["output_norm.weight"] = (config.width,)
    shapes[config.head] = (config.width, config.n_vocab)
    return shapes


def _block(c: DecoderConfig) -> Shapes:
    q, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    shapes: Shapes = {
        "attn_norm.weight": (c.width,),
        "attn_q.weight": (c.width, q),
        "attn_k.weight": (c.width, kv),
        "attn_v.weight": (c.width, kv),
        "attn_output.weight": (q, c.width),
        "ffn_norm.weight": (c.width,),
        "ffn_gate.weight": (c.width, c.ffn_width),
        "ffn_up.weight": (c.width, c.ffn_width),
        "ffn_down.weight": (c.ffn_width, c.width),
    }
    if c.qkv_bias:
        shapes |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if c.qk_norm:
        shapes |= {"attn_q_norm.weight": (c.head_dim,), "attn_k_norm.weight": (c.head_dim,)}
    if c.post_norms:
        shapes |= {"post_attention_norm.weight": (c.width,), "post_ffw_norm.weight": (c.width,)}
    return shapes
