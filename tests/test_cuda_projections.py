"""Attention that does what follows the projections gives the bits of the two launches it replaces.

In its output and in the cache: styles of rotation, biases, norms, types of caches, sizes and groups
of heads, windows, and rows at the ends of strands, pages and parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from backend_runner import weight
from cuda_harness import Runner

from minfer.backends import Split
from minfer.backends.cuda.kv import KVState
from minfer.dtypes import BY_NAME, F32, Q8_0
from minfer.graph import (
    PAGE,
    AttentionAttrs,
    FusedQKVAttrs,
    Graph,
    GraphBuilder,
    KVSpec,
    RopeSpec,
    RopeStyle,
)

pytest_plugins = ["cuda_fixtures"]
pytestmark = pytest.mark.cuda

N_IN = 64
RUNS: tuple[tuple[int, ...], ...] = (
    *((at,) for at in (0, 1, 15, 16, 63, 64, 127, 128, 255, 256, 383, 384, 1023, 1100)),
    (62, 63, 64, 65, 66),  # a sequence with several rows, over the end of a page
    (382, 383, 384, 385),  # and of a part
)
"""The positions of the rows of each sequence."""


@dataclass(frozen=True)
class Case:
    """An attention over the projections of its rows.

    Attributes:
        turned: features of a head that are rotated, 0 for all.
        runs: as `RUNS`.
        padding: rows without a position at the end.
        stored: whether rows have cells; else their keys are in the cache already.
    """

    head_dim: int = 128
    group: int = 7
    kv_heads: int = 2
    kv: str = "f16"
    style: RopeStyle = "neox"
    turned: int = 0
    bias: bool = False
    norm: bool = False
    window: int = 0
    softcap: float = 0.0
    runs: tuple[tuple[int, ...], ...] = RUNS
    padding: int = 2
    stored: bool = True

    @property
    def rows(self) -> int:
        return sum(map(len, self.runs)) + self.padding


CASES = {
    "few": Case(bias=True, runs=((700,),), padding=0),
    "few-pages": Case(bias=True, runs=((63,), (64,)), padding=0),
    "few-guesses": Case(bias=True, kv="q8_0", runs=((125, 126, 127, 128, 129),), padding=1),
    "bias": Case(bias=True),
    "norm": Case(norm=True, group=2),
    "f32": Case(head_dim=64, group=4, kv="f32", bias=True, style="interleaved"),
    "q8_0": Case(head_dim=64, kv="q8_0", norm=True),
    "half-turned": Case(head_dim=96, group=1, kv_heads=4, turned=48, kv="q8_0"),
    "interleaved": Case(head_dim=80, group=8, kv_heads=1, style="interleaved", turned=32),
    "tiles": Case(group=14, kv_heads=1, bias=True, norm=True),
    "tiles-q8_0": Case(group=9, kv_heads=1, kv="q8_0", runs=(*RUNS[:8], RUNS[-1])),
    "large": Case(head_dim=256, group=4, kv_heads=1, norm=True, runs=RUNS[4:]),
    "large-q8_0": Case(head_dim=256, group=4, kv_heads=1, norm=True, kv="q8_0", runs=RUNS[4:]),
    "window": Case(head_dim=64, window=40, norm=True, softcap=20.0),
    "window-of-one": Case(head_dim=64, window=1, kv="f32"),
    "nowhere": Case(bias=True, stored=False),
    "nowhere-f32": Case(head_dim=64, kv="f32", runs=RUNS[-3:], stored=False),
}


def graph_of(case: Case, spec: KVSpec, weights: dict[str, Any]) -> Graph:
    heads, head_dim = case.group * case.kv_heads, case.head_dim
    builder = GraphBuilder({name: w.spec for name, w in weights.items()}, {spec.name: spec})
    x = builder.input("x", (case.rows, N_IN), F32)
    positions, cells, seqs = (
        builder.input(name, (case.rows,)) for name in ("positions", "cells", "seqs")
    )
    table = builder.input("page_table", (len(case.runs), spec.n_pages))
    builder.input("counts", (3,))
    pairs = (case.turned or head_dim) // 2
    rope = RopeSpec(case.style, tuple(10000.0 ** (-i / pairs) for i in range(pairs)), 1.07)
    attrs = FusedQKVAttrs(
        spec.name, heads, case.kv_heads, head_dim, rope, case.rows, case.bias,
        1e-6 if case.norm else None,
    )  # fmt: skip
    q = builder.node("fused_qkv", (x, positions, cells), attrs, "qkv", tuple(weights))
    attends = AttentionAttrs(
        spec.name, heads, case.kv_heads, head_dim, head_dim**-0.5, case.rows, case.window,
        case.softcap,
    )  # fmt: skip
    return builder.build(builder.attention(q, positions, seqs, table, q, attends, "attention"))


def matrices(case: Case, rng: np.random.Generator) -> dict[str, Any]:
    heads = {"q": case.group * case.kv_heads, "k": case.kv_heads, "v": case.kv_heads}
    made = {
        name: weight(name, 0.2 * rng.standard_normal((n * case.head_dim, N_IN)), Q8_0)
        for name, n in heads.items()
    }
    if case.bias:
        for name, n in heads.items():
            made[f"b{name}"] = weight(f"b{name}", rng.standard_normal(n * case.head_dim), F32)
    if case.norm:
        for name in ("nq", "nk"):
            made[name] = weight(name, 1 + 0.1 * rng.standard_normal(case.head_dim), F32)
    return made


def page_of(spec: KVSpec, rng: np.random.Generator) -> bytes:
    """Keys and values as they lie, whichever they are."""
    state = KVState(spec, 0)
    n = 2 * PAGE * spec.n_kv_heads * spec.head_dim
    if spec.dtype is not Q8_0:
        dtype = np.float32 if spec.dtype is F32 else np.float16
        return rng.standard_normal(n).astype(dtype).tobytes()
    scales = 0.01 * (1 + rng.random(state.page_scale_bytes))
    return rng.integers(-127, 128, n).astype(np.int8).tobytes() + scales.astype("<f2").tobytes()


def outcomes(gpu: Any, case: Case) -> tuple[list[list[str]], list[np.ndarray], list[list[bytes]]]:
    """Node by node and together: the kernels, the attention, the cache."""
    rng = np.random.default_rng(case.head_dim + case.group)
    n_pages = sum(run[-1] // PAGE + 1 for run in case.runs) + 1
    spec = KVSpec("kv", case.kv_heads, case.head_dim, BY_NAME[case.kv], n_pages)
    gpu.add_state(spec)
    weights = matrices(case, rng)
    runner = Runner(gpu, graph_of(case, spec, weights), weights)
    order = iter(rng.permutation(n_pages))
    table = np.full((len(case.runs), n_pages), -1, np.int32)
    positions, cells, seqs = (np.full(case.rows, -1, np.int32) for _ in range(3))
    row = 0
    for slot, run in enumerate(case.runs):
        for page in range(run[-1] // PAGE + 1):
            table[slot, page] = next(order)
        for at in run:
            positions[row], seqs[row] = at, slot
            if case.stored:
                cells[row] = table[slot, at // PAGE] * PAGE + at % PAGE
            row += 1
    seqs[row:] = 0
    past = [page_of(spec, rng) for _ in range(n_pages)]
    nodes = tuple(n.id for n in runner.graph.nodes if n.op != "input")
    kernels, outs, caches = [], [], []
    for splits in ([(node,) for node in nodes], [nodes]):
        for page, data in enumerate(past):
            gpu.write_page("kv", page, data)
        runner.poison()
        runner.upload(
            x=np.random.default_rng(1).standard_normal((case.rows, N_IN)),
            positions=positions, cells=cells, seqs=seqs, page_table=table,
            counts=[row, 0, 0],
        )  # fmt: skip
        made = [Split(runner.graph, split, runner.offsets) for split in splits]
        for split in made:
            gpu.compile(split)()
        kernels.append([name for s in made for some in gpu.kernels(s).values() for name in some])
        outs.append(runner.result())
        caches.append([gpu.read_page("kv", page) for page in range(n_pages)])
    assert (caches[0] != past) == case.stored
    assert np.isfinite(outs[0]).all()
    assert not outs[0][row:].any()
    return kernels, outs, caches


def check(gpu: Any, case: Case) -> None:
    (apart, together), outs, caches = outcomes(gpu, case)
    assert [*together, "qkv"] == sorted(apart, key=lambda name: name == "qkv")
    assert caches[1] == caches[0]
    np.testing.assert_array_equal(outs[1], outs[0])


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_two_launches(gpu: Any, name: str) -> None:
    check(gpu, CASES[name])
