"""Each op in plain NumPy, one function an op: what the op means, in numbers. Slow and obvious.

Activations are float32 arrays `[rows, features]`; reductions run in float64. Nothing here knows
arenas, plans or padding: a function gets its arrays and answers its output.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minfer.graph import AttentionAttrs, RopeSpec

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def embed(ids: I32, table: F32, scale: float) -> F32:
    """Rows of `table` [vocab, width] at `ids` [rows], times `scale`."""
    return np.asarray(table[ids] * np.float32(scale), np.float32)


def matmul(x: F32, weight: F32, bias: F32 | None = None, residual: F32 | None = None) -> F32:
    """`x @ weight.T + bias + residual`; weight [n_out, n_in].

    Each row is a product of its own: those of a whole matrix depend on how many rows it has.
    """
    y = np.matmul(weight, x[:, :, None])[:, :, 0]
    if bias is not None:
        y = y + bias
    if residual is not None:
        y = y + residual
    return np.asarray(y, np.float32)


def rms_norm(x: F32, weight: F32, eps: float, residual: F32 | None = None) -> F32:
    """`x / sqrt(mean(x^2) + eps) * weight + residual` over groups as wide as `weight`."""
    groups = x.reshape(x.shape[0], -1, weight.size).astype(np.float64)
    norm = groups / np.sqrt((groups**2).mean(axis=-1, keepdims=True) + eps)
    y = np.asarray((norm * weight).reshape(x.shape), np.float32)
    return y if residual is None else y + residual


def rope(x: F32, positions: I32, spec: RopeSpec, head_dim: int) -> F32:
    """Rotate pairs of each head by `position * inv_freq`; features past the pairs stay.

    Source: Su et al., RoFormer (arXiv:2104.09864); `neox` pairs halves, `interleaved` neighbours.
    """
    heads = x.reshape(x.shape[0], -1, head_dim).copy()
    angle = positions.astype(np.float64)[:, None] * np.asarray(spec.inv_freq, np.float64)
    cos = (np.cos(angle) * spec.magnitude)[:, None, :].astype(np.float32)
    sin = (np.sin(angle) * spec.magnitude)[:, None, :].astype(np.float32)
    half = len(spec.inv_freq)
    if spec.style == "neox":
        first, second = slice(0, half), slice(half, 2 * half)
    else:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    a, b = heads[..., first].copy(), heads[..., second].copy()
    heads[..., first] = a * cos - b * sin
    heads[..., second] = a * sin + b * cos
    return heads.reshape(x.shape)


def attention(q: F32, k: F32, v: F32, position: int, attrs: AttentionAttrs) -> F32:
    """One row: q [n_heads * head_dim] over k, v [position + 1, n_kv_heads * head_dim]."""
    group = attrs.n_heads // attrs.n_kv_heads
    first = max(0, position - attrs.window + 1) if attrs.window else 0
    keys = k[first:].reshape(-1, attrs.n_kv_heads, attrs.head_dim).astype(np.float64)
    values = v[first:].reshape(-1, attrs.n_kv_heads, attrs.head_dim).astype(np.float64)
    heads = q.reshape(attrs.n_kv_heads, group, attrs.head_dim).astype(np.float64)
    scores = np.einsum("ngd,pnd->ngp", heads, keys) * attrs.scale
    if attrs.softcap:
        scores = attrs.softcap * np.tanh(scores / attrs.softcap)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    return np.asarray(np.einsum("ngp,pnd->ngd", scores, values).reshape(-1), np.float32)


def gated(gate: F32, up: F32, act: str) -> F32:
    """`silu(gate) * up`, or with gelu in its tanh approximation (Hendrycks, arXiv:1606.08415)."""
    g = gate.astype(np.float64)
    if act == "silu":
        with np.errstate(over="ignore"):
            active = g / (1.0 + np.exp(-g))
    else:
        active = 0.5 * g * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (g + 0.044715 * g**3)))
    return np.asarray(active * up, np.float32)


def softcap(x: F32, cap: float) -> F32:
    """`cap * tanh(x / cap)`."""
    return np.asarray(cap * np.tanh(x.astype(np.float64) / cap), np.float32)


def penalize(logits: F32, penalties: F32, recent: I32, ids: I32, index: I32) -> F32:
    """Logits less what recent tokens cost, in f32.

    Args:
        logits: [rows, n_vocab].
        penalties: [rows, 3]: a divisor of positive logits that multiplies the others; what is
            subtracted for each occurrence; what is subtracted once.
        recent: [rows, n] token ids; those outside of the vocabulary stand for none.
        ids, index: ids[index[row]] is one more recent token of a row, its newest.
    """
    found = logits.copy()
    for row, (factor, frequency, presence) in enumerate(penalties):
        window = [*recent[row], *ids[index[row] : index[row] + 1]]
        known = [token for token in window if 0 <= token < logits.shape[1]]
        tokens, counts = np.unique(np.asarray(known, np.int64), return_counts=True)
        values = found[row, tokens]
        values = np.where(values > 0, values / factor, values * factor)
        values -= counts.astype(np.float32) * frequency
        found[row, tokens] = values - presence
    return found


def sample(logits: F32, sampling: F32) -> I32:
    """A token for each row: the best at temperature 0, else drawn from the filtered rest.

    Args:
        logits: [rows, n_vocab].
        sampling: [rows, 5]: temperature, top_k (0 keeps all), top_p, min_p, a uniform in [0, 1).

    The filters apply in this order, to probabilities at temperature 1; equal logits rank by rising
    id. A row without a finite maximum gives -1.
    """
    chosen = np.empty(len(logits), np.int32)
    for row, (values, (temperature, top_k, top_p, min_p, uniform)) in enumerate(
        zip(logits.astype(np.float64), sampling.astype(np.float64), strict=True)
    ):
        if not np.isfinite(values.max()):
            chosen[row] = -1
            continue
        ids = np.argsort(-values, kind="stable")
        ids = ids[: int(top_k) or None]
        if temperature > 0:
            share = np.exp(values[ids] - values[ids[0]])
            kept = int((share / share.sum()).cumsum().searchsorted(top_p)) + 1
            kept = min(kept, int((share >= min_p).sum()))
            weights = np.exp((values[ids[:kept]] - values[ids[0]]) / temperature).cumsum()
            at = int(weights.searchsorted(uniform * weights[-1], side="right"))
            chosen[row] = ids[min(at, kept - 1)]
        else:
            chosen[row] = ids[0]
    return chosen
