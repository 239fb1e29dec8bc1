"""The CPU backend's matrix products: every weight type from raw blocks, on every instruction set.

The table of op cases covers shapes, norms, biases and residuals; here are the numbers: codes and
scales a quantizer never makes, the largest sums, bad inputs, outliers, ragged sizes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from backend_runner import backend, run
from numpy.typing import NDArray

from minfer.backends import Weight
from minfer.backends.cpu import available_isas
from minfer.dtypes import BY_NAME, F32, WEIGHT_TYPES, DType
from minfer.gguf import dequantize
from minfer.graph import Graph, GraphBuilder, MatMulAttrs, WeightSpec

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

ISAS = [pytest.param(f"cpu-{isa}", id=isa) for isa in available_isas()]
TYPES = [pytest.param(t, id=t.name) for t in WEIGHT_TYPES]
QUANTIZED = [pytest.param(t, id=t.name) for t in WEIGHT_TYPES if t.is_quantized]

HALVES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q2_K": (80, 82),
    "q3_K": (108,), "q4_K": (0, 2), "q5_K": (0, 2), "q6_K": (208,), "iq4_nl": (0,), "iq4_xs": (0,),
}  # fmt: skip
"""Offsets of the f16 factors within a block."""

# Relative to the root mean square of the results. 16-bit activations: half a step in 32,500 of the
# row's largest input, over the root of its mean square. 8-bit ones: half a step in 127 likewise.
EXACT, MANY, PLAIN = 4e-4, 4e-2, 1e-5


def rng(*key: object) -> np.random.Generator:
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def raw_weight(dtype: DType, n_in: int, n_out: int, fill: int | None = None) -> Weight:
    """Blocks of random bytes (or of bytes `fill`), with factors of either sign around 1/50."""
    r = rng(dtype.name, n_in, n_out)
    if not dtype.is_quantized:
        values = r.standard_normal((n_out, n_in)).astype(np.float32)
        bits = {"f32": values, "f16": values.astype(np.float16)}.get(
            dtype.name, (values.view(np.uint32) >> 16).astype(np.uint16)
        )
        data = np.ascontiguousarray(bits).view(np.uint8)
    else:
        shape = (n_out, n_in // dtype.block_items)
        data = r.integers(0, 256, (*shape, dtype.block_bytes), dtype=np.uint8)
        if fill is not None:
            data[:] = fill
        for at in HALVES.get(dtype.name, ()):
            factors = r.uniform(0.01, 0.03, (*shape, 1)) * r.choice((-1, 1), (*shape, 1))
            data[..., at : at + 2] = factors.astype(np.float16).view(np.uint8)
        if dtype.name == "mxfp4":
            data[..., 0] = r.integers(118, 124, shape)
    return Weight("w", WeightSpec(dtype, (n_in, n_out)), data.reshape(-1))


def truth(weight: Weight) -> Array:
    return (
        dequantize(weight.data, weight.spec.dtype)
        .reshape(weight.spec.shape[::-1])
        .astype(np.float64)
    )


def graph(weight: Weight, singles: int, rows: int) -> Graph:
    b = GraphBuilder({"w": weight.spec}, {})
    x = b.input("x", (rows, weight.spec.shape[0]), F32)
    return b.build(b.node("matmul", (x,), MatMulAttrs(singles), "y", ("w",)))


def product(name: str, weight: Weight, x: Array, singles: int) -> Array:
    with backend(name) as on:
        (got,) = run(on, graph(weight, singles, len(x)), {"x": x}, {"w": weight})
    return got


def error(got: Array, expected: Array) -> float:
    """Largest difference, over the root mean square of what is expected."""
    return float(np.abs(got - expected).max() / np.sqrt(np.square(expected).mean()))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
def test_raw_blocks(name: str, dtype: DType) -> None:
    weight = raw_weight(dtype, 512, 100)
    x = rng("x").standard_normal((45, 512)).astype(np.float32)
    expected = x @ truth(weight).T
    got = product(name, weight, x, singles=8)
    plain = not dtype.is_quantized
    assert error(got[:8], expected[:8]) < (PLAIN if plain else EXACT)
    assert error(got[8:], expected[8:]) < (PLAIN if plain else MANY)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF])
def test_largest_sums(name: str, dtype: DType, fill: int) -> None:
    """Nothing saturates: all codes at an end of their range, all inputs at an end of theirs."""
    weight = raw_weight(dtype, 512, 33, fill)
    x = np.ones((10, 512), np.float32)
    x[1::2] = -1
    x[2::4, ::2] *= -1
    expected = x @ truth(weight).T
    scale = np.abs(x) @ np.abs(truth(weight)).T
    got = product(name, weight, x, singles=5)
    assert np.abs(got - expected).max() <= 1e-3 * scale.max() + 1e-30


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_input_is_not_hidden(name: str, dtype: DType, bad: float) -> None:
    weight = raw_weight(dtype, 256, 32)
    x = rng("bad").standard_normal((12, 256)).astype(np.float32)
    x[2, 200] = x[9, 200] = bad
    finite = np.isfinite(product(name, weight, x, singles=5))
    hit = np.isin(np.arange(12), (2, 9))
    assert finite[~hit].all()
    # A weight of exactly zero leaves an infinity out in the reference too, as NaN.
    assert not finite[hit].any()


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_of_zeros_and_of_tiny_numbers(name: str, dtype: DType) -> None:
    weight = raw_weight(dtype, 256, 32)
    x = rng("tiny").standard_normal((12, 256)).astype(np.float32) * np.float32(1e-30)
    x[[3, 7]] = 0
    got = product(name, weight, x, singles=6)
    assert not got[[3, 7]].any()
    assert error(got, x @ truth(weight).T) < MANY


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", QUANTIZED)
def test_outliers_stay_local(name: str, dtype: DType) -> None:
    """One huge input costs the others of its row little: their error is far below plain 8 bits'."""
    weight = raw_weight(dtype, 1024, 64)
    x = rng("outlier").standard_normal((8, 1024)).astype(np.float32)
    x[:, 100] = 300
    w = truth(weight)
    got = product(name, weight, x, singles=0)
    difference = np.sqrt(np.square(got - x @ w.T).mean())
    # 8 bits with one scale for 32 inputs: steps of 300 / 127 in the block of the outlier.
    plain = 300 / 127 / np.sqrt(12) * np.sqrt(np.square(w[:, 96:128]).sum(1).mean())
    assert difference < 0.8 * plain


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("n_out", [1, 7, 15, 16, 17, 31, 33, 48])
@pytest.mark.parametrize("dtype", ["f16", "q4_0", "q5_1", "q8_0", "mxfp4"])
def test_ragged_sizes(name: str, dtype: str, n_out: int) -> None:
    weight = raw_weight(BY_NAME[dtype], 96, n_out)
    x = rng("ragged").standard_normal((23, 96)).astype(np.float32)
    got = product(name, weight, x, singles=9)
    assert error(got, x @ truth(weight).T) < MANY


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("n_in", [1, 15, 40, 101])
def test_plain_numbers_have_no_blocks(name: str, n_in: int) -> None:
    for dtype in ("f32", "f16", "bf16"):
        weight = raw_weight(BY_NAME[dtype], n_in, 20)
        x = rng("plain").standard_normal((11, n_in)).astype(np.float32)
        assert error(product(name, weight, x, singles=4), x @ truth(weight).T) < PLAIN


@pytest.mark.parametrize("dtype", TYPES)
def test_packing_keeps_the_size(dtype: DType) -> None:
    with backend(f"cpu-{available_isas()[0]}") as on:
        weight = raw_weight(dtype, 512, 160)
        taken = on.load(graph(weight, 1, 1).nodes[1], {"w": weight})
    assert taken <= 1.04 * weight.data.nbytes + 64
