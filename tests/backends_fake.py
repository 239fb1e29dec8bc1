"""Backends for tests: the reference with gaps or late; a recorder; one that checks the cache."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends import (
    ALIGNMENT,
    Backend,
    Split,
    Weight,
    create_backend,
    reason_against,
)
from minfer.backends.reference import ReferenceBackend
from minfer.graph import PAGE, Graph, KVSpec, Node
from minfer.settings import Settings

Supports = Callable[[Node], str | None]


def host() -> Backend:
    """What runs beside a GPU: the CPU backend, or the reference where that was not built."""
    try:
        return create_backend("cpu", Settings(threads=2))
    except ImportError:
        return create_backend("reference", Settings())


class PartialReference(ReferenceBackend):
    """The reference backend under another name, refusing what `supports` gives a reason for."""

    def __init__(self, name: str, supports: Supports = lambda node: None) -> None:
        super().__init__()
        self.name = name
        self._refuses = supports

    def supports(self, node: Node, graph: Graph) -> str | None:
        return self._refuses(node) or super().supports(node, graph)


class OnPaper(PartialReference):
    """The reference, which takes what the GPU takes: for plans made without one."""

    def __init__(self) -> None:
        super().__init__("cuda")

    def supports(self, node: Node, graph: Graph) -> str | None:
        return reason_against("cuda", node, graph)


class Recorder(ReferenceBackend):
    """Takes every node, fused ones too, and notes which it was asked to run; computes nothing."""

    name = "recorder"

    def __init__(self) -> None:
        super().__init__()
        self.compiled: list[str] = []

    def supports(self, node: Node, graph: Graph) -> str | None:
        return None

    def compile(self, split: Split) -> Callable[[], None]:
        self.compiled += [split.graph.nodes[i].op for i in split.nodes]
        return lambda: None


class Dirty:
    """Another backend in whose memory nothing but inputs and the stored cells is a number.

    All else of the arena is NaN whenever a split runs, and a new KV state is NaN throughout. Inputs
    have two places, which steps of a chain take in turn: those of the next may be there already.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._end = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def reserve(self, nbytes: int) -> int:
        self._end = max(self._end, nbytes)
        return self._backend.reserve(nbytes)

    def add_state(self, spec: KVSpec) -> int:
        taken = self._backend.add_state(spec)
        for page in range(spec.n_pages):
            size = len(self._backend.read_page(spec.name, page))
            self._backend.write_page(spec.name, page, b"\xff" * size)
        return taken

    def compile(self, split: Split) -> Callable[[], None]:
        run = self._backend.compile(split)
        nodes = split.graph.nodes
        assert len(split.nodes) == sum(n.op != "input" for n in nodes), "one split has all"
        inputs = [split.offsets[n.id] for n in split.graph.inputs.values()]
        ends = [split.offsets[n.id] + n.nbytes for n in split.graph.inputs.values()]
        first, end = min(inputs), -(-max(ends) // ALIGNMENT) * ALIGNMENT
        start = end if first else 2 * end  # the place behind is the other one's
        nothing = np.full((self._end // ALIGNMENT * ALIGNMENT - start) // 4, np.nan, np.float32)

        def dirty_run() -> None:
            self._backend.upload(start, nothing)
            run()

        return dirty_run


def next_token(history: Sequence[int], n_vocab: int) -> int:
    """The token `Historian` answers after `history`: any change of it changes the answer."""
    return zlib.crc32(np.asarray(history, np.int32).tobytes()) % n_vocab


class Historian(ReferenceBackend):
    """Computes nothing but who wrote what where: a KV cell holds a token and its position.

    The logits of a row choose `next_token` of the tokens its page table leads to, which fails if
    a cell on the way holds another position. So a lost, stale or overwritten page changes tokens.
    """

    name = "historian"

    def __init__(self, *, chooses: bool = True) -> None:
        super().__init__()
        self.chooses = chooses
        self.cells = np.full((0, 2), -1, np.int32)  # token, position
        self.n_runs = 0
        self.fail: Callable[[int], Exception | None] = lambda n_runs: None

    def supports(self, node: Node, graph: Graph) -> str | None:
        return None if node.op != "sample" or self.chooses else "asked not to choose"

    def load(self, node: Node, weights: Mapping[str, Weight]) -> int:
        return 0

    def add_state(self, spec: KVSpec) -> int:
        self.cells = np.full((spec.n_pages * PAGE, 2), -1, np.int32)
        return 0

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self._page(target)[:] = self._page(source)

    def read_page(self, state: str, page: int) -> bytes:
        return self._page(page).tobytes()

    def write_page(self, state: str, page: int, data: bytes) -> None:
        self._page(page)[:] = np.frombuffer(data, np.int32).reshape(PAGE, 2)

    def compile(self, split: Split) -> Callable[[], None]:
        inputs = {name: self._view(node, split) for name, node in split.graph.inputs.items()}
        last = split.graph.nodes[split.graph.outputs[0]]
        output = self._view(last, split)
        chooses = last.op == "sample"
        n_vocab = split.graph.nodes[last.srcs[0]].shape[1] if chooses else last.shape[1]

        def run() -> None:
            self.n_runs += 1
            error = self.fail(self.n_runs)
            if error is not None:
                raise error
            stored = inputs["positions"] >= 0
            assert ((inputs["cells"] >= 0) == stored).all()
            assert len(set(inputs["cells"][stored].tolist())) == stored.sum()
            self.cells[inputs["cells"][stored], 0] = inputs["token_ids"][stored]
            self.cells[inputs["cells"][stored], 1] = inputs["positions"][stored]
            assert stored.sum() == inputs["counts"][:2].sum()
            output[:] = 0
            for out, row in enumerate(inputs["out_rows"][: inputs["counts"][2]]):
                history = self._history(inputs["page_table"][inputs["seqs"][row]], inputs, row)
                token = next_token(history, n_vocab)
                if chooses:
                    output[out] = token
                else:
                    output[out, token] = 1.0

        return run

    def _history(
        self, table: NDArray[np.int32], inputs: Mapping[str, NDArray[np.int32]], row: int
    ) -> NDArray[np.int32]:
        at = np.arange(inputs["positions"][row] + 1)
        found = self.cells[table[at // PAGE] * PAGE + at % PAGE]
        assert (found[:, 1] == at).all(), "a cell holds another position"
        return found[:, 0]

    def _page(self, page: int) -> NDArray[np.int32]:
        return self.cells[page * PAGE : (page + 1) * PAGE]


class Lagging(ReferenceBackend):
    """The reference, whose work runs no sooner than somebody waits for it.

    Args:
        sends_late: whether what is sent beside the work arrives just before later work needs it,
            instead of at once.
        fetches_late: whether what is fetched is copied after everything enqueued meanwhile, instead
            of right after the work before it.
    """

    def __init__(self, *, sends_late: bool, fetches_late: bool) -> None:
        super().__init__()
        self._sends_late = sends_late
        self._fetches_late = fetches_late
        self._queue: deque[Callable[[], None]] = deque()

    def _drain(self) -> None:
        while self._queue:
            self._queue.popleft()()

    def upload(self, offset: int, array: NDArray[np.generic]) -> None:
        data = array.copy()
        self._queue.append(lambda: super(Lagging, self).upload(offset, data))

    def send(self, offset: int, array: NDArray[np.generic]) -> None:
        if self._sends_late:
            self.upload(offset, array)
        else:
            super().upload(offset, array)

    def download(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> NDArray[np.generic]:
        self._drain()
        return super().download(offset, shape, dtype)

    def fetch(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Callable[[], NDArray[np.generic]]:
        found: list[NDArray[np.generic]] = []
        look = super().download
        copy = lambda: found.append(look(offset, shape, dtype))  # noqa: E731
        if not self._fetches_late:
            self._queue.append(copy)

        def arrived() -> NDArray[np.generic]:
            while not found:
                if self._queue:
                    self._queue.popleft()()
                else:
                    copy()
            return found[0]

        return arrived

    def compile(self, split: Split) -> Callable[[], None]:
        run = super().compile(split)
        return lambda: self._queue.append(run)

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._drain()
        super().copy_pages(pairs)

    def reserve(self, nbytes: int) -> int:
        if nbytes > self._arena.size:
            self._drain()
        return super().reserve(nbytes)


class LaggingHistorian(Lagging, Historian):
    """A `Historian` that lags."""
