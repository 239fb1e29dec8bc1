"""`quantize` of every type: byte for byte what llama-quantize writes, and sensible at the edges.

`quantize.json` holds, for each type, the first 16 hexadecimal digits of the SHA-256 of every
tensor that llama-quantize wrote from two of the tiny models. `quantize_odd.json` holds the same
digits for `odd_inputs` below, made with ggml's `ggml_quantize_chunk`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minfer.dtypes import BY_NAME, TYPES, WEIGHT_TYPES, DType
from minfer.errors import FormatError, UnsupportedError
from minfer.gguf import dequantize, open_gguf, quantize

DATA = Path(__file__).parent / "data"
QUANTIZED = [t for t in WEIGHT_TYPES if t.is_quantized]
BY_UPPER = {t.name.upper(): t for t in WEIGHT_TYPES}

# The error of a normal variable that each type may leave, as a share of its deviation.
RELATIVE_ERROR = {
    "f32": 0.0,
    "f16": 3e-4,
    "bf16": 2e-3,
    "q8_0": 0.007,
    "q6_K": 0.02,
    "q5_0": 0.06,
    "q5_1": 0.05,
    "q5_K": 0.04,
    "q4_0": 0.11,
    "q4_1": 0.09,
    "q4_K": 0.08,
    "iq4_nl": 0.08,
    "iq4_xs": 0.08,
    "mxfp4": 0.13,
    "q3_K": 0.17,
    "q2_K": 0.32,
}


def digits(data: np.ndarray) -> str:
    return hashlib.sha256(data.tobytes()).hexdigest()[:16]


def parametrized(types: tuple[DType, ...] | list[DType]) -> list[object]:
    return [pytest.param(t, id=t.name) for t in types]


def odd_inputs() -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """Values and importance that reach the corners of the searches; integers make them exact."""
    rng = np.random.default_rng(20)
    whole = rng.integers(-500, 501, (16, 1024)).astype(np.float32)
    heavy = whole**3 * np.float32(2**-24)
    rare = np.where(rng.integers(0, 20, whole.shape) == 0, heavy, np.float32(0))
    uneven = whole * np.exp2(rng.integers(-30, 6, (16, 64))).repeat(16, axis=1).astype(np.float32)
    some = rng.integers(0, 1000, 1024).astype(np.float32)
    gaps = some * rng.integers(0, 2, 1024).astype(np.float32)
    inputs = {
        "whole": np.rint(whole / 100),
        "heavy": heavy,
        "rare": rare,
        "uneven": uneven,
        "zero": np.zeros_like(whole),
        "equal": np.broadcast_to(whole[:, :1], whole.shape),
        "negative": -np.abs(whole) - 100,
        "positive": np.abs(whole) + 100,
        "tiny": whole * np.float32(2**-60),
    }
    for name, values in inputs.items():
        for kind, importance in {"none": None, "some": some, "gaps": gaps}.items():
            yield f"{name}-{kind}", np.ascontiguousarray(values, np.float32), importance


@pytest.mark.parametrize("dtype", parametrized(WEIGHT_TYPES))
def test_equals_llama_quantize(dtype: DType) -> None:
    expected: dict[tuple[str, str], str] = {}
    for file, tensors in json.loads((DATA / "quantize.json").read_text()).items():
        model = "tiny-llama" if file.startswith("tiny-llama") else "tiny-qwen2"
        for name, (kind, value) in tensors.items():
            if BY_UPPER.get(kind) is dtype:
                expected[model, name] = value
    assert expected
    for model in ("tiny-llama", "tiny-qwen2"):
        with open_gguf(DATA / "models" / f"{model}.gguf") as source:
            for name, tensor in source.tensors.items():
                if (model, name) in expected:
                    values = dequantize(tensor.data, tensor.dtype).reshape(tensor.rows, -1)
                    assert digits(quantize(values, dtype)) == expected[model, name], name


@pytest.mark.parametrize("dtype", parametrized(QUANTIZED))
def test_equals_ggml_on_odd_inputs(dtype: DType) -> None:
    expected = json.loads((DATA / "quantize_odd.json").read_text())[dtype.name]
    found = {name: digits(quantize(x, dtype, imp)) for name, x, imp in odd_inputs()}
    assert found == expected


@pytest.mark.parametrize("dtype", parametrized(WEIGHT_TYPES))
def test_error_is_that_of_the_width(dtype: DType) -> None:
    x = np.random.default_rng(1).standard_normal((64, 1024)).astype(np.float32)
    error = dequantize(quantize(x, dtype), dtype) - x
    assert float(np.sqrt((error**2).mean())) <= RELATIVE_ERROR[dtype.name]


@pytest.mark.parametrize("dtype", parametrized(QUANTIZED))
def test_importance_lowers_the_error_where_it_is(dtype: DType) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((64, 1024)).astype(np.float32)
    importance = np.exp(3 * rng.standard_normal(1024)).astype(np.float32)

    def weighted(data: np.ndarray) -> float:
        return float((importance * (dequantize(data, dtype) - x) ** 2).mean())

    with_it, without = quantize(x, dtype, importance), quantize(x, dtype)
    if dtype.name in ("q8_0", "mxfp4"):  # no search that it could guide
        np.testing.assert_array_equal(with_it, without)
    else:
        assert weighted(with_it) < 0.97 * weighted(without)


@settings(max_examples=25, deadline=None)
@given(
    arrays(
        np.float32,
        (2, 256),
        elements=st.floats(-1000, 1000, width=32),
        fill=st.sampled_from([0.0, -0.0, 1.0, 1e-30]),
    )
)
def test_any_finite_values_give_finite_values_near(x: np.ndarray) -> None:
    for dtype in QUANTIZED:
        back = dequantize(quantize(x, dtype), dtype)
        assert np.isfinite(back).all()
        assert np.abs(back - x).max() <= 1.2 * np.abs(x).max()


@pytest.mark.parametrize("dtype", parametrized(WEIGHT_TYPES))
def test_leading_axes_are_kept(dtype: DType) -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 512)).astype(np.float32)
    data = quantize(x, dtype)
    assert data.shape == (2, 3, dtype.nbytes(512))
    np.testing.assert_array_equal(data[1, 2], quantize(x[1, 2], dtype))


def test_chunks_join() -> None:
    x = np.random.default_rng(4).standard_normal((300, 256)).astype(np.float32)
    whole = quantize(x, BY_NAME["q4_K"])
    rows = [quantize(row, BY_NAME["q4_K"]) for row in x[:3]] + [quantize(x[3:], BY_NAME["q4_K"])]
    np.testing.assert_array_equal(whole, np.vstack(rows))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    x = np.zeros(256, np.float32)
    x[7] = bad
    for dtype in WEIGHT_TYPES:
        with pytest.raises(FormatError, match=rf"quantize to {dtype}\] a value is infinite or not"):
            quantize(x, dtype)


def test_scales_beyond_half_precision_are_refused() -> None:
    with pytest.raises(FormatError, match="exceeds the 65504 of half precision"):
        quantize(np.full(256, 3e7, np.float32), BY_NAME["q8_0"])


def test_types_without_a_quantizer_are_refused_by_name() -> None:
    for dtype in TYPES:
        if dtype not in WEIGHT_TYPES:
            with pytest.raises(UnsupportedError, match=f"type {dtype} .*Supported types are"):
                quantize(np.zeros(256, np.float32), dtype)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="48 values are not whole q4_0 blocks"):
        quantize(np.zeros(48, np.float32), BY_NAME["q4_0"])
    with pytest.raises(ValueError, match=r"importance of shape \(32,\) for rows of 64"):
        quantize(np.zeros(64, np.float32), BY_NAME["q4_0"], np.ones(32, np.float32))
