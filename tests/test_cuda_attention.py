"""Attention on the GPU against float64 over rounded K and V: both kernels, every type and size."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from cuda_harness import Runner, error

from minfer.backends import Split
from minfer.backends.cuda.kv import scale_group
from minfer.dtypes import BY_NAME, F32
from minfer.graph import PAGE, AttentionAttrs, Graph, GraphBuilder, KVSpec

pytest_plugins = ["cuda_fixtures"]
pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("swept_kernels")]

RNG = np.random.default_rng(7)


@dataclasses.dataclass(frozen=True)
class Case:
    """One attention problem: `lengths` are the positions of the single rows; `chunks` are
    (first position, rows) of sequences with several rows; each has a slot of its own."""

    head_dim: int = 128
    n_heads: int = 8
    n_kv_heads: int = 2
    kv: str = "f16"
    lengths: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()
    padding: tuple[int, int] = (0, 0)
    window: int = 0
    softcap: float = 0.0
    amplitude: float = 1.0

    @property
    def positions(self) -> list[int]:
        chunks = [p for first, n in self.chunks for p in range(first, first + n)]
        return [*self.lengths, *[-1] * self.padding[0], *chunks, *[-1] * self.padding[1]]

    @property
    def slots(self) -> list[int]:
        n = len(self.lengths)
        chunks = [n + i for i, (_, rows) in enumerate(self.chunks) for _ in range(rows)]
        return [*range(n), *[0] * self.padding[0], *chunks, *[0] * self.padding[1]]

    @property
    def ends(self) -> list[int]:
        """Keys stored in each slot."""
        return [p + 1 for p in self.lengths] + [first + n for first, n in self.chunks]


def rounded(x: np.ndarray, kv: str) -> np.ndarray:
    """K or V, [keys, heads, head_dim], as the cache's type keeps it."""
    if kv == "f32":
        return x.astype(np.float32).astype(np.float64)
    if kv == "f16":
        return x.astype(np.float32).astype(np.float16).astype(np.float64)
    group = scale_group(x.shape[-1])
    parts = x.astype(np.float32).reshape(*x.shape[:-1], -1, group)
    d = np.abs(parts).max(-1, keepdims=True) / np.float32(127)
    quants = np.rint(parts * np.where(d > 0, 1 / np.where(d > 0, d, 1), 0).astype(np.float32))
    values = (quants * d.astype(np.float16).astype(np.float64)).reshape(x.shape)
    return values.astype(np.float16).astype(np.float64)  # the kernels' own operand


