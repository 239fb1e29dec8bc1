"""Kernels that the sweeps of the GPU tests need, compiled together before the first. Not a test.

Each test alone would compile its own few, one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from cuda_lowering import lower
from op_cases import cases

from minfer.backends.cuda.compile import CubinCache
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Launch
from minfer.backends.cuda.ops import OPS, matmul_pack
from minfer.dtypes import BY_NAME, F32
from minfer.graph import (
    AttentionAttrs,
    Graph,
    GraphBuilder,
    KVSpec,
    RopeAttrs,
    RopeSpec,
    WeightSpec,
)
from minfer.settings import Settings

HEAD_DIMS = (32, 64, 80, 96, 112, 128, 192, 256)
CACHES = ("f32", "f16", "q8_0")


def layer(
    head_dim: int, kv: str, rows: int, single: int, heads: int = 14, kv_heads: int = 2
) -> Graph:
    """A norm, rotations, the store and the attention of a layer."""
    spec = KVSpec("kv", kv_heads, head_dim, BY_NAME[kv], 64)
    weights = {"norm": WeightSpec(F32, (heads * head_dim,))}
    builder = GraphBuilder(weights, {"kv": spec})
    q = builder.input("q", (rows, heads * head_dim), F32)
    k = builder.input("k", (rows, kv_heads * head_dim), F32)
    positions, cells = builder.input("positions", (rows,)), builder.input("cells", (rows,))
    seqs, table = builder.input("seqs", (rows,)), builder.input("page_table", (8, 32))
    rope = RopeSpec("neox", tuple(1.0 / (i + 1) for i in range(head_dim // 2)))
    x = builder.rms_norm(q, "norm", "norm", 1e-6)
    x = builder.rope(x, positions, RopeAttrs(heads, head_dim, rope), "rope")
    store = builder.kv_store(k, k, cells, "kv", "store")
    attrs = AttentionAttrs("kv", heads, kv_heads, head_dim, 0.1, single)
    return builder.build(builder.attention(x, positions, seqs, table, store, attrs, "attention"))


def attention_launches(facts: Facts, heads: int, kv_heads: int) -> Iterator[Launch]:
    """Attention of every size and type on this card, and on one that has no kernels of its own."""
    for head_dim, kv in product(HEAD_DIMS, CACHES):
        for rows, single in ((1, 1), (16, 16), (70, 0)):
            graph = layer(head_dim, kv, rows, single, heads, kv_heads)
            yield from lower(graph, facts)
            yield from lower(graph, replace(facts, capability=(8, 0)))


def table_launches(facts: Facts) -> Iterator[Launch]:
    """Every case of the op table."""
    for case in cases():
        nodes = [n for n in case.graph.nodes if n.op != "input"]
        if not any(OPS[n.op].supports(n, case.graph) for n in nodes):
            yield from lower(case.graph, facts)


def prepare(backend: Any) -> None:
    """Compile, in parallel processes, what is not in the cache yet; load nothing."""
    facts = backend.device.facts
    launches = list(table_launches(facts))
    for heads, kv_heads in ((8, 2), (6, 2)):
        launches += attention_launches(facts, heads, kv_heads)
    kernels = [*matmul_pack.kernels(), *(launch.kernel for launch in launches)]
    cache = CubinCache(Settings().cache / "cubin", facts.arch)
    cache.build(dict.fromkeys(kernel.unit for kernel in kernels), print)
