"""Attention over a KV state: which kernel takes which rows.

Single rows go to the split kernel, rows of a chunk to the tiled ones; a row's kernel never depends
on how many rows there are. An f32 cache is chosen for its precision, which the tiled kernels do not
have: there all rows go to the split kernel, at several times the cost of prefill attention.
"""

from __future__ import annotations

from collections.abc import Sequence

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch
from minfer.backends.cuda.ops import attention_decode, attention_prefill
from minfer.backends.cuda.ops.base import Context
from minfer.dtypes import F32, DType
from minfer.graph import AttentionAttrs, Graph, Node
from minfer.settings import Settings

MAX_HEAD_DIM = 256
CHECKED_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 192, 256)
"""Head sizes whose kernels the compile check builds."""


def supports(node: Node, graph: Graph) -> str | None:
    """Heads of a multiple of 16 features, any grouping of heads."""
    assert isinstance(node.attrs, AttentionAttrs)
    if node.attrs.head_dim % 16 or node.attrs.head_dim > MAX_HEAD_DIM:
        return f"heads of {node.attrs.head_dim} features: not a multiple of 16 up to {MAX_HEAD_DIM}"
    return None


def hands_over(node: Node, graph: Graph, facts: Facts, settings: Settings) -> tuple[bool, bool]:
    """Both kernels write halves where they are asked to."""
    assert isinstance(node.attrs, AttentionAttrs)
    tiled = _tiled(graph.states[node.attrs.state].dtype, settings)
    return tiled, tiled


def _tiled(cache: DType, settings: Settings) -> bool:
    """Whether rows of a chunk go to the tiled kernels."""
    return not settings.no_fa_prefill and cache is not F32


def lower(node: Node, ctx: Context) -> list[Launch]:
    """The rows of each kind by their kernel; MINFER_NO_FA_PREFILL sends all to the split one."""
    assert isinstance(node.attrs, AttentionAttrs)
    rows, single = node.shape[0], node.attrs.single_rows
    if not _tiled(ctx.states[node.attrs.state].spec.dtype, ctx.settings):
        return attention_decode.launches(node, ctx, 0, rows)
    launches = attention_decode.launches(node, ctx, 0, single)
    return launches + attention_prefill.launches(node, ctx, single, rows)


def kernels(facts: Facts) -> Sequence[Kernel]:
    """Every head size and type of both kernels."""
    return [
        *attention_decode.kernels(CHECKED_HEAD_DIMS),
        *attention_prefill.kernels(CHECKED_HEAD_DIMS, facts),
    ]