def reference(case: Case, q: np.ndarray, kv: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Float64 attention of every row, zeros for padded ones."""
    out = np.zeros((len(q), case.n_heads, case.head_dim))
    group = case.n_heads // case.n_kv_heads
    for row, (position, slot) in enumerate(zip(case.positions, case.slots, strict=True)):
        if position < 0:
            continue
        first = max(0, position + 1 - case.window) if case.window else 0
        k, v = (np.repeat(x[first : position + 1], group, axis=1) for x in kv[slot])
        s = np.einsum("hd,jhd->hj", q[row], k) / np.sqrt(case.head_dim)
        if case.softcap:
            s = case.softcap * np.tanh(s / case.softcap)
        p = np.exp(s - s.max(-1, keepdims=True))
        out[row] = np.einsum("hj,jhd->hd", p / p.sum(-1, keepdims=True), v)
    return out.reshape(len(q), -1)


class Problem:
    """A case with data, its graph and its pages scattered over the cache."""

    def __init__(self, backend: Any, case: Case, name: str = "kv") -> None:
        self.case = case
        positions, slots, ends = case.positions, case.slots, case.ends
        n_pages = [-(-end // PAGE) for end in ends]
        max_pages = max(n_pages) + 2
        spare = 3
        spec = KVSpec(name, case.n_kv_heads, case.head_dim, BY_NAME[case.kv], sum(n_pages) + spare)
        order = iter(RNG.permutation(sum(n_pages) + spare))
        self.table = np.full((len(ends), max_pages), -1, np.int32)
        for slot, n in enumerate(n_pages):
            self.table[slot, :n] = [next(order) for _ in range(n)]
        builder = GraphBuilder({}, {name: spec})
        width, kv_width = case.n_heads * case.head_dim, case.n_kv_heads * case.head_dim
        keys = sum(ends)
        q = builder.input("q", (len(positions), width), F32)
        k = builder.input("k", (keys, kv_width), F32)
        v = builder.input("v", (keys, kv_width), F32)
        cells = builder.input("cells", (keys,))
        at = builder.input("positions", (len(positions),))
        seqs = builder.input("seqs", (len(positions),))
        table = builder.input("page_table", self.table.shape)
        builder.input("counts", (3,))
        store = builder.kv_store(k, v, cells, name, "store")
        attrs = AttentionAttrs(
            state=name,
            n_heads=case.n_heads,
            n_kv_heads=case.n_kv_heads,
            head_dim=case.head_dim,
            scale=case.head_dim**-0.5,
            single_rows=len(case.lengths) + case.padding[0],
            window=case.window,
            softcap=case.softcap,
        )
        out = builder.attention(q, at, seqs, table, store, attrs, "attention")
        graph = builder.build(out)
        backend.add_state(spec)
        self._poison_cache(backend, spec)
        self.runner = Runner(backend, graph)
        self.q = RNG.standard_normal((len(positions), width)) * case.amplitude
        self.kv = [
            tuple(
                RNG.standard_normal((end, case.n_kv_heads, case.head_dim)) * scale
                for scale in (case.amplitude, 1.0)
            )
            for end in ends
        ]
        cell = [
            self.table[slot, j // PAGE] * PAGE + j % PAGE
            for slot, end in enumerate(ends)
            for j in range(end)
        ]
        self.runner.poison()
        self.runner.upload(
            q=self.q,
            k=np.concatenate([k.reshape(len(k), -1) for k, _ in self.kv]),
            v=np.concatenate([v.reshape(len(v), -1) for _, v in self.kv]),
            cells=cell,
            positions=positions,
            seqs=slots,
            page_table=self.table,
            counts=[len(case.lengths), sum(n for _, n in case.chunks), 0],
        )
        self.runner.program()
        self.out = self.runner.result()

    @staticmethod
    def _poison_cache(backend: Any, spec: KVSpec) -> None:
        # NaN in every cell of every plane; all ones is NaN for floats and halves alike
        for page in range(spec.n_pages):
            size = len(backend.read_page(spec.name, page))
            backend.write_page(spec.name, page, b"\xff" * size)

    def expected(self) -> np.ndarray:
        """What float64 says, over the operands as the kernels see them."""
        case = self.case
        q = self.q.astype(np.float32).astype(np.float64)
        if case.kv != "f32":  # the tiled kernels round queries
            single = len(case.lengths) + case.padding[0]
            q[single:] = q[single:].astype(np.float16)
        kv = []
        for k, v in self.kv:
            k, v = rounded(k, case.kv), rounded(v, case.kv)
            kv.append((k, v))
        return reference(case, q.reshape(len(q), case.n_heads, case.head_dim), kv)


def rows_of(problem: Problem, rows: int) -> Graph:
    """A graph of so many single rows over the sequences of a problem, which stores nothing."""
    graph = problem.runner.graph
    attention, spec = graph.nodes[graph.outputs[0]], graph.states["kv"]
    builder = GraphBuilder({}, {"kv": spec})
    q = builder.input("q", (rows, attention.shape[1]), F32)
    k = builder.input("k", (1, spec.n_kv_heads * spec.head_dim), F32)
    at, seqs = builder.input("positions", (rows,)), builder.input("seqs", (rows,))
    cells = builder.input("cells", (1,))
    table = builder.input("page_table", problem.table.shape)
    store = builder.kv_store(k, k, cells, "kv", "store")
    attrs = dataclasses.replace(attention.attrs, single_rows=rows)
    return builder.build(builder.attention(q, at, seqs, table, store, attrs, "rows"))


TYPES = ("f32", "f16", "q8_0")
LENGTHS = (0, 1, 15, 16, 63, 64, 65, 127, 300, 1023, 1024, 2047, 2048, 2049, 4200)


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 112, 128, 192, 256])
def test_single_rows(gpu: Any, head_dim: int, kv: str) -> None:
    case = Case(head_dim=head_dim, kv=kv, lengths=LENGTHS, padding=(1, 0))
    problem = Problem(gpu, case)
    assert error(problem.out, problem.expected()) < 2e-5


@pytest.mark.parametrize(
    ("kv", "head_dim"),
    [
        *((kv, 64) for kv in TYPES),
        *(("f16", head_dim) for head_dim in (80, 96, 128, 256)),
        *(("q8_0", head_dim) for head_dim in (80, 128)),
    ],
)
def test_every_number_of_keys(gpu: Any, kv: str, head_dim: int) -> None:
    """A row for each of 1 to 4200 keys of one sequence: all ends of strands, pages and parts."""
    n, n_heads, n_kv_heads = 4200, 4, 2
    case = Case(head_dim, n_heads, n_kv_heads, kv, lengths=(n - 1,))
    problem = Problem(gpu, case)
    (k, v), group = (rounded(x, kv) for x in problem.kv[0]), n_heads // n_kv_heads
    runner = Runner(gpu, rows_of(problem, n))
    runner.poison()
    q = RNG.standard_normal((n, n_heads * head_dim)).astype(np.float32)
    found = runner(
        q=q, positions=np.arange(n), seqs=np.zeros(n), page_table=problem.table, cells=[-1]
    )
    for head in range(n_heads):
        columns = slice(head * head_dim, (head + 1) * head_dim)
        scores = q[:, columns].astype(np.float64) @ k[:, head // group].T / np.sqrt(head_dim)
        scores[np.triu_indices(n, 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        expected = p / p.sum(-1, keepdims=True) @ v[:, head // group]
        of_rows = np.linalg.norm(found[:, columns] - expected, axis=-1)
        worst = (of_rows / np.linalg.norm(expected, axis=-1)).max()
        assert worst < 1e-4, head


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_values_come_back_from_the_cache_as_it_rounds_them(
    gpu: Any, head_dim: int, kv: str
) -> None:
    """A window of one key: each row is its own value, whichever path reads it."""
    case = Case(head_dim, 2, 2, kv, lengths=(0, 63, 64, 130), chunks=((0, 140),), window=1)
    problem = Problem(gpu, case)
    for row, (position, slot) in enumerate(zip(case.positions, case.slots, strict=True)):
        kept = rounded(problem.kv[slot][1], kv)[position].reshape(-1)
        np.testing.assert_allclose(
            problem.out[row], kept, rtol=2e-3 if kv == "q8_0" else 1e-6, atol=1e-7
        )


@pytest.mark.parametrize("kv", TYPES)
def test_saved_pages_go_on_in_other_places(gpu: Any, kv: str) -> None:
    """As when a sequence loses its pages and gets others: bit for bit the same."""
    problem = Problem(gpu, Case(kv=kv, lengths=(200, 64)))
    pages = [int(page) for row in problem.table for page in row if page >= 0]
    kept = [gpu.read_page("kv", page) for page in pages]
    for page in range(problem.runner.graph.states["kv"].n_pages):
        gpu.write_page("kv", page, b"\xff" * len(kept[0]))
    moved = dict(zip(pages, RNG.permutation(pages).tolist(), strict=True))
    for page, content in zip(pages, kept, strict=True):
        gpu.write_page("kv", moved[page], content)
    problem.runner.upload(page_table=np.vectorize(lambda page: moved.get(page, -1))(problem.table))
    graph, offsets = problem.runner.graph, problem.runner.offsets
    gpu.compile(Split(graph, tuple(n.id for n in graph.nodes if n.op == "attention"), offsets))()
    np.testing.assert_array_equal(problem.runner.result(), problem.out)


@pytest.mark.parametrize(
    "n_heads, n_kv_heads", [(4, 4), (14, 2), (28, 4), (12, 1), (32, 2), (9, 3)]
)
def test_any_grouping_of_heads(gpu: Any, n_heads: int, n_kv_heads: int) -> None:
    case = Case(
        head_dim=64, n_heads=n_heads, n_kv_heads=n_kv_heads, lengths=(70, 500), chunks=((60, 90),)
    )
    problem = Problem(gpu, case)
    assert error(problem.out, problem.expected()) < 5e-4


def generic(backend: Any) -> Any:
    """The backend, taking its GPU for an Ampere card: no kernel of Hopper's own is chosen."""
    backend.device.facts = dataclasses.replace(backend.device.facts, capability=(8, 0))
    return backend


@pytest.mark.parametrize("own", [True, False], ids=["own", "generic"])
@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 112, 128, 192, 256])
def test_chunks_of_several_sequences(gpu: Any, head_dim: int, kv: str, own: bool) -> None:
    gpu = gpu if own else generic(gpu)
    chunks = ((0, 2), (0, 70), (100, 33), (63, 1), (64, 5), (1000, 129))
    problem = Problem(gpu, Case(head_dim=head_dim, kv=kv, chunks=chunks, padding=(0, 15)))
    assert error(problem.out, problem.expected()) < (2e-5 if kv == "f32" else 5e-4)


