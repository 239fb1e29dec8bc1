"""Launches as data: arguments become exactly what a kernel's signature says, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.backends.cuda.launch import (
    LETTERS,
    Launch,
    check_geometry,
    convert_args,
    kernel,
    units,
)
from minfer.errors import BackendError


def launch(signature: str, *args: Any, **options: Any) -> Launch:
    made = kernel("ops/rows.cu", "rows", signature, B=2, A=1)
    return Launch(made, options.pop("grid", (1, 1, 1)), options.pop("block", 32), args, **options)


def test_every_letter_converts_to_its_own_size() -> None:
    args = convert_args(launch("p i u l f", 1 << 40, -3, 7, -(1 << 40), 0.1))
    assert args[0] == 1 << 40
    assert isinstance(args[0], int)  # the bindings pass an int as a pointer
    assert [a.nbytes for a in args[1:]] == [LETTERS[x][1] for x in "iulf"]
    assert args[4] == np.float32(0.1)


@given(st.integers(-(2**70), 2**70))
def test_integers_out_of_range_are_refused(value: int) -> None:
    for letter, low, high in (("i", -(2**31), 2**31), ("u", 0, 2**32), ("p", 0, 2**64)):
        if low <= value < high:
            assert int(convert_args(launch(letter, value))[0]) == value
        else:
            with pytest.raises(BackendError, match="overflows"):
                convert_args(launch(letter, value))


@pytest.mark.parametrize(
    ("signature", "args"), [("p p", (1,)), ("i", (1, 2)), ("", (1,)), ("p i f", ())]
)
def test_a_wrong_count_is_refused(signature: str, args: tuple[int, ...]) -> None:
    with pytest.raises(BackendError, match="arguments for the"):
        convert_args(launch(signature, *args))


@pytest.mark.parametrize(
    ("letter", "value"), [("i", 1.5), ("p", None), ("f", "1"), ("i", True), ("p", b"1")]
)
def test_a_wrong_kind_is_refused(letter: str, value: Any) -> None:
    with pytest.raises(BackendError, match=r"ops/rows\.cu rows"):
        convert_args(launch(letter, value))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": (0, 1, 1)}, "grid"),
        ({"grid": (1, 70000, 1)}, "grid"),
        ({"block": 1025}, "1025 threads"),
        ({"shared": 100_001}, "100001 bytes"),
        ({"grid": (3, 1, 1), "cluster": 2}, "clusters of 2"),
    ],
)
def test_geometry_that_no_device_takes_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        check_geometry(launch("", **options), 100_000)


def test_kernels_of_one_source_share_a_unit() -> None:
    one = kernel("ops/rms_norm.cu", "rms_norm", "p", WIDTH=64, THREADS=128)
    two = kernel("ops/rms_norm.cu", "head_norm", "p p", THREADS=128, WIDTH=64)
    other = kernel("ops/rms_norm.cu", "rms_norm", "p", WIDTH=128, THREADS=128)
    launches = [Launch(k, (1, 1, 1), 32, ()) for k in (one, two, other, one)]
    assert units(launches) == [one.unit, other.unit]
    assert one.sizes == (8,)
