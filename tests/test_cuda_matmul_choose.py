"""Choices of matmul kernels and the sizes of packed weights: pure functions, no GPU."""

from __future__ import annotations

import pytest

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.ops import matmul_choose as choose
from minfer.backends.cuda.ops import matmul_pack
from minfer.backends.cuda.ops.base import COUNTERS_BYTES
from minfer.backends.cuda.ops.matmul_pack import FORMATS, Group
from minfer.dtypes import BY_NAME, WEIGHT_TYPES, DType
from minfer.graph import WeightSpec

H200 = Facts("H200", (9, 0), 132, 232448, 60 << 20, 140 << 30)
STATIC = 2048
"""Bytes of shared memory that are not part of a launch, more than any kernel of prompts has."""
SMALL = Facts("RTX", (8, 6), 82, 101376, 6 << 20, 24 << 30)
SHAPES = ((3584, 4608), (18944, 3584), (3584, 152064), (576, 192))


def group(dtype: DType, n_cols: int, n_rows: int, paired: bool = False) -> Group:
    spec = WeightSpec(dtype, (n_cols, n_rows))
    return Group(("a", "b"), (spec, spec), True) if paired else Group(("a",), (spec,))


def test_every_weight_type_has_a_format() -> None:
    assert set(FORMATS) == {t.name for t in WEIGHT_TYPES}


@pytest.mark.parametrize("dtype", WEIGHT_TYPES, ids=str)
def test_packed_bytes(dtype: DType) -> None:
    """Packing adds little to the file's bytes, and plain types become halves."""
    packed = group(dtype, 4096, 4096)
    stored = dtype.nbytes(4096 * 4096) if dtype.is_quantized else 2 * 4096 * 4096
    assert stored <= packed.nbytes < 1.07 * stored
    assert FORMATS[dtype.name].nbytes % 16 == 0


@pytest.mark.parametrize("facts", [H200, SMALL], ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", WEIGHT_TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_geometries_fit_and_cover(facts: Facts, dtype: DType, shape: tuple[int, int]) -> None:
    n_cols, n_rows = shape
    if n_cols % dtype.block_items:
        pytest.skip("rows of this width cannot have this type")
    made = group(dtype, n_cols, n_rows)
    ranks = set()
    for rows in (1, 2, 5, 8, 9, 33, 64, 100):
        kernel = choose.single_rows_kernel(made, rows, facts)
        if kernel == "matmul_vec":
            one = choose.vec(made, facts)
            assert rows == 1 and one.shared <= facts.shared_limit
            assert 0 < one.grid <= min(facts.n_sms, made.n_tiles) and one.warps < 32
            continue
        if kernel == "matmul_batch_sm90":
            check_hopper_batch(choose.hopper_batch(made, rows, facts), rows, made, facts)
            continue
        if kernel == "matmul_many_sm90":
            tiles = choose.many_singles(made, rows, facts)
            check_many(tiles, facts)
            assert tiles.ranks == choose.many_singles(made, 1000, facts).ranks
            continue
        batch = choose.batch(made, rows, facts)
        assert batch.shared <= facts.shared_limit
        assert batch.grid // batch.ranks * batch.warps * batch.tiles >= made.n_tiles
        assert batch.grid % batch.ranks == 0 and batch.ranks <= -(-n_cols // choose.PIECE)
        assert batch.cluster == (facts.hopper and batch.ranks > 1)
        assert batch.columns >= min(rows, 64)
        ranks.add(batch.ranks)
    assert len(ranks) <= 1  # the order of a row's sum knows nothing of other rows
    for rows in (9, 512, 2048):
        assert choose.gemm(made, rows, facts).shared <= facts.shared_limit
        if facts.hopper:
            check_many(choose.many(made, rows, facts), facts)


def check_many(many: choose.Many, facts: Facts) -> None:
    assert many.shared <= facts.shared_limit - STATIC
    assert many.stages >= 2 and many.x_stages >= 2
    assert many.ranks == 1 or 4 * many.tiles <= COUNTERS_BYTES


def check_hopper_batch(batch: choose.HopperBatch, rows: int, made: Group, facts: Facts) -> None:
    """Everything is covered, sums fit, clusters run at once and are the same for all rows."""
    assert batch.shared <= facts.shared_limit
    assert batch.columns >= min(rows, choose.MAX_BATCH_ROWS) and batch.threads <= 640
    assert batch.grid % batch.ranks == 0
    assert batch.grid // batch.ranks * 4 * batch.groups >= made.n_tiles
    assert batch.ranks <= -(-made.n_cols // choose.PIECE)
    if batch.ranks > 1:
        assert batch.grid <= facts.n_sms
    assert batch.ranks == choose.hopper_batch(made, 64, facts).ranks


def test_segments_follow_each_other() -> None:
    specs = tuple(
        WeightSpec(BY_NAME[t], (3584, n)) for t, n in (("q4_K", 3584), ("q4_K", 512), ("q6_K", 512))
    )
    made = Group(("q", "k", "v"), specs)
    ends = [s.offset + s.n_tiles * s.n_blocks * s.format.nbytes for s in made.segments]
    assert [s.offset for s in made.segments][1:] == ends[:-1]  # all multiples of the alignment
    assert made.factors >= ends[-1] and made.nbytes == made.factors + 4 * made.n_rows
    assert made.n_outputs == made.n_rows == 4608


def test_refusals_say_why() -> None:
    q4, q6 = (WeightSpec(BY_NAME[n], (512, 64)) for n in ("q4_K", "q6_K"))
    assert matmul_pack.refuse([q4, q4], paired=True) is None
    assert "q4_K and up is q6_K" in str(matmul_pack.refuse([q4, q6], paired=True))
    assert "i8" in str(matmul_pack.refuse([WeightSpec(BY_NAME["i8"], (512, 64))]))
    assert "multiple of 8" in str(matmul_pack.refuse([WeightSpec(BY_NAME["f16"], (511, 64))]))
    ragged = WeightSpec(BY_NAME["q4_K"], (512, 72))
    assert "multiple of 16" in str(matmul_pack.refuse([ragged, q4]))


@pytest.mark.parametrize("rows", [3, 8, 9, 16, 17, 64])
@pytest.mark.parametrize("shape", [(4096, 24576), (3584, 3584), (896, 1152)], ids=str)
def test_a_multiprocessor_takes_one_block_of_a_batch(shape: tuple[int, int], rows: int) -> None:
    """Two would find room where the launch before has left, and leave others without."""
    made = group(BY_NAME["q4_K"], *shape)
    if choose.single_rows_kernel(made, rows, H200) == "matmul_batch_sm90":
        shared = choose.hopper_batch(made, rows, H200).shared
    else:
        shared = choose.batch(made, rows, H200).shared
    reserved, capacity = 1 << 10, 228 << 10
    assert 2 * (shared + reserved) > capacity


@pytest.mark.parametrize("rows", [96, 192, 512, 2048])
def test_tiles_of_96_columns_are_for_single_rows(rows: int) -> None:
    made = group(BY_NAME["q4_K"], 3584, 4608)
    assert choose.many_singles(made, 96, H200).columns == 96
    assert choose.many(made, rows, H200).columns in choose.PROMPT_COLUMNS
