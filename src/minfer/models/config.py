"""What a decoder-only transformer is, as numbers: read from GGUF metadata, one reader for all.

An architecture's file says what is its own with arguments and `dataclasses.replace`; nothing here
depends on which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minfer.errors import FormatError, UnsupportedError
from minfer.gguf import GGUFFile, Metadata
from minfer.graph import Activation, RopeSpec, RopeStyle, WeightSpec
from minfer.models.rope import rope_spec


@dataclass(frozen=True)
class LayerConfig:
    """What may differ from block to block.

    Attributes:
        rope: rotation of q and k.
        window: positions a row sees, its own included; 0 for all.
    """

    rope: RopeSpec
    window: int = 0


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder-only transformer with grouped-query attention and a gated FFN.

    Attributes:
        arch: `general.architecture`.
        width: features of the residual stream.
        ffn_width: features between gate/up and down.
        n_ctx_train: positions the model was trained for.
        layers: one entry a block.
        attn_scale: factor on q.k.
        embed_scale: factor on the embedding rows.
        act: activation of the gate.
        qkv_bias, qk_norm, post_norms: whether the blocks have them.
        attn_softcap, logit_softcap: caps, 0 for none.
        head: name of the output matrix (the embedding table where they are tied).
        weights: type and shape of every tensor of the file.
    """

    arch: str
    width: int
    ffn_width: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    layers: tuple[LayerConfig, ...]
    attn_scale: float
    act: Activation
    qkv_bias: bool
    qk_norm: bool
    post_norms: bool
    embed_scale: float
    attn_softcap: float
    logit_softcap: float
    head: str
    weights: Mapping[str, WeightSpec]


def read_config(
    file: GGUFFile,
    *,
    rope_style: RopeStyle,
    act: Activation = "silu",
    qkv_bias: bool = False,
    qk_norm: bool = False,
    post_norms: bool = False,
) -> DecoderConfig:
    """Read the keys all decoders share; the arguments are what an architecture adds.

    Every block gets the rotation of the metadata and sees everything.

    Raises:
        FormatError: for a missing, mistyped or inconsistent key, naming it.
        UnsupportedError: for a variant that minfer does not compute.
    """
    meta: Metadata = file.metadata
    arch = meta.get_str("general.architecture")
    n_layers = _positive(meta, f"{arch}.block_count")
    if n_layers > len(file.tensors):
        raise FormatError(
            f"{n_layers} blocks, but the file has only {len(file.tensors)} tensors",
            where=f"{arch}.block_count",
        )
    width = _positive(meta, f"{arch}.embedding_length")
    n_heads = _uniform(meta, f"{arch}.attention.head_count", n_layers)
    n_kv_heads = _uniform(meta, f"{arch}.attention.head_count_kv", n_layers, n_heads)
    if n_heads % n_kv_heads:
        raise FormatError(
            f"{n_heads} heads are no multiple of {n_kv_heads} KV heads",
            where=f"{arch}.attention.head_count_kv",
        )
    head_dim = _positive(meta, f"{arch}.attention.key_length", width // n_heads)
    value_dim = _positive(meta, f"{arch}.attention.value_length", head_dim)
    if head_dim != value_dim:
        raise UnsupportedError(
            f"keys have {head_dim} features, values {value_dim}; minfer needs them equal",
            where=f"{arch}.attention.value_length",
        )
    weights = {name: WeightSpec(t.dtype, t.shape) for name, t in file.tensors.items()}
    embedding = weights.get("token_embd.weight")
    if embedding is None:
        raise FormatError("the embedding table is missing", where="token_embd.weight")
    return DecoderConfig(
        arch=arch,
        width=width,
        ffn_width=_uniform(meta, f"{arch}.feed_forward_length", n_layers),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_vocab=embedding.shape[-1],
        n_ctx_train=_positive(meta, f"{arch}.context_length", 2048),
        eps=meta.get_float(f"{arch}.attention.layer_norm_rms_epsilon"),
        layers=(LayerConfig(rope_spec(file, rope_style, head_dim)),) * n_layers,
        attn_scale=head_dim**-0.5,
        act=act,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        post_norms=post_norms,
        embed_scale=1.0,
        attn_softcap=meta.get_float(f"{arch}.attn_logit_softcapping", 0.0),
        logit_softcap=meta.get_float(f"{arch}.final_logit_softcapping", 0.0),
        head="output.weight" if "output.weight" in weights else "token_embd.weight",
        weights=weights,
    )


def _positive(meta: Metadata, key: str, default: int | None = None) -> int:
    value = meta.get_int(key) if default is None else meta.get_int(key, default)
    if not 0 < value < 1 << 31:
        raise FormatError(f"{value} is not between 1 and 2^31", where=key)
    return value


def _uniform(meta: Metadata, key: str, n_layers: int, default: int | None = None) -> int:
    """A count that may be stored as one number or as one a layer, which must then be equal."""
    if key in meta and isinstance(meta[key], int):
        return _positive(meta, key)
    if default is not None and key not in meta:
        return default
    values = set(meta.get_ints(key).tolist())
    if len(values) != 1 or min(values) < 1:
        raise UnsupportedError(
            f"values {sorted(values)} differ between layers; minfer needs one for all",
            where=key,
        )
    return int(values.pop())
