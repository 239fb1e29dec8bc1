"""Attention and the KV cache on every backend: right, deaf to neighbours, padding and NaN."""

from __future__ import annotations

import numpy as np
import pytest
from attention_cases import Heads, Seq, attend, decode, expected, prefill
from backend_runner import BACKENDS, backend
from op_cases import relative_error

from minfer.dtypes import F16, F32, Q8_0
from minfer.graph import PAGE, KVSpec

pytestmark = pytest.mark.usefixtures("swept_kernels")

TOLERANCE = {F32: 1e-5, F16: 1e-3, Q8_0: 2e-2}

BATCHES = {
    "first": decode(0),
    "decode": decode(0, 1, 15, 16, 63, 64, 65, 127, 128, 300),
    "prefill": prefill((0, 1), (0, 70), (60, 9), (130, 33)),
    "mixed": (*decode(5, 200), *prefill((0, 20), (100, 3))),
}


def close(heads: Heads, seqs: tuple[Seq, ...], name: str) -> None:
    with backend(name) as on:
        got = attend(on, heads, seqs)
    for seq, rows in zip(seqs, got, strict=True):
        assert np.isfinite(rows).all(), seq
        assert relative_error(rows, expected(heads, seq)) <= TOLERANCE[heads.dtype], seq


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
def test_batches(name: str, dtype: object, batch: str) -> None:
    close(Heads(dtype=dtype), BATCHES[batch], name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32])
def test_heads_of_a_group(name: str, ratio: int) -> None:
    heads = Heads(n_heads=2 * ratio, n_kv_heads=2)
    close(heads, (*decode(70, 3), *prefill((30, 40))), name)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 112, 128, 192, 256])
def test_head_dims(name: str, dtype: object, head_dim: int) -> None:
    heads = Heads(6, 2, head_dim, dtype)  # type: ignore[arg-type]
    close(heads, (*decode(70), *prefill((30, 40))), name)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("window", [1, 16, 63, 64, 65, 200])
def test_windows(name: str, window: int) -> None:
    close(Heads(window=window), (*decode(0, 64, 150, 400), *prefill((0, 130), (190, 70))), name)


@pytest.mark.parametrize("name", BACKENDS)
def test_softcap(name: str) -> None:
    close(Heads(softcap=5.0, dtype=F32, size=3.0), (*decode(150), *prefill((10, 70))), name)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_scores_in_the_hundred_thousands(name: str, dtype: object) -> None:
    """q and k up to 300 and more: q.k leaves the range of f16, and nearly one-hot weights."""
    heads = Heads(dtype=dtype, size=100.0)  # type: ignore[arg-type]
    seqs = (*decode(150), *prefill((10, 70)))
    with backend(name) as on:
        got = attend(on, heads, seqs)
    for seq, rows in zip(seqs, got, strict=True):
        assert np.isfinite(rows).all()
        assert relative_error(rows, expected(heads, seq)) <= 2e-2


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_row_does_not_depend_on_its_batch(name: str, dtype: object) -> None:
    """Bit for bit: alone or among others, wherever its pages lie."""
    heads = Heads(dtype=dtype, window=100)  # type: ignore[arg-type]
    seqs = (*decode(5, 200, 130), *prefill((0, 20), (100, 33)))
    with backend(name) as on:
        together = attend(on, heads, seqs)
    for seq, rows in zip(seqs, together, strict=True):
        with backend(name) as on:
            (alone,) = attend(on, heads, (seq,), shuffle=seq.key + 1)
        np.testing.assert_array_equal(rows, alone)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_row_does_not_depend_on_the_chunk_of_its_prompt(name: str, dtype: object) -> None:
    heads = Heads(dtype=dtype)  # type: ignore[arg-type]
    with backend(name) as on:
        (whole,) = attend(on, heads, (Seq(0, 150, False, 7),))
    for past in (1, 63, 64, 100, 149):
        with backend(name) as on:
            (rest,) = attend(on, heads, (Seq(past, 150 - past, False, 7),))
        np.testing.assert_array_equal(rest, whole[past:])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_pages_can_be_copied_saved_and_restored(name: str, dtype: object) -> None:
    heads = Heads(dtype=dtype)  # type: ignore[arg-type]
    with backend(name) as on:
        attend(on, heads, decode(63))
        pages = {on.read_page("kv", page) for page in range(3)}
        (used,) = (page for page in range(3) if len(set(on.read_page("kv", page))) > 2)
        kept = on.read_page("kv", used)
        assert len(pages) == 2  # the used one, and poison
        other = (used + 1) % 3
        on.copy_pages([(used, other)])
        assert on.read_page("kv", other) == kept
        blank = bytes(len(kept))
        on.write_page("kv", used, blank)
        assert on.read_page("kv", used) == blank
        assert on.read_page("kv", other) == kept


@pytest.mark.parametrize("name", BACKENDS)
def test_a_smaller_type_takes_less_memory(name: str) -> None:
    with backend(name) as on:
        taken = [on.add_state(KVSpec(f"kv.{dtype}", 2, 64, dtype, 4)) for dtype in (F32, F16, Q8_0)]
    assert taken[0] == 4 * PAGE * 2 * 64 * 2 * 4
    assert taken[1] == taken[0] // 2
    assert taken[2] == taken[0] * 34 // 128
