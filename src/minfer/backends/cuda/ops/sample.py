"""Choosing tokens on the device: greedy, temperature, top-k, top-p, min-p."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Context, blocks
from minfer.graph import Graph, Node

THREADS = 1024
CHUNK = 4 * THREADS  # logits that a block reads together, four a thread
MAX_BLOCKS = 32  # of a row
BLOCKS_AT_ONCE = 2  # on a multiprocessor, by their threads
BINS, KINDS = 2 * THREADS, 3
SHARED_BYTES = BINS * (KINDS + 2) * 8 + 32 * 8 + 8 + 4 * 4
BEST = kernel("ops/sample.cu", "sample_best", "p p p p p p i")
DRAW = kernel("ops/sample.cu", "sample_draw", "p p p p p p p i")


def supports(node: Node, graph: Graph) -> str | None:
    """Everything."""
    return None


def lower(node: Node, ctx: Context) -> list[Launch]:
    """Two launches, of as many blocks as run at once: more of them would wait and start late."""
    rows, n_vocab = ctx.graph.nodes[node.srcs[0]].shape
    at_once = max(1, BLOCKS_AT_ONCE * ctx.facts.n_sms // rows)
    n_blocks = min(MAX_BLOCKS, at_once, blocks(n_vocab, CHUNK))
    of_tops, of_sums = rows * n_blocks * 8, rows * KINDS * BINS * 8
    of_nearest = rows * blocks(n_vocab, CHUNK) * THREADS * 2
    tops = ctx.scratch(of_tops + of_sums + of_nearest)
    sums, nearest = tops + of_tops, tops + of_tops + of_sums
    shared = ctx.src(node, 0), ctx.src(node, 1), ctx.out(node), tops, sums
    counters, grid = ctx.counters(rows), (n_blocks, rows, 1)
    return [
        Launch(BEST, grid, THREADS, (*shared, counters, n_vocab)),
        Launch(DRAW, grid, THREADS, (*shared, nearest, counters, n_vocab), SHARED_BYTES),
    ]


def kernels(facts: Facts) -> Sequence[Kernel]:
    """The two there are."""
    return [BEST, DRAW]
