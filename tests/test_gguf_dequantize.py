"""`dequantize` of every type against the `gguf` package, bit for bit, on random bytes."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as reference

from minfer.dtypes import BY_NAME, WEIGHT_TYPES, DType
from minfer.errors import UnsupportedError
from minfer.gguf import dequantize

TYPES = [pytest.param(t, id=t.name) for t in WEIGHT_TYPES]


def random_bytes(dtype: DType, n_blocks: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, n_blocks * dtype.block_bytes, np.uint8)


@pytest.mark.parametrize("dtype", TYPES)
def test_bit_for_bit(dtype: DType) -> None:
    data = random_bytes(dtype, 3000)
    with np.errstate(all="ignore"):
        expected = reference(data, GGMLQuantizationType(dtype.gguf_id))
    found = dequantize(data, dtype)
    assert found.dtype == np.float32
    # Random scales include infinities and NaNs, whose products may differ in sign bits only.
    nans = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nans)
    np.testing.assert_array_equal(
        found[~nans].view(np.uint32), expected.astype(np.float32)[~nans].view(np.uint32)
    )


@pytest.mark.parametrize("dtype", TYPES)
def test_leading_axes_are_kept(dtype: DType) -> None:
    data = random_bytes(dtype, 6).reshape(3, -1)
    found = dequantize(data, dtype)
    assert found.shape == (3, 2 * dtype.block_items)
    np.testing.assert_array_equal(found.ravel(), dequantize(data.ravel(), dtype))


def test_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"iq1_s.*Supported types are .*q4_K"):
        dequantize(np.zeros(50, np.uint8), BY_NAME["iq1_s"])


def test_partial_block_is_refused() -> None:
    with pytest.raises(ValueError, match="17 bytes are not whole q4_0 blocks"):
        dequantize(np.zeros(17, np.uint8), BY_NAME["q4_0"])
