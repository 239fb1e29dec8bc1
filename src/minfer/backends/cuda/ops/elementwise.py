"""Ops on single values: add, mul, scale, softcap, and the gated product of an FFN."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, blocks
from minfer.graph import GatedAttrs, Graph, Node, ScaleAttrs, SoftcapAttrs

THREADS = 256
NUMBERS = {"add": 0, "mul": 1, "scale": 2, "softcap": 3, "silu": 4, "gelu": 5}
"""Operation -> the number the kernel knows it by."""


def supports(node: Node, graph: Graph) -> str | None:
    """Everything."""
    return None


def lower(node: Node, ctx: Context) -> list[Launch]:
    """One launch."""
    attrs = node.attrs
    name = attrs.act if isinstance(attrs, GatedAttrs) else node.op
    constant = 0.0
    if isinstance(attrs, ScaleAttrs):
        constant = attrs.factor
    elif isinstance(attrs, SoftcapAttrs):
        constant = attrs.cap
    count = node.nbytes // 4
    wide = count % 4 == 0
    second = ctx.src(node, 1) if len(node.srcs) > 1 else 0
    args = (ctx.src(node, 0), second, ctx.out(node), count, constant)
    grid = (blocks(count, THREADS * (4 if wide else 1)), 1, 1)
    return [Launch(_kernel(name, wide), grid, THREADS, args)]


def kernels(facts: Facts) -> Sequence[Kernel]:
    """All of them."""
    return [_kernel(name, wide) for name in NUMBERS for wide in (True, False)]


def _kernel(name: str, wide: bool) -> Kernel:
    return kernel(
        "ops/elementwise.cu", "elementwise", "p p p l f", OP=NUMBERS[name], WIDE=int(wide)
    )
