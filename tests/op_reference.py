"""What each op means, in float64: the judge of every backend, written apart from all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.graph import AttentionAttrs, RopeSpec

Array = NDArray[Any]


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    groups = wide(x).reshape(x.shape[0], -1, weight.size)
    scale = 1.0 / np.sqrt(np.mean(groups**2, axis=-1, keepdims=True) + eps)
    return (groups * scale * wide(weight)).reshape(x.shape)


def rope(x: Array, positions: Array, head_dim: int, spec: RopeSpec) -> Array:
    n = len(spec.inv_freq)
    pairs = np.arange(n)
    first, second = (
        (2 * pairs, 2 * pairs + 1) if spec.style == "interleaved" else (pairs, pairs + n)
    )
    heads = wide(x).reshape(x.shape[0], -1, head_dim)
    turn = np.exp(1j * wide(positions)[:, None] * np.array(spec.inv_freq)) * spec.magnitude
    turned = (heads[..., first] + 1j * heads[..., second]) * turn[:, None, :]
    out = heads.copy()
    out[..., first], out[..., second] = turned.real, turned.imag
    return out.reshape(x.shape)


def silu(x: Array) -> Array:
    return x / (1.0 + np.exp(-x))


def gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def gated(gate: Array, up: Array, act: str) -> Array:
    return {"silu": silu, "gelu": gelu}[act](wide(gate)) * wide(up)


def softcap(x: Array, cap: float) -> Array:
    return cap * np.tanh(wide(x) / cap)


def attention(q: Array, k: Array, v: Array, position: int, attrs: AttentionAttrs) -> Array:
    """One row over its sequence: q [n_heads * head_dim]; k, v [keys, n_kv_heads * head_dim]."""
    first = max(0, position - attrs.window + 1) if attrs.window else 0
    shape = (-1, attrs.n_kv_heads, attrs.head_dim)
    keys, values = (wide(x[first : position + 1]).reshape(shape) for x in (k, v))
    out = np.empty((attrs.n_heads, attrs.head_dim))
    for head, query in enumerate(wide(q).reshape(attrs.n_heads, attrs.head_dim)):
        of = head * attrs.n_kv_heads // attrs.n_heads
        scores = keys[:, of] @ query * attrs.scale
        if attrs.softcap:
            scores = attrs.softcap * np.tanh(scores / attrs.softcap)
        weights = np.exp(scores - scores.max())
        out[head] = weights @ values[:, of] / weights.sum()
    return out.reshape(-1)


def penalize(logits: Any, penalties: Any, recent: Any, ids: Any, index: Any) -> Array:
    """A token at a time, in f32 as llama.cpp has it."""
    found = logits.copy()
    for row in range(len(logits)):
        factor, frequency, presence = penalties[row]
        window = [*recent[row].tolist(), int(ids[index[row]])]
        for token in {t for t in window if 0 <= t < logits.shape[1]}:
            x = logits[row, token]
            x = x / factor if x > 0 else x * factor
            x = x - np.float32(window.count(token)) * frequency
            found[row, token] = x - presence
    return found
