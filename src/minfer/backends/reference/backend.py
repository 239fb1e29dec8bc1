"""The reference backend: NumPy over the contract every backend has. To judge by, not for speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends.base import Budget, Split, Weight
from minfer.backends.reference import ops
from minfer.dtypes import F16, F32, I32, Q8_0, WEIGHT_TYPES, DType
from minfer.errors import BackendError
from minfer.gguf import dequantize, quantize
from minfer.graph import (
    PAGE,
    AttentionAttrs,
    EmbedAttrs,
    GatedAttrs,
    Graph,
    KVSpec,
    KVStoreAttrs,
    Node,
    NormAttrs,
    RopeAttrs,
    ScaleAttrs,
    SoftcapAttrs,
)

Array = NDArray[Any]
NUMPY_TYPES: dict[DType, type[np.generic]] = {F32: np.float32, I32: np.int32}
KV_TYPES: tuple[DType, ...] = (F32, F16, Q8_0)


class _KVState:
    """K and V of one layer as rows of cells, in the element type of the cache."""

    def __init__(self, spec: KVSpec) -> None:
        self.spec = spec
        width = spec.n_kv_heads * spec.head_dim
        cells = spec.n_pages * PAGE
        if spec.dtype is Q8_0:
            self.rows = np.zeros((2, cells, Q8_0.nbytes(width)), np.uint8)
        else:
            kind = np.float16 if spec.dtype is F16 else np.float32
            self.rows = np.zeros((2, cells, width), kind)

    def store(self, part: int, cells: Array, values: Array) -> None:
        kept = cells >= 0
        if self.spec.dtype is Q8_0:
            packed = quantize(values[kept].reshape(-1), Q8_0)
            self.rows[part, cells[kept]] = packed.reshape(int(kept.sum()), -1)
        else:
            self.rows[part, cells[kept]] = values[kept]

    def read(self, part: int, cells: Array) -> Array:
        rows = self.rows[part, cells]
        if self.spec.dtype is Q8_0:
            return dequantize(rows.reshape(-1), Q8_0).reshape(len(cells), -1)
        return np.asarray(rows, np.float32)


class ReferenceBackend:
    """Runs every op of the table with every weight type, in float32 NumPy."""

    name = "reference"

    def __init__(self) -> None:
        self._arena: Array = np.zeros(0, np.uint8)
        self._generation = 0
        self._weights: dict[str, Array] = {}
        self._states: dict[str, _KVState] = {}

    def supports(self, node: Node, graph: Graph) -> str | None:
        """Everything but weight types that have no definition in NumPy, and fused nodes."""
        if node.op not in _OPS:
            return f"the reference has no function for {node.op}; it runs unfused chains only"
        state = graph.states.get(getattr(node.attrs, "state", ""))
        if state is not None and state.dtype not in KV_TYPES:
            supported = ", ".join(t.name for t in KV_TYPES)
            return f"{state.name} is {state.dtype}; supported: {supported}"
        if state is not None and state.n_kv_heads * state.head_dim % state.dtype.block_items:
            width, block = state.n_kv_heads * state.head_dim, state.dtype.block_items
            return f"{width} values a cell are not blocks of {block} ({state.dtype})"
        for name in node.weights:
            if graph.weights[name].dtype not in WEIGHT_TYPES:
                supported = ", ".join(t.name for t in WEIGHT_TYPES)
                return f"{name} is {graph.weights[name].dtype}; supported: {supported}"
        return None

    def budget(self) -> Budget:
        """Not limited: the operating system is the judge."""
        return Budget(1 << 62, "not limited")

    def load(self, node: Node, weights: Mapping[str, Weight]) -> int:
        """Dequantize the node's weights to float32 `[n_out, n_in]`."""
        taken = 0
        for name in node.weights:
            if name not in self._weights:
                weight = weights[name]
                values = dequantize(weight.data, weight.spec.dtype)
                self._weights[name] = values.reshape(weight.spec.shape[::-1])
                taken += values.nbytes
        return taken

    def add_state(self, spec: KVSpec) -> int:
        """A zeroed K and V of one layer."""
        self._states[spec.name] = _KVState(spec)
        return self._states[spec.name].rows.nbytes

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy pages in every state."""
        for state in self._states.values():
            for source, target in pairs:
                a, b = source * PAGE, target * PAGE
                state.rows[:, b : b + PAGE] = state.rows[:, a : a + PAGE]

    def read_page(self, state: str, page: int) -> bytes:
        """K rows, then V rows, of a page."""
        return self._states[state].rows[:, page * PAGE : (page + 1) * PAGE].tobytes()

    def write_page(self, state: str, page: int, data: bytes) -> None:
        """Restore a page."""
        rows = self._states[state].rows[:, page * PAGE : (page + 1) * PAGE]
        rows[:] = np.frombuffer(data, rows.dtype).reshape(rows.shape)

    def reserve(self, nbytes: int) -> int:
        """Grow the arena."""
        if nbytes > self._arena.size:
            self._arena = np.zeros(nbytes, np.uint8)
            self._generation += 1
        return self._generation

    def upload(self, offset: int, array: NDArray[np.generic]) -> None:
        """Copy into the arena."""
        self._arena[offset : offset + array.nbytes] = np.frombuffer(
            np.ascontiguousarray(array).tobytes(), np.uint8
        )

    def download(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> NDArray[np.generic]:
        """Copy out of the arena."""
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self._arena[offset : offset + count].view(dtype).reshape(shape).copy()

    def fetch(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> Callable[[], NDArray[np.generic]]:
        """Copy out of the arena at once."""
        found = self.download(offset, shape, dtype)
        return lambda: found

    def send(self, offset: int, array: NDArray[np.generic]) -> None:
        """Copy into the arena: no work is under way."""
        self.upload(offset, array)

    def compile(self, split: Split) -> Callable[[], None]:
        """Bind each node to its function and its views of the arena."""
        steps = [self._bind(split.graph.nodes[i], split) for i in split.nodes]

        def run() -> None:
            for step in steps:
                step()

        return run

    def timed(self, work: Callable[[], None]) -> float:
        """Run `work`; the seconds it took."""
        began = perf_counter()
        work()
        return perf_counter() - began

    def describe(self) -> str:
        """Which NumPy computes."""
        return f"NumPy {np.__version__}"

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back."""

    def close(self) -> None:
        """Drop everything."""
        self._weights.clear()
        self._states.clear()
        self._arena = np.zeros(0, np.uint8)

    def _view(self, node: Node, split: Split) -> Array:
        if not node.nbytes:
            return np.zeros(node.shape, np.int32)
        start = split.offsets[node.id]
        raw = self._arena[start : start + node.nbytes]
        return raw.view(NUMPY_TYPES[node.dtype]).reshape(node.shape)

    def _bind(self, node: Node, split: Split) -> Callable[[], None]:
        out = self._view(node, split)
        srcs = [self._view(split.graph.nodes[s], split) for s in node.srcs]
        weights = [self._weights[w] for w in node.weights]
        function = _OPS.get(node.op)
        if function is None:
            raise BackendError(f"no function for op {node.op!r}", where=node.name)

        def run() -> None:
            result = function(self, node, srcs, weights)
            if result is not None:
                out[...] = result

        return run

    def _attend(self, attrs: AttentionAttrs, srcs: Sequence[Array]) -> Array:
        q, positions, seqs, table = srcs[:4]
        state = self._states[attrs.state]
        out = np.zeros_like(q)
        for row, position in enumerate(positions.tolist()):
            if position < 0:
                continue
            keys = np.arange(position + 1)
            cells = table[seqs[row], keys // PAGE] * PAGE + keys % PAGE
            out[row] = ops.attention(
                q[row], state.read(0, cells), state.read(1, cells), position, attrs
            )
        return out

    def _store(self, attrs: KVStoreAttrs, srcs: Sequence[Array]) -> None:
        k, v, cells = srcs
        self._states[attrs.state].store(0, cells, k)
        self._states[attrs.state].store(1, cells, v)


def _norm(b: ReferenceBackend, n: Node, s: Sequence[Array], w: Sequence[Array]) -> Array:
    assert isinstance(n.attrs, NormAttrs)
    return ops.rms_norm(s[0], w[0], n.attrs.eps, *s[1:])


def _embed(b: ReferenceBackend, n: Node, s: Sequence[Array], w: Sequence[Array]) -> Array:
    assert isinstance(n.attrs, EmbedAttrs)
    return ops.embed(s[0], w[0], n.attrs.scale)


def _matmul(b: ReferenceBackend, n: Node, s: Sequence[Array], w: Sequence[Array]) -> Array:
    return ops.matmul(s[0], w[0], w[1] if len(w) > 1 else None, s[1] if len(s) > 1 else None)


def _rope(b: ReferenceBackend, n: Node, s: Sequence[Array], w: Sequence[Array]) -> Array:
    assert isinstance(n.attrs, RopeAttrs)
    return ops.rope(s[0], s[1], n.attrs.rope, n.attrs.head_dim)


def _store(b: ReferenceBackend, n: Node, s: Sequence[Array], w: Sequence[Array]) -> None:
    assert isinstance(n.attrs, KVStoreAttrs)
    b._store(n.attrs, s)


def _attention(b: ReferenceBackend, n: Node, s: Sequence[Array], w: Sequence[Array]) -> Array:
    assert isinstance(n.attrs, AttentionAttrs)
    return b._attend(n.attrs, s)


def _gated(b: ReferenceBackend, n: Node, s: Sequence[Array], w: Sequence[Array]) -> Array:
    assert isinstance(n.attrs, GatedAttrs)
    return ops.gated(s[0], s[1], n.attrs.act)


def _scale(b: ReferenceBackend, n: Node, s: Sequence[Array], w: Sequence[Array]) -> Array:
    assert isinstance(n.attrs, ScaleAttrs)
    return np.asarray(s[0] * np.float32(n.attrs.factor))


def _softcap(b: ReferenceBackend, n: Node, s: Sequence[Array], w: Sequence[Array]) -> Array:
    assert isinstance(n.attrs, SoftcapAttrs)
    return ops.softcap(s[0], n.attrs.cap)


_OPS: dict[
    str, Callable[[ReferenceBackend, Node, Sequence[Array], Sequence[Array]], Array | None]
] = {
    "embed": _embed,
    "matmul": _matmul,
    "rms_norm": _norm,
    "rope": _rope,
    "kv_store": _store,
    "attention": _attention,
    "gated": _gated,
    "add": lambda b, n, s, w: s[0] + s[1],
    "mul": lambda b, n, s, w: s[0] * s[1],
    "scale": _scale,
    "softcap": _softcap,
    "penalize": lambda b, n, s, w: ops.penalize(s[0], s[1], s[2], s[3], s[4]),
    "sample": lambda b, n, s, w: ops.sample(s[0], s[1]),
    "rows": lambda b, n, s, w: s[0][s[1]],
}
