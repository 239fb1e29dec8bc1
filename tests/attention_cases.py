"""Attention over a paged cache: batches of sequences, what runs, and the right answer.

A batch is stored and attended as the engine does it: the past of every sequence first, then one
step with the new rows of all, padded, over page tables in random order. Cells that hold nothing are
NaN, so that whatever leaks from them shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import op_reference as ref
from backend_runner import poison, run, weight
from numpy.typing import NDArray

from minfer.backends import Backend
from minfer.dtypes import F16, F32, I32, Q8_0, DType
from minfer.graph import PAGE, AttentionAttrs, GraphBuilder, KVSpec

Array = NDArray[Any]


@dataclass(frozen=True)
class Seq:
    """A sequence of a batch.

    Attributes:
        past: positions already in the cache.
        new: rows of this step.
        single: whether its row takes the path of single rows.
        key: what its numbers are drawn from, so that it can be run again elsewhere.
    """

    past: int
    new: int
    single: bool
    key: int


def decode(*past: int) -> tuple[Seq, ...]:
    """Sequences with one row each."""
    return tuple(Seq(n, 1, True, key) for key, n in enumerate(past))


def prefill(*runs: tuple[int, int]) -> tuple[Seq, ...]:
    """Sequences given as (past, new)."""
    return tuple(Seq(past, new, False, 100 + key) for key, (past, new) in enumerate(runs))


@dataclass(frozen=True)
class Heads:
    """Sizes and options of an attention.

    Attributes:
        size: factor on the random q and k.
    """

    n_heads: int = 6
    n_kv_heads: int = 2
    head_dim: int = 64
    dtype: DType = F16
    window: int = 0
    softcap: float = 0.0
    size: float = 1.0

    def attrs(self, single_rows: int) -> AttentionAttrs:
        scale = self.head_dim**-0.5
        return AttentionAttrs(
            "kv",
            self.n_heads,
            self.n_kv_heads,
            self.head_dim,
            scale,
            single_rows,
            self.window,
            self.softcap,
        )

    def numbers(self, seq: Seq) -> tuple[Array, Array, Array]:
        """q of the new rows, k and v of all positions."""
        source = np.random.default_rng([seq.key, self.n_heads, self.head_dim])
        total = seq.past + seq.new
        drawn = max(640, total)
        width = self.n_kv_heads * self.head_dim
        k = source.standard_normal((drawn, width)).astype(np.float32)[:total] * self.size
        v = source.standard_normal((drawn, width)).astype(np.float32)[:total]
        q = source.standard_normal((drawn, self.n_heads * self.head_dim)).astype(np.float32)
        return q[seq.past : total] * self.size, k, v


def attend(
    on: Backend, heads: Heads, seqs: tuple[Seq, ...], shuffle: int = 0, quantized: bool = False
) -> list[Array]:
    """The new rows of every sequence.

    `shuffle` picks the order of pages. In a graph with `quantized` weights a backend may round in
    attention, too; there is an embedding then, which nobody reads.
    """
    pages = [-(-(s.past + s.new) // PAGE) for s in seqs]
    n_pages = sum(pages) + 2
    order = np.random.default_rng(shuffle).permutation(n_pages)
    table = np.full((len(seqs), max(pages) + 1), -1, np.int32)
    for i, n in enumerate(pages):
        table[i, :n], order = order[:n], order[n:]
    spec = KVSpec("kv", heads.n_kv_heads, heads.head_dim, heads.dtype, n_pages)
    on.add_state(spec)
    poison(on, spec)
    _store_past(on, heads, spec, seqs, table)

    groups = [[i for i, s in enumerate(seqs) if s.single is kind] for kind in (True, False)]
    real = [sum(seqs[i].new for i in group) for group in groups]
    places = [n + 3 if n else 0 for n in real]
    rows = sum(places)
    q = np.full((rows, heads.n_heads * heads.head_dim), np.nan, np.float32)
    k, v = (np.full((rows, spec.n_kv_heads * spec.head_dim), np.nan, np.float32) for _ in "kv")
    positions, cells = (np.full(rows, -1, np.int32) for _ in range(2))
    slots = np.zeros(rows, np.int32)
    where: dict[int, slice] = {}
    for start, group in zip((0, places[0]), groups, strict=True):
        for i in group:
            seq = seqs[i]
            where[i] = at = slice(start, start + seq.new)
            new = np.arange(seq.past, seq.past + seq.new)
            q[at], all_k, all_v = heads.numbers(seq)
            k[at], v[at] = all_k[new], all_v[new]
            positions[at], slots[at] = new, i
            cells[at] = table[i, new // PAGE] * PAGE + new % PAGE
            start += seq.new

    inputs = {
        "q": q,
        "k": k,
        "v": v,
        "positions": positions,
        "seqs": slots,
        "cells": cells,
        "table": table,
        "counts": np.array([*real, 0], np.int32),
    }
    weights = {"w": weight("w", np.ones((64, 32)), Q8_0)} if quantized else {}
    b = GraphBuilder({name: w.spec for name, w in weights.items()}, {"kv": spec})
    nodes = {
        name: b.input(name, x.shape, F32 if x.dtype == np.float32 else I32)
        for name, x in inputs.items()
    }
    after = b.kv_store(nodes["k"], nodes["v"], nodes["cells"], "kv", "store")
    y = b.attention(
        nodes["q"],
        nodes["positions"],
        nodes["seqs"],
        nodes["table"],
        after,
        heads.attrs(places[0]),
        "attention",
    )
    if quantized:
        b.embed(nodes["seqs"], "w", "unread")
    (out,) = run(on, b.build(y), inputs, weights)
    return [out[where[i]] for i in range(len(seqs))]


def _store_past(
    on: Backend, heads: Heads, spec: KVSpec, seqs: tuple[Seq, ...], table: Array
) -> None:
    ks, vs, cells = [], [], []
    for i, seq in enumerate(seqs):
        _, k, v = heads.numbers(seq)
        at = np.arange(seq.past)
        ks.append(k[at])
        vs.append(v[at])
        cells.append(table[i, at // PAGE] * PAGE + at % PAGE)
    k, v, cell = np.concatenate(ks), np.concatenate(vs), np.concatenate(cells)
    if not len(cell):
        return
    b = GraphBuilder({}, {"kv": spec})
    nodes = [b.input("k", k.shape, F32), b.input("v", v.shape, F32), b.input("cells", cell.shape)]
    done = b.kv_store(*nodes, "kv", "store")
    run(on, b.build(done), {"k": k, "v": v, "cells": cell}, {})


def expected(heads: Heads, seq: Seq) -> Array:
    """The right rows of a sequence, from K and V as an f16 or f32 cache holds them."""
    q, k, v = heads.numbers(seq)
    if heads.dtype is F16:
        k, v = (x.astype(np.float16).astype(np.float32) for x in (k, v))
    attrs = heads.attrs(0)
    rows = [ref.attention(q[i], k, v, seq.past + i, attrs) for i in range(seq.new)]
    return np.array(rows)
