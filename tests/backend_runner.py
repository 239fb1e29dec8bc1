"""Running a graph on one backend without a scheduler: every value gets memory of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from minfer.backends import ALIGNMENT, Backend, Split, Weight, create_backend
from minfer.dtypes import F32, I32, DType
from minfer.errors import BackendError
from minfer.gguf import quantize
from minfer.graph import Graph, KVSpec, WeightSpec
from minfer.settings import Settings

Array = NDArray[Any]
NUMPY = {F32: np.dtype(np.float32), I32: np.dtype(np.int32)}

BACKENDS = [
    pytest.param("reference", id="reference"),
    *(pytest.param(f"cpu-{isa}", id=f"cpu-{isa}") for isa in ("scalar", "avx2", "avx512", "neon")),
    pytest.param("cuda", id="cuda", marks=pytest.mark.cuda),
]
"""Everything that runs the table of op cases."""


def open_backend(name: str, threads: int = 2) -> Backend:
    """A backend by its name in `BACKENDS`; skips the test, with the reason, where there is none."""
    kind, _, isa = name.partition("-")
    if kind == "cpu":
        from minfer.backends.cpu import available_isas

        if isa not in available_isas():
            pytest.skip(f"this processor has no {isa}")
        return create_backend(kind, Settings(cpu_isa=isa, threads=threads))
    try:
        return create_backend(kind, Settings())
    except BackendError as error:
        if kind != "cuda":
            raise
        pytest.skip(str(error))


@contextmanager
def backend(name: str, threads: int = 2) -> Iterator[Backend]:
    opened = open_backend(name, threads)
    try:
        yield opened
    finally:
        opened.close()


def weight(name: str, values: Array, dtype: DType) -> Weight:
    """A weight as a file would hold it; `values` are [n_out, n_in] or [n]."""
    data = quantize(np.ascontiguousarray(values, np.float32), dtype).reshape(-1)
    return Weight(name, WeightSpec(dtype, values.shape[::-1]), data)


def run(
    on: Backend, graph: Graph, inputs: Mapping[str, Array], weights: Mapping[str, Weight]
) -> list[Array]:
    """The outputs of a graph that hold something; skips the test if the backend lacks a node."""
    offsets: dict[int, int] = {}
    end = 0
    for node in sorted(graph.nodes, key=lambda n: n.op != "input"):
        if node.nbytes:
            offsets[node.id] = end
            end += -(-node.nbytes // ALIGNMENT) * ALIGNMENT
    nodes = [n for n in graph.nodes if n.op != "input"]
    for node in nodes:
        reason = on.supports(node, graph)
        if reason:
            pytest.skip(reason)
    for node in reversed(nodes):
        on.load(node, weights)
    on.reserve(end)
    for name, node in graph.inputs.items():
        value = np.ascontiguousarray(inputs[name], NUMPY[node.dtype])
        assert value.shape == node.shape, name
        on.upload(offsets[node.id], value)
    # What no kernel writes must not be mistaken for a result.
    for node in nodes:
        if node.nbytes and node.dtype is F32:
            on.upload(offsets[node.id], np.full(node.shape, np.nan, np.float32))
    on.compile(Split(graph, tuple(n.id for n in nodes), offsets))()
    on.synchronize()
    return [
        np.asarray(on.download(offsets[i], graph.nodes[i].shape, NUMPY[graph.nodes[i].dtype]))
        for i in graph.outputs
        if graph.nodes[i].nbytes
    ]


def poison(on: Backend, spec: KVSpec) -> None:
    """Fill a state with bytes that are NaN in every float type, so that leaks show."""
    for page in range(spec.n_pages):
        on.write_page(spec.name, page, b"\xff" * len(on.read_page(spec.name, page)))
