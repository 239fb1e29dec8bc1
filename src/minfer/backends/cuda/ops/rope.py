"""Rotary embedding, both styles; frequencies are constants of the graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, blocks
from minfer.graph import Graph, Node, RopeAttrs, RopeSpec, RopeStyle

WARPS = 4
MAX_HEAD_DIM = 512


def supports(node: Node, graph: Graph) -> str | None:
    """Any even head of up to 512 features."""
    assert isinstance(node.attrs, RopeAttrs)
    if node.attrs.head_dim > MAX_HEAD_DIM:
        return f"heads of {node.attrs.head_dim} features exceed {MAX_HEAD_DIM}"
    return None


def lower(node: Node, ctx: Context) -> list[Launch]:
    """One launch."""
    assert isinstance(node.attrs, RopeAttrs)
    attrs = node.attrs
    turns = ctx.constant(frequencies(attrs.rope))
    args = (
        ctx.src(node, 0),
        ctx.src(node, 1),
        turns,
        ctx.out(node),
        attrs.n_heads,
        attrs.rope.magnitude,
    )
    grid = (node.shape[0], blocks(attrs.n_heads, WARPS), 1)
    return [Launch(_kernel(attrs.head_dim, attrs.rope), grid, 32 * WARPS, args)]


def frequencies(rope: RopeSpec) -> NDArray[np.float32]:
    """The table kernels read: turns a position as the sum of two floats, [pairs, 2]."""
    turns = np.asarray(rope.inv_freq, dtype=np.float64) / (2.0 * math.pi)
    high = turns.astype(np.float32)
    low = (turns - high).astype(np.float32)
    return np.ascontiguousarray(np.stack([high, low], axis=1))


def defines(head_dim: int, rope: RopeSpec) -> dict[str, int]:
    """The macros of a rotation, here and in the fused epilogue."""
    return {"HD": head_dim, "ROTATED": 2 * len(rope.inv_freq), "NEOX": int(rope.style == "neox")}


def kernels(facts: Facts) -> Sequence[Kernel]:
    """Head sizes and styles of the supported architectures."""
    variants: tuple[tuple[int, RopeStyle], ...] = (
        (64, "neox"),
        (80, "interleaved"),
        (128, "neox"),
        (256, "neox"),
    )
    return [_kernel(d, RopeSpec(style, (1.0,) * (d // 2))) for d, style in variants]


def _kernel(head_dim: int, rope: RopeSpec) -> Kernel:
    return kernel("ops/rope.cu", "rope", "p p p p i f", **defines(head_dim, rope))
