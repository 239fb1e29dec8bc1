"""The constants of each op, as frozen dataclasses: hashable, comparable, printable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeStyle = Literal["neox", "interleaved"]
Activation = Literal["silu", "gelu"]
SAMPLING_COLUMNS = 5
"""Numbers a row of `sample` takes: temperature, top_k, top_p, min_p, a uniform in [0, 1)."""
PENALTY_COLUMNS = 3
"""Numbers a row of `penalize` takes: repeat, frequency and presence penalty."""
PENALTY_WINDOW = 255
"""Recent tokens a row of `penalize` takes, besides the newest."""


@dataclass(frozen=True, slots=True)
class Attrs:
    """Constants of an op that has none; base of all others."""


@dataclass(frozen=True, slots=True)
class EmbedAttrs(Attrs):
    """`scale` multiplies the embedding rows (gemma: sqrt of the width)."""

    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class MatMulAttrs(Attrs):
    """Constants of a matrix product.

    Attributes:
        single_rows: the leading rows that belong to the row-at-a-time path (decode rows; all rows
            of the output head). The other rows belong to the many-rows path (prefill). Kernels
            may differ between the two paths, but never within one, so a row's result does not
            depend on its batch mates.
        bias: the last weight is a bias vector [n_out], f32.
        residual: the last source, shaped like the output, is added to it.
    """

    single_rows: int
    bias: bool = False
    residual: bool = False


@dataclass(frozen=True, slots=True)
class NormAttrs(Attrs):
    """`y = x / sqrt(mean(x^2) + eps) * weight`, over groups of `width` features.

    Attributes:
        eps, width: as above.
        residual: the last source, shaped like the output, is added to it.
    """

    eps: float
    width: int
    residual: bool = False


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """A rotary embedding with every scaling variant resolved into its frequencies.

    Attributes:
        style: `neox` rotates the pair (j, j + d/2), `interleaved` the pair (2j, 2j + 1),
            d = 2 * len(inv_freq).
        inv_freq: radians a position, for each pair. Features past d stay as they are.
        magnitude: factor on cosine and sine (YaRN's attention factor).
    """

    style: RopeStyle
    inv_freq: tuple[float, ...]
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class RopeAttrs(Attrs):
    """Rotation of `n_heads` heads of `head_dim` features by their row's position."""

    n_heads: int
    head_dim: int
    rope: RopeSpec


@dataclass(frozen=True, slots=True)
class KVStoreAttrs(Attrs):
    """`state` receives the rows of k and v at their row's cell; a negative cell stores nowhere."""

    state: str


@dataclass(frozen=True, slots=True)
class AttentionAttrs(Attrs):
    """Causal grouped-query attention over a KV state.

    Attributes:
        state: name of the KV state.
        n_heads, n_kv_heads, head_dim: as usual; `n_heads` is a multiple of `n_kv_heads`.
        scale: factor on q.k.
        window: a row at position p sees the positions above p - window; 0 sees all up to p.
        softcap: scores become `cap * tanh(score / cap)`; 0 leaves them.
        single_rows: the leading rows, as in `MatMulAttrs`. Several may belong to one sequence
            (their keys are all stored before any is read); the rows after them come in runs of
            one sequence with consecutive positions.
    """

    state: str
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    single_rows: int
    window: int = 0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class GatedAttrs(Attrs):
    """`y = act(gate) * up`; gelu is the tanh approximation."""

    act: Activation


@dataclass(frozen=True, slots=True)
class ScaleAttrs(Attrs):
    """`y = factor * x`."""

    factor: float


@dataclass(frozen=True, slots=True)
class SoftcapAttrs(Attrs):
    """`y = cap * tanh(x / cap)`."""

    cap: float


@dataclass(frozen=True, slots=True)
class FusedFFNAttrs(Attrs):
    """Gate and up projections of one input and their gated product (weights: gate, up)."""

    act: Activation
    single_rows: int


@dataclass(frozen=True, slots=True)
class FusedQKVAttrs(Attrs):
    """Q, K and V projections, bias, per-head norm, RoPE and KV store in one node.

    Weights, in order: q, k, v, then the three biases where `bias`, then the q and k norm vectors
    where `norm_eps` is not None. The output is the rotated q; k and v go to `state`.
    """

    state: str
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope: RopeSpec
    single_rows: int
    bias: bool = False
    norm_eps: float | None = None
