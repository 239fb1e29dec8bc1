"""The CUDA backend's host side on a GPU: replay, invalidation, failures, memory, pages."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from cuda_harness import Runner, error

from minfer.backends import Split
from minfer.dtypes import BY_NAME, F32
from minfer.errors import BackendError, ClosedError, GraphError, OutOfMemoryError
from minfer.graph import (
    PAGE,
    AttentionAttrs,
    Graph,
    GraphBuilder,
    KVSpec,
    RopeAttrs,
    RopeSpec,
)

pytest_plugins = ["cuda_fixtures"]
pytestmark = pytest.mark.cuda

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 64
ROPE = RopeSpec("neox", tuple(10000.0 ** (-2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)))


def step_graph(rows: int, slots: int, max_pages: int, spec: KVSpec) -> Graph:
    """A decode step's middle: rotate q and k, store, attend, add."""
    builder = GraphBuilder({}, {spec.name: spec})
    q = builder.input("q", (rows, HEADS * HEAD_DIM), F32)
    k = builder.input("k", (rows, KV_HEADS * HEAD_DIM), F32)
    v = builder.input("v", (rows, KV_HEADS * HEAD_DIM), F32)
    positions = builder.input("positions", (rows,))
    cells = builder.input("cells", (rows,))
    seqs = builder.input("seqs", (rows,))
    table = builder.input("page_table", (slots, max_pages))
    turned = builder.rope(q, positions, RopeAttrs(HEADS, HEAD_DIM, ROPE), "q_rope")
    turned_k = builder.rope(k, positions, RopeAttrs(KV_HEADS, HEAD_DIM, ROPE), "k_rope")
    store = builder.kv_store(turned_k, v, cells, spec.name, "store")
    attrs = AttentionAttrs(spec.name, HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5, rows)
    out = builder.attention(turned, positions, seqs, table, store, attrs, "attention")
    return builder.build(builder.add(out, turned, "sum"))


