"""Attention and the KV cache by the CUDA kernels, emulated: pages, windows, both sorts of rows.

Cases and tolerances are those that every backend is held to. Everything runs by both schedules of
the emulator and must give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from attention_cases import Heads, Seq, attend, decode, expected, prefill
from cuda_layers import layer
from cuda_lowering import lower
from emulated import AMPERE, HOPPER, emulated_backend, emulator, reason_against
from op_cases import Array, relative_error
from test_backend_attention import BATCHES, TOLERANCE

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Launch
from minfer.backends.cuda.ops.attention_prefill import HOPPER_STAGES
from minfer.dtypes import F16, F32, Q8_0, DType

REASON = reason_against()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

HEAD_DIMS = (16, 80, 128, 256)
cards = pytest.mark.parametrize("card", [HOPPER, AMPERE], ids=["hopper", "ampere"])
# rows over an f32 cache run by the same kernel on every card, and q8_0 ones over halves made of it
caches = pytest.mark.parametrize(
    ("card", "dtype"),
    [(HOPPER, F32), (HOPPER, F16), (HOPPER, Q8_0), (AMPERE, F16)],
    ids=["hopper-f32", "hopper-f16", "hopper-q8_0", "ampere-f16"],
)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Most of the kernels, compiled together."""
    for card, dtypes in ((HOPPER, (F32, F16, Q8_0)), (AMPERE, (F16,))):
        launches: list[Launch] = []
        for head_dim, dtype in product((64, *HEAD_DIMS), dtypes):
            for rows, single in ((4, 4), (70, 0)):
                launches += lower(layer(head_dim, str(dtype), rows, single, 6, 2), card)
        kernels = (launch.kernel for launch in launches)
        emulator(card).prepare(k for k in kernels if k.name not in ("rms_norm", "rope"))


def both(card: Facts, heads: Heads, seqs: tuple[Seq, ...], shuffle: int = 0) -> Iterator[Array]:
    """The rows of every sequence, the same by both schedules."""
    early, late = (
        attend(emulated_backend(card, late), heads, seqs, shuffle) for late in (False, True)
    )
    for one, other in zip(early, late, strict=True):
        np.testing.assert_array_equal(one, other)
        yield one


def close(card: Facts, heads: Heads, seqs: tuple[Seq, ...]) -> None:
    for seq, rows in zip(seqs, both(card, heads, seqs), strict=True):
        assert np.isfinite(rows).all(), seq
        assert relative_error(rows, expected(heads, seq)) <= TOLERANCE[heads.dtype], seq


@caches
@pytest.mark.parametrize("batch", BATCHES)
def test_batches(card: Facts, dtype: DType, batch: str) -> None:
    close(card, Heads(dtype=dtype), BATCHES[batch])


@cards
@pytest.mark.parametrize("ratio", [1, 12, 32])
def test_heads_of_a_group(card: Facts, ratio: int) -> None:
    close(card, Heads(2 * ratio, 2), (*decode(70, 3), *prefill((30, 40))))


@caches
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_dims(card: Facts, dtype: DType, head_dim: int) -> None:
    close(card, Heads(6, 2, head_dim, dtype), (*decode(70), *prefill((30, 40))))


@cards
@pytest.mark.parametrize("window", [1, 63, 64, 200])
def test_windows(card: Facts, window: int) -> None:
    seqs = (*decode(0, 64, 150, 400), *prefill((0, 130), (190, 70)))
    close(card, Heads(window=window), seqs)


@pytest.mark.parametrize("window", [0, 150])
@pytest.mark.parametrize("head_dim", HOPPER_STAGES)
def test_runs_of_many_steps(head_dim: int, window: int) -> None:
    """Several runs in a tile, each of some steps of 64 or 128 keys, which end within one or not."""
    seqs = prefill((255, 1), (380, 9), (0, 3), (500, 30), (126, 2))
    close(HOPPER, Heads(6, 2, head_dim, window=window), seqs)


def test_softcap() -> None:
    close(HOPPER, Heads(softcap=5.0, dtype=F32, size=3.0), (*decode(150), *prefill((10, 70))))


@caches
def test_a_row_does_not_depend_on_its_batch(card: Facts, dtype: DType) -> None:
    """Bit for bit: alone or among others, wherever its pages lie."""
    heads = Heads(dtype=dtype, window=100)
    seqs = (*decode(5, 200, 130), *prefill((0, 20), (100, 33)))
    for seq, rows in zip(seqs, both(card, heads, seqs), strict=True):
        (alone,) = both(card, heads, (seq,), shuffle=seq.key + 1)
        np.testing.assert_array_equal(rows, alone)


def test_many_parts_are_combined() -> None:
    """Rows so long that several blocks share one, and the last to arrive adds their parts."""
    close(HOPPER, Heads(4, 2), decode(600, 639, 511))
    close(HOPPER, Heads(2, 1), decode(4200))  # more than are asked for at once