@pytest.mark.parametrize("own", [True, False], ids=["own", "generic"])
@pytest.mark.parametrize("window", [1, 16, 63, 64, 65, 200, 5000])
def test_windows(gpu: Any, window: int, own: bool) -> None:
    gpu = gpu if own else generic(gpu)
    case = Case(
        head_dim=64,
        lengths=(0, 40, 64, 1000),
        chunks=((0, 130), (700, 40)),
        padding=(2, 3),
        window=window,
    )
    problem = Problem(gpu, case)
    assert error(problem.out, problem.expected()) < 5e-4


@pytest.mark.parametrize("softcap", [5.0, 50.0])
def test_softcap(gpu: Any, softcap: float) -> None:
    case = Case(lengths=(5, 900), chunks=((10, 100),), softcap=softcap, amplitude=3.0)
    problem = Problem(gpu, case)
    assert error(problem.out, problem.expected()) < 5e-4


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_outliers_do_not_overflow(gpu: Any, kv: str) -> None:
    # |q|, |k| up to 300: scores of the order of 1e5, far beyond what a half holds
    case = Case(kv=kv, lengths=(500, 70), chunks=((0, 200),), amplitude=70.0)
    problem = Problem(gpu, case)
    single = len(case.lengths)
    expected = problem.expected()
    assert error(problem.out[single:], expected[single:]) < 1e-3
    assert error(problem.out[:single], expected[:single]) < 1e-2  # q of 22 bits, scores of 1e4


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize("n_kv_heads", [2, 8])
def test_row_alone_equals_row_in_batch(gpu: Any, n_kv_heads: int, kv: str) -> None:
    # so many rows take blocks of four warps, one row alone takes eight
    lengths = (0, 63, 64, 128, 700, 1300, 4100)
    together = Problem(
        gpu, Case(kv=kv, n_kv_heads=n_kv_heads, lengths=lengths, padding=(25, 0), window=0)
    )
    alone = Runner(gpu, rows_of(together, 1))
    alone.upload(page_table=together.table, cells=[-1])
    for row, length in enumerate(lengths):
        out = alone(q=together.q[row : row + 1], positions=[length], seqs=[row])
        np.testing.assert_array_equal(out[0], together.out[row])