class Decoder:
    """Two sequences that grow a token a step over shuffled pages, rows padded to four."""

    ROWS, PAGES = 4, 8

    def __init__(self, backend: Any, seed: int = 0, name: str = "kv", kv: str = "f16") -> None:
        self.spec = KVSpec(name, KV_HEADS, HEAD_DIM, BY_NAME[kv], 2 * self.PAGES)
        backend.add_state(self.spec)
        self.runner = Runner(backend, step_graph(self.ROWS, 2, self.PAGES, self.spec))
        self.rng = np.random.default_rng(seed)
        self.table = self.rng.permutation(2 * self.PAGES).reshape(2, self.PAGES).astype(np.int32)
        self.lengths = [0, 57]

    def step(self) -> np.ndarray:
        rows = self.ROWS
        live = len(self.lengths)
        positions = np.full(rows, -1)
        cells = np.full(rows, -1)
        seqs = np.zeros(rows)
        for slot, length in enumerate(self.lengths):
            positions[slot] = length
            cells[slot] = self.table[slot, length // PAGE] * PAGE + length % PAGE
            seqs[slot] = slot
        widths = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
        data = {
            name: self.rng.standard_normal((rows, heads * HEAD_DIM))
            for name, heads in widths.items()
        }
        out = self.runner(
            **data, positions=positions, cells=cells, seqs=seqs, page_table=self.table
        )
        self.lengths = [n + 1 for n in self.lengths]
        return out[:live]


def test_replay_is_bit_equal_to_eager_over_200_steps(make_gpu: Any) -> None:
    replayed, eager = make_gpu(), make_gpu(no_cuda_graph=True)
    one, two = Decoder(replayed), Decoder(eager)
    for _ in range(200):
        np.testing.assert_array_equal(one.step(), two.step())
    assert (replayed.counters.eager, replayed.counters.captures) == (2, 1)
    assert replayed.counters.replays == 198
    assert (eager.counters.eager, eager.counters.captures, eager.counters.replays) == (200, 0, 0)
    assert eager.statistics()["launches"] == 200 * len(two.runner.program)


def test_outputs_of_earlier_steps_never_leak(make_gpu: Any) -> None:
    """NaN in all that a step is to write, and in every cell not yet stored: no token sees it."""
    clean, dirty = Decoder(make_gpu()), Decoder(make_gpu())
    spec = dirty.spec
    for page in range(spec.n_pages):
        size = len(dirty.runner.backend.read_page(spec.name, page))
        dirty.runner.backend.write_page(spec.name, page, b"\xff" * size)
    dirty.lengths = clean.lengths = [0, 0]
    for _ in range(140):
        dirty.runner.poison()
        np.testing.assert_array_equal(dirty.step(), clean.step())
    assert dirty.runner.backend.counters.replays == 138


def test_two_engines_in_two_threads(make_gpu: Any) -> None:
    expected = {}
    alone = make_gpu()
    for seed in (1, 2):
        decoder = Decoder(alone, seed, f"kv{seed}")
        expected[seed] = [decoder.step() for _ in range(40)]
    found: dict[int, list[np.ndarray]] = {}

    def work(seed: int, backend: Any) -> None:
        decoder = Decoder(backend, seed)
        found[seed] = [decoder.step() for _ in range(40)]

    backends = {seed: make_gpu() for seed in (1, 2)}
    threads = [threading.Thread(target=work, args=item) for item in backends.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (1, 2):
        np.testing.assert_array_equal(np.array(found[seed]), np.array(expected[seed]))
        assert backends[seed].counters.captures == 1


def test_a_moved_arena_refuses_old_programs(gpu: Any) -> None:
    decoder = Decoder(gpu)
    for _ in range(4):
        decoder.step()
    generation = gpu.generation
    assert gpu.reserve(1) == generation
    assert gpu.reserve(64 << 20) == generation + 1
    with pytest.raises(GraphError, match="generation"):
        decoder.runner.program()
    runner = decoder.runner
    runner.program = gpu.compile(
        Split(
            runner.graph, tuple(n.id for n in runner.graph.nodes if n.op != "input"), runner.offsets
        )
    )
    reference = Decoder(gpu, name="other")
    for _ in range(4):
        reference.step()
    np.testing.assert_array_equal(decoder.step(), reference.step())


@pytest.mark.parametrize("site", ["capture", "instantiate", "replay"])
def test_a_failed_capture_turns_graphs_off_and_eager_is_right(make_gpu: Any, site: str) -> None:
    broken, healthy = make_gpu(), make_gpu(no_cuda_graph=True)
    one, two = Decoder(broken), Decoder(healthy)
    for _ in range(2):
        np.testing.assert_array_equal(one.step(), two.step())
    broken.device.faults.arm(site)
    with pytest.warns(RuntimeWarning, match="CUDA graphs are off"):
        np.testing.assert_array_equal(one.step(), two.step())
    for _ in range(5):
        np.testing.assert_array_equal(one.step(), two.step())
    assert not broken.graphs
    assert broken.counters.replays == 0


@pytest.mark.parametrize("site", ["launch", "upload", "download", "synchronize", "allocate"])
def test_failures_come_back_as_errors(gpu: Any, site: str) -> None:
    decoder = Decoder(gpu)
    gpu.device.faults.arm(site)
    with pytest.raises(BackendError, match=site):
        if site == "allocate":
            gpu.reserve(256 << 20)
        else:
            decoder.step()
            gpu.synchronize()
    gpu.reserve(1)
    gpu.synchronize()


def test_out_of_memory_is_an_error_before_anything_is_taken(make_gpu: Any) -> None:
    backend = make_gpu(gpu_mem=64)
    before = backend.device.allocated
    with pytest.raises(OutOfMemoryError, match="needs 104,857,600 bytes"):
        backend.reserve(100 << 20)
    assert backend.device.allocated == before
    assert backend.reserve(32 << 20) > 0
    assert backend.budget().nbytes == 64 << 20
    with pytest.raises(OutOfMemoryError):
        backend.add_state(KVSpec("kv", 8, 128, BY_NAME["f16"], 4096))


def test_large_and_small_uploads_arrive_in_order(gpu: Any) -> None:
    rng = np.random.default_rng(3)
    big = rng.integers(0, 256, 40 << 20, dtype=np.uint8)
    small = [rng.integers(0, 256, n, dtype=np.uint8) for n in (1, 256, 300, 5000)]
    gpu.reserve(64 << 20)
    gpu.upload(0, big)
    offset, at = 0, []
    for array in small:
        gpu.upload(offset, array)
        at.append(offset)
        offset += -(-array.nbytes // 256) * 256
    gpu.upload(48 << 20, big[:100])
    copies = gpu.device.staging.copies
    assert copies <= 6  # the big one in slots, neighbours together
    for start, array in zip(at, small, strict=True):
        np.testing.assert_array_equal(gpu.download(start, array.shape, array.dtype), array)
    end = big.nbytes - offset
    np.testing.assert_array_equal(gpu.download(offset, (end,), big.dtype), big[offset:])
    np.testing.assert_array_equal(gpu.download(48 << 20, (100,), big.dtype), big[:100])


@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
def test_pages_are_read_written_and_copied(gpu: Any, kv: str) -> None:
    spec = KVSpec("kv", 2, 64, BY_NAME[kv], 5)
    taken = gpu.add_state(spec)
    rng = np.random.default_rng(4)
    size = len(gpu.read_page("kv", 0))
    assert taken == 5 * size
    assert taken <= spec.nbytes + 256
    pages = [rng.integers(0, 256, size, dtype=np.uint8).tobytes() for _ in range(5)]
    for page, data in enumerate(pages):
        gpu.write_page("kv", page, data)
    assert [gpu.read_page("kv", page) for page in range(5)] == pages
    gpu.copy_pages([(4, 0), (2, 3)])
    expected = [pages[4], pages[1], pages[2], pages[2], pages[4]]
    assert [gpu.read_page("kv", page) for page in range(5)] == expected
    with pytest.raises(BackendError, match="page 5"):
        gpu.read_page("kv", 5)
    with pytest.raises(BackendError, match="bytes for a page"):
        gpu.write_page("kv", 0, b"short")


def test_a_closed_backend_says_so(make_gpu: Any) -> None:
    backend = make_gpu()
    backend.close()
    backend.close()
    with pytest.raises(ClosedError):
        backend.reserve(1)


def test_uploads_may_be_overwritten_at_once(gpu: Any) -> None:
    gpu.reserve(1 << 20)
    array = np.arange(1000, dtype=np.float32)
    gpu.upload(0, array)
    array[:] = 0
    found = gpu.download(0, (1000,), np.dtype(np.float32))
    assert error(found, np.arange(1000.0)) == 0.0


def test_fetches_wait_for_themselves_and_keep_their_order(gpu: Any) -> None:
    gpu.reserve(1 << 20)
    fetched = []
    for i in range(20):
        gpu.upload(i * 4096, np.full(300, i, np.int32))
        fetched.append(gpu.fetch(i * 4096, (300,), np.dtype(np.int32)))
        if i % 3 == 0:
            del fetched[-1]  # forgotten: its place serves the next
    kept = [i for i in range(20) if i % 3]
    for i, arrived in reversed(list(zip(kept, fetched, strict=True))):
        assert (arrived() == i).all()
        assert (arrived() == i).all()
    with pytest.raises(BackendError, match="arena"):
        gpu.fetch(1 << 20, (1,), np.dtype(np.int32))


def test_what_is_sent_is_there_for_later_work(gpu: Any) -> None:
    gpu.reserve(1 << 20)
    for i in range(3000):  # more than a slot of pinned memory holds
        array = np.full(1000, i, np.int32)
        gpu.send(i % 2 * 4096, array)
        array[:] = -1
        if i % 100 < 2:
            assert (gpu.download(i % 2 * 4096, (1000,), np.dtype(np.int32)) == i).all()
    with pytest.raises(BackendError, match="arena"):
        gpu.send(1 << 20, np.zeros(1, np.int32))
