"""Rotary frequencies from metadata: every scaling variant resolved into plain numbers.

Sources: RoPE, Su et al. (arXiv:2104.09864); linear position interpolation, Chen et al.
(arXiv:2306.15595); YaRN, Peng et al. (arXiv:2309.00071); per-pair factors (`rope_freqs.weight`)
as Llama 3.1 files carry them.
"""

from __future__ import annotations

import math

import numpy as np

from minfer.errors import FormatError, UnsupportedError
from minfer.gguf import GGUFFile, Metadata, dequantize
from minfer.graph import RopeSpec, RopeStyle

DEFAULT_BASE = 10000.0
Frequencies = np.ndarray[tuple[int], np.dtype[np.float64]]


def rope_spec(file: GGUFFile, style: RopeStyle, head_dim: int) -> RopeSpec:
    """The rotation a file asks for.

    Raises:
        UnsupportedError: for a scaling kind other than none, linear and yarn.
    """
    meta = file.metadata
    arch = meta.get_str("general.architecture")
    n_dims = meta.get_int(f"{arch}.rope.dimension_count", head_dim)
    if n_dims % 2 or not 0 < n_dims <= head_dim:
        raise FormatError(
            f"{n_dims} rotated features; expected an even number up to {head_dim}",
            where=f"{arch}.rope.dimension_count",
        )
    base = meta.get_float(f"{arch}.rope.freq_base", DEFAULT_BASE)
    _check_base(base, f"{arch}.rope.freq_base")
    inv_freq, magnitude = _scaled(meta, arch, base, n_dims)
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        values = dequantize(factors.data, factors.dtype).astype(np.float64)
        if values.size != n_dims // 2 or not np.all(values > 0):
            raise FormatError(
                f"{values.size} factors, expected {n_dims // 2} positive ones",
                where="rope_freqs.weight",
            )
        inv_freq = inv_freq / values
    return RopeSpec(style, tuple(inv_freq.tolist()), magnitude)


def plain_rope(file: GGUFFile, style: RopeStyle, key: str, n_dims: int) -> RopeSpec:
    """The unscaled rotation with the base that the metadata has at `key`."""
    base = file.metadata.get_float(key, DEFAULT_BASE)
    _check_base(base, key)
    return RopeSpec(style, tuple(_frequencies(base, n_dims).tolist()))


def _check_base(base: float, key: str) -> None:
    if not 1.0 < base < math.inf:
        raise FormatError(f"base {base} is not a number above 1", where=key)


def _frequencies(base: float, n_dims: int) -> Frequencies:
    return base ** (-np.arange(0, n_dims, 2, dtype=np.float64) / n_dims)


def _scaled(meta: Metadata, arch: str, base: float, n_dims: int) -> tuple[Frequencies, float]:
    """Frequencies and magnitude after the file's scaling."""
    prefix = f"{arch}.rope.scaling"
    factor = meta.get_float(f"{prefix}.factor", meta.get_float(f"{arch}.rope.scale_linear", 1.0))
    kind = meta.get_str(f"{prefix}.type", "linear" if factor != 1.0 else "none")
    plain = _frequencies(base, n_dims)
    if kind == "none":
        return plain, 1.0
    if not 0.0 < factor < math.inf:
        raise FormatError(f"factor {factor} is not a positive number", where=f"{prefix}.factor")
    if kind == "linear":
        return plain / factor, 1.0
    if kind != "yarn":
        raise UnsupportedError(
            f"rope scaling {kind!r}; supported: none, linear, yarn", where=f"{prefix}.type"
        )
    attention = meta.get_float(f"{prefix}.attn_factor", 1.0) * (1.0 + 0.1 * math.log(factor))
    return _yarn(meta, arch, base, plain, factor), attention


def _yarn(meta: Metadata, arch: str, base: float, plain: Frequencies, factor: float) -> Frequencies:
    """Fast pairs keep their frequency, slow ones are interpolated, a ramp lies between."""
    prefix = f"{arch}.rope.scaling"
    key = f"{prefix}.original_context_length"
    n_original = meta.get_int(key if key in meta else f"{arch}.context_length")
    fast = meta.get_float(f"{prefix}.yarn_beta_fast", 32.0)
    slow = meta.get_float(f"{prefix}.yarn_beta_slow", 1.0)
    if n_original < 1 or not 0.0 < slow <= fast:
        raise FormatError(
            f"yarn from {n_original} positions with {slow} to {fast} turns cannot be computed",
            where=prefix,
        )
    n_dims = 2 * plain.size

    def dimension_turning(turns: float) -> float:
        """The pair that makes `turns` full turns over the original context."""
        return n_dims * math.log(n_original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(dimension_turning(fast)))
    high = min(n_dims - 1, math.ceil(dimension_turning(slow)))
    ramp = np.clip((np.arange(plain.size) - low) / max(0.001, high - low), 0.0, 1.0)
    kept = (1.0 - ramp) * meta.get_float(f"{prefix}.yarn_ext_factor", 1.0)
    return plain / factor * (1.0 - kept) + plain * kept
