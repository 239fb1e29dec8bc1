"""A table that is multiplied, too: resident once, and its rows those of the dequantizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend_runner import weight

from minfer.backends import Split, Weight
from minfer.backends.cuda.ops.base import raw_key
from minfer.backends.cuda.ops.matmul_pack import Group
from minfer.dtypes import F32, WEIGHT_TYPES, DType
from minfer.graph import GraphBuilder

pytest_plugins = ["cuda_fixtures"]
pytestmark = pytest.mark.cuda

WIDTH, VOCABULARY = 1280, 53
IDS = np.array([*range(VOCABULARY), -1, VOCABULARY, 3], np.int32)
"""Every row, and ids of padded rows, that may be anything."""


def rows(gpu: Any, table: Weight, *, tied: bool) -> np.ndarray:
    """The rows of `IDS`, alone of a plan that multiplies the table, too, if it is tied."""
    b = GraphBuilder({"table": table.spec}, {})
    ids = b.input("ids", IDS.shape)
    x = b.embed(ids, "table", "x", 33.4)
    logits = b.matmul(x, "table", "logits", len(IDS))
    for node in (logits, x) if tied else (x,):
        gpu.load(node, {"table": table})
    gpu.reserve(256 + x.nbytes)
    gpu.upload(0, IDS)
    gpu.upload(256, np.full(x.shape, np.nan, np.float32))
    gpu.compile(Split(b.build(x), (x.id,), {ids.id: 0, x.id: 256}))()
    found: np.ndarray = gpu.download(256, x.shape, np.dtype(np.float32))
    return found


def table_of(dtype: DType, spread: float = 0.0) -> Weight:
    """Rows of normal numbers; blocks of 256 of them up to 2^-`spread` smaller than others."""
    rng = np.random.default_rng(3)
    size = 2.0 ** -rng.uniform(0, spread, (VOCABULARY, WIDTH // 256, 1))
    values = rng.standard_normal((VOCABULARY, WIDTH // 256, 256)) * size * 0.02
    return weight("table", values.reshape(VOCABULARY, WIDTH), dtype)


LOST = {"f16": 2.0**-24, "bf16": 2.0**-24, "q4_1": 2.0**-17, "q5_1": 2.0**-17}
"""What a packed weight may be off by, of the largest in its row: it, or its block's minimum, is a
subnormal half. Of the other types nothing is lost."""


@pytest.mark.parametrize("spread", [0.0, 12.0])
@pytest.mark.parametrize("dtype", WEIGHT_TYPES, ids=lambda t: t.name)
def test_a_packed_table_gives_what_the_file_has(make_gpu: Any, dtype: DType, spread: float) -> None:
    table = table_of(dtype, spread)
    packed, plain = make_gpu(), make_gpu()
    found, right = rows(packed, table, tied=True), rows(plain, table, tied=False)
    largest = np.abs(right).max(1, keepdims=True)
    assert (np.abs(found - right) <= largest * LOST.get(dtype.name, 0.0)).all()
    if dtype.name not in LOST or (dtype.is_quantized and not spread):
        np.testing.assert_array_equal(found.view(np.uint32), right.view(np.uint32))
    assert not found[VOCABULARY : VOCABULARY + 2].any()


@pytest.mark.parametrize("dtype", WEIGHT_TYPES, ids=lambda t: t.name)
def test_a_tied_table_is_resident_once(gpu: Any, dtype: DType) -> None:
    table = table_of(dtype)
    rows(gpu, table, tied=True)
    packed = Group(("table",), (table.spec,))
    store = gpu._store
    assert packed.key in store
    assert (raw_key("table") in store) == (dtype is F32)  # whose halves would lose bits
    nbytes = packed.nbytes + table.data.nbytes * (dtype is F32)
    assert store.nbytes == nbytes
    rows(gpu, table, tied=False)  # a plan without the product finds it, too
    assert store.nbytes == nbytes