@pytest.mark.parametrize("own", [True, False], ids=["own", "generic"])
def test_chunk_rows_do_not_depend_on_their_place(gpu: Any, own: bool) -> None:
    gpu = gpu if own else generic(gpu)
    problem = Problem(gpu, Case(chunks=((300, 40), (0, 100), (64, 60))))
    order = RNG.permutation(3)
    first = np.cumsum([0, 40, 100, 60])
    rows = np.concatenate([np.arange(first[i], first[i + 1]) for i in order])
    moved = problem.runner(
        q=problem.q[rows],
        positions=np.array(problem.case.positions)[rows],
        seqs=np.array(problem.case.slots)[rows],
    )
    np.testing.assert_array_equal(moved, problem.out[rows])


def test_plain_attention_switch_agrees(make_gpu: Any) -> None:
    case = Case(chunks=((0, 150), (200, 30)))
    tiled = Problem(make_gpu(), case)
    plain = Problem(make_gpu(no_fa_prefill=True), case)
    assert error(plain.out, plain.expected()) < 5e-4
    assert error(tiled.out, tiled.expected()) < 5e-4


def test_pages_below_the_window_may_be_gone(gpu: Any) -> None:
    case = Case(lengths=(500,), chunks=((500, 90),), window=100)
    problem = Problem(gpu, case)
    table = problem.table.copy()
    table[:, : (500 - 100) // PAGE] = -1
    problem.runner.upload(page_table=table)
    problem.runner.poison()
    nodes = tuple(n.id for n in problem.runner.graph.nodes if n.op == "attention")
    gpu.compile(Split(problem.runner.graph, nodes, problem.runner.offsets))()
    np.testing.assert_array_equal(problem.runner.result(), problem.out)


def test_single_rows_may_share_a_sequence(gpu: Any) -> None:
    # as when a short prompt is computed beside decode rows; their keys are stored in the same step
    case = Case(lengths=(60, 61, 62, 63, 64, 65, 66, 200))
    problem = Problem(gpu, case)
    seqs = [6] * 7 + [7]
    shared = problem.runner(seqs=seqs, positions=case.lengths)
    q = problem.q.reshape(8, case.n_heads, case.head_dim).astype(np.float32).astype(np.float64)
    kv = [tuple(rounded(x, "f16") for x in problem.kv[slot]) for slot in seqs]
    expected = reference(case, q, kv)  # row r's slot is r in the case
    assert error(shared, expected) < 2e-5


def test_padded_rows_give_zeros(gpu: Any) -> None:
    problem = Problem(gpu, Case(lengths=(100,), chunks=((0, 10),), padding=(3, 9)))
    padded = np.array(problem.case.positions) < 0
    assert (problem.out[padded] == 0).all()
