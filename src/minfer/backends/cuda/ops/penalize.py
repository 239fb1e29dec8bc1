"""What recent tokens cost, taken off the logits before one is chosen on the device."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, blocks
from minfer.graph import Graph, Node

THREADS = 256
PART = 8192  # logits of a block
KERNEL = kernel("ops/penalize.cu", "penalize", "p p p p p p i i")


def supports(node: Node, graph: Graph) -> str | None:
    """Everything."""
    return None


def lower(node: Node, ctx: Context) -> list[Launch]:
    """One launch."""
    rows, n_vocab = node.shape
    (n_ids,) = ctx.graph.nodes[node.srcs[3]].shape
    sources = (ctx.src(node, i) for i in range(5))
    args = (*sources, ctx.out(node), n_vocab, n_ids)
    return [Launch(KERNEL, (blocks(n_vocab, PART), rows, 1), THREADS, args)]


def kernels(facts: Facts) -> Sequence[Kernel]:
    """The one there is."""
    return [KERNEL]
