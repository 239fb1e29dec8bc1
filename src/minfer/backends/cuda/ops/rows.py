"""Selected rows of an activation, as before the output head."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, blocks
from minfer.graph import Graph, Node

THREADS = 256
KERNEL = kernel("ops/rows.cu", "rows", "p p p i i")


def supports(node: Node, graph: Graph) -> str | None:
    """Everything."""
    return None


def lower(node: Node, ctx: Context) -> list[Launch]:
    """One launch."""
    n_rows, width = ctx.graph.nodes[node.srcs[0]].shape
    args = (ctx.src(node, 0), ctx.src(node, 1), ctx.out(node), n_rows, width)
    return [Launch(KERNEL, (node.shape[0], blocks(width, THREADS), 1), THREADS, args)]


def kernels(facts: Facts) -> Sequence[Kernel]:
    """The one there is."""
    return [KERNEL]
