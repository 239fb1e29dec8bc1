"""Which kernel computes a product, and in what geometry: pure functions of shapes and the device.

Single rows (decode rows, output heads): one alone goes to `matmul_vec` if its weights are quantized
and it fits shared memory, else they go to `matmul_batch` or, if this is Hopper and they are more,
to `matmul_batch_sm90` up to 64, then `matmul_many_sm90`; a row's bits are the same in every variant
of each, whatever other rows there are. Rows of prompts go to `matmul_many_sm90` on Hopper,
elsewhere to `matmul_gemm`, by weights expanded to halves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

from minfer.backends.cuda.ops import matmul_pack
from minfer.backends.cuda.ops.base import Chunks, blocks
from minfer.backends.cuda.ops.matmul_pack import Group
from minfer.errors import BackendError

if TYPE_CHECKING:
    from minfer.backends.cuda.device import Facts
    from minfer.settings import Settings

PIECE = 256
"""Weights of a row in a step of the rings."""


def piece_bytes(group: Group) -> int:
    """Bytes of a piece of a tile, of the largest type."""
    return max(s.format.nbytes * (PIECE // s.format.block) for s in group.segments)


@dataclass(frozen=True, slots=True)
class Vec:
    """A geometry of `matmul_vec`.

    Attributes:
        parts: warps that share the K of a tile.
        groups: tiles a block works on at a time, each by `parts` warps.
        stages: slots of a warp's ring.
        tiles: of the block that has most.
        round_tiles: tiles of a block whose sums wait for each other.
        grid: blocks.
        shared: bytes of shared memory a block.
    """

    parts: int
    groups: int
    stages: int
    tiles: int
    round_tiles: int
    grid: int
    shared: int

    @property
    def warps(self) -> int:
        """Warps a block."""
        return self.parts * self.groups


MAX_VEC_WARPS = 16
ROUND_BYTES = 18 << 10
"""Most bytes of sums that wait for the end of a round."""
_NOMINAL_SMS = 132
"""`vec_split` is numerics, so it takes one card for all."""


def single_rows_kernel(group: Group, rows: int, facts: Facts) -> str:
    """Name of the kernel that so many single rows go to; within it no row depends on the others."""
    plain = any(s.format.plain for s in group.segments)
    if rows == 1 and not plain and vec_geometry(group, 2, facts.n_sms).shared <= facts.shared_limit:
        return "matmul_vec"
    if not facts.hopper or rows <= MAX_MMA_ROWS:
        return "matmul_batch"
    return "matmul_batch_sm90" if rows <= MAX_BATCH_ROWS else "matmul_many_sm90"


def single_rows_chunks(group: Group, rows: int, facts: Facts) -> Chunks | None:
    """How one launch for so many single rows has x; None where it takes more, or x as f32."""
    name = single_rows_kernel(group, rows, facts)
    if name == "matmul_vec":
        return None
    if name == "matmul_many_sm90":
        return many_rows_chunks(rows, facts)
    if name == "matmul_batch_sm90":
        return Chunks(_hopper_columns(rows), True)
    columns = batch(group, rows, facts).columns
    return Chunks(columns, False) if rows <= columns else None


def norm_sharing_chunks(group: Group, rows: int, facts: Facts) -> Chunks | None:
    """As `single_rows_chunks`, of the kernels that share a norm with the product beside it."""
    name = single_rows_kernel(group, rows, facts)
    if not facts.hopper or name not in ("matmul_batch", "matmul_batch_sm90"):
        return None
    return single_rows_chunks(group, rows, facts)


def vec(group: Group, facts: Facts) -> Vec:
    """The geometry for one row, where `matmul_vec` takes it."""
    deep = vec_geometry(group, 3, facts.n_sms)
    pieces = deep.tiles * blocks(blocks(group.n_cols, PIECE), deep.parts)
    # a short kernel starts sooner with less to fetch
    if deep.shared <= facts.shared_limit and pieces > 3:
        return deep
    return vec_geometry(group, 2, facts.n_sms)


def vec_split(group: Group) -> tuple[int, int]:
    """Parts and groups: as many parts as warps, each with as many pieces, more groups if few."""
    n_pieces = blocks(group.n_cols, PIECE)
    parts = blocks(n_pieces, blocks(n_pieces, MAX_VEC_WARPS))
    return parts, min(MAX_VEC_WARPS // parts, blocks(group.n_tiles, _NOMINAL_SMS))


def vec_geometry(group: Group, stages: int, n_sms: int) -> Vec:
    """The geometry with rings of this many stages."""
    parts, groups = vec_split(group)
    grid = min(n_sms, group.n_tiles)
    tiles, tile_bytes = blocks(group.n_tiles, grid), parts * 64
    round_tiles, buffers = tiles, 1
    if tiles * tile_bytes > ROUND_BYTES:
        round_tiles, buffers = max(1, ROUND_BYTES // tile_bytes // 2 // groups) * groups, 2
    most_pieces = blocks(blocks(group.n_cols, PIECE), parts)
    shared = (
        parts * groups * (stages * piece_bytes(group) + most_pieces * 640 + 128)
        + blocks(8 * parts * groups * stages, 128) * 128
        + buffers * round_tiles * tile_bytes
        + 4 * (parts + 1)
    )
    return Vec(parts, groups, stages, tiles, round_tiles, grid, shared)


@dataclass(frozen=True, slots=True)
class Batch:
    """A geometry of `matmul_batch`.

    Attributes:
        columns: rows of x a launch computes, padded to 8, 16, 32 or 64.
        warps: streaming warps a block.
        tiles: row tiles a warp.
        stages, x_stages: slots of a warp's ring and of the ring of x.
        ranks: blocks that share the K of their tiles.
        cluster: whether those form a cluster, or a second launch adds their sums.
        grid: blocks.
        shared: bytes of shared memory a block.
    """

    columns: int
    warps: int
    tiles: int
    stages: int
    x_stages: int
    ranks: int
    cluster: bool
    grid: int
    shared: int


MAX_MMA_ROWS = 16
"""Rows up to which Hopper, too, takes `matmul_batch`, by `mma.sync`."""


def batch(group: Group, rows: int, facts: Facts) -> Batch:
    """The geometry for single rows, 64 at most: the one whose busiest multiprocessor does least.

    It may take fewer `columns` than rows, where a block has 64 KiB of shared memory.
    """
    return _batch_of_shape(replace(group, names=()), rows, facts)


@cache
def _batch_of_shape(group: Group, rows: int, facts: Facts) -> Batch:
    """The same of a group without names: every layer asks for the same few shapes, often."""
    ranks = _ranks(group, facts)
    for columns in (64, 32, 16, 8):
        if columns > 8 and rows <= columns // 2:
            continue
        if found := list(batches(group, columns, ranks, facts)):
            return min(found, key=lambda v: batch_cost(group, v, facts))
    raise BackendError(
        f"a product of {group.n_cols} columns does not fit {facts.shared_limit} bytes of shared "
        "memory a block",
        where="matmul_batch",
        remedy="Use --device cpu",
    )


def _ranks(group: Group, facts: Facts) -> int:
    """Blocks that share the K of their tiles: numerics, so one number for all rows on a card."""
    most = min(8 if facts.hopper else 16, blocks(group.n_cols, PIECE))
    found = [v for ranks in range(1, most + 1) for v in batches(group, 16, ranks, facts)]
    if not found:
        return 1
    return min(found, key=lambda v: batch_cost(group, v, facts)).ranks


def batches(group: Group, columns: int, ranks: int, facts: Facts) -> Iterator[Batch]:
    """All that fit, for a number of columns and of blocks that share K."""
    even = all(s.n_tiles % 2 == 0 for s in group.segments[:-1])
    for tiles in (1, 2) if even else (1,):
        # A quarter of the registers serves three warps; two where one needs more than 168 a thread,
        # five where 96 are enough.
        most = 7 if columns == 64 and tiles == 2 else 18 if columns <= 16 and tiles == 1 else 11
        for warps in range(most, 0, -1):
            grid = blocks(group.n_tiles, warps * tiles) * ranks
            if facts.hopper and ranks > 1 and grid > _at_once(ranks, facts.n_sms):
                continue
            for stages, x_stages in ((3, 3), (3, 2), (2, 2)):
                operands = x_stages * columns * 2 * PIECE
                operands += warps * stages * tiles * piece_bytes(group)
                sums = 4 * columns * (matmul_pack.TILE * warps * tiles + 8)
                cluster = facts.hopper and ranks > 1
                in_place = sums <= operands or (ranks > 1 and not cluster)  # of the operands
                shared = 1024 + operands + 8 * (warps * stages + x_stages) + 4 * columns
                if facts.hopper:
                    shared = max(shared, _alone(facts))
                if shared <= facts.shared_limit and in_place:
                    yield Batch(
                        columns, warps, tiles, stages, x_stages, ranks, cluster, grid, shared
                    )
                    break


def batch_cost(group: Group, variant: Batch, facts: Facts) -> float:
    """Cycles of the busiest multiprocessor, roughly: the model of `matmul_batch`'s time."""
    warps, tiles, eights = variant.warps, variant.tiles, variant.columns // 8
    instructions = warps * (tiles * (230 + 16 * eights) + 8 * eights + 60)
    # few warps wait for their own latency; two tiles hide some of it, and tie up registers
    busy = min(1.0, warps / 16) if tiles == 1 else min(0.75, warps / 8)
    issued = instructions / (2.8 * busy)
    wavefronts = warps * (32.0 * eights + tiles * piece_bytes(group) / 128)
    fetched = (warps * tiles * piece_bytes(group) + 512 * variant.columns / 2) / 19.5
    pieces = blocks(blocks(group.n_cols, PIECE), variant.ranks)
    cost = blocks(variant.grid, facts.n_sms) * (pieces * max(issued, wavefronts, fetched) + 4000)
    if variant.cluster:
        return cost + 2000
    if variant.ranks > 1:
        partial = 8.0 * variant.ranks * variant.columns * group.n_rows
        cost += 3000 + partial / facts.n_sms / 19.5
    return cost


def _alone(facts: Facts) -> int:
    """Bytes of shared memory with which a block has a multiprocessor to itself.

    Blocks start before the launch before ends, on multiprocessors that are free. Where two found
    room, some multiprocessors got two and others none: 35 us in place of 26.
    """
    return facts.shared_limit // 2 + 1024


def _at_once(ranks: int, n_sms: int) -> int:
    """Blocks that surely run together in clusters of `ranks` on Hopper.

    A cluster lies within a group of 18 multiprocessors less those that are switched off: an H200
    takes 66, 39, 30, 22, 17, 15, 15 clusters of 2, 3, ... 8.
    """
    if ranks <= 2:
        return n_sms // ranks * ranks
    return n_sms // 18 * (16 // ranks) * ranks


@dataclass(frozen=True, slots=True)
class HopperBatch:
    """A geometry of `matmul_batch_sm90`.

    Attributes:
        columns: rows of x a launch computes, padded to 32, 48 or 64.
        groups: warpgroups of a block, of four row tiles each.
        stages: slots of a warp's ring.
        x_stages: slots of the ring of x, of 128 of K each.
        ranks: blocks of a cluster, which share the K of their tiles.
        grid: blocks.
        shared: bytes of shared memory a block.
    """

    columns: int
    groups: int
    stages: int
    x_stages: int
    ranks: int
    grid: int
    shared: int

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 128 * self.groups


MAX_BATCH_ROWS = 64
HOPPER_COLUMNS = (32, 48, 64)
MAX_GROUPS = 5
"""Warpgroups that have 96 registers a thread, which 64 columns take."""


def hopper_batch(group: Group, rows: int, facts: Facts) -> HopperBatch:
    """The geometry for 17 to 64 single rows on Hopper: the one whose busiest block does least."""
    columns = _hopper_columns(rows)
    # blocks that share K are numerics, so one number for all rows
    every = hopper_batches(group, MAX_BATCH_ROWS, facts)
    ranks = min(every, key=lambda v: hopper_cost(group, v, facts)).ranks
    some = [v for v in hopper_batches(group, columns, facts) if v.ranks == ranks]
    return min(some, key=lambda v: hopper_cost(group, v, facts))


def _hopper_columns(rows: int) -> int:
    return next(n for n in HOPPER_COLUMNS if n >= rows)


def hopper_batches(group: Group, columns: int, facts: Facts) -> Iterator[HopperBatch]:
    """All that fit, for a number of columns, each with the deepest rings that fit."""
    for groups, ranks in product(range(MAX_GROUPS, 0, -1), range(1, 9)):
        warps = 4 * groups
        grid = blocks(group.n_tiles, warps) * ranks
        at_once = _at_once(ranks, facts.n_sms)
        if ranks > 1 and (grid > at_once or ranks > blocks(group.n_cols, PIECE)):
            continue
        for stages, x_stages in _DEPTHS:
            operands = x_stages * columns * PIECE + warps * stages * piece_bytes(group)
            sums = 4 * columns * (matmul_pack.TILE * warps + 4)
            shared = 1024 + operands + 8 * (warps * stages + x_stages) + 4 * (x_stages + columns)
            shared = max(shared, _alone(facts))
            if shared <= facts.shared_limit and sums <= operands:
                yield HopperBatch(columns, groups, stages, x_stages, ranks, grid, shared)
                break


_DEPTHS = ((3, 6), (3, 4), (3, 3), (2, 4), (2, 3), (2, 2))
"""Slots of a warp's ring and of x."""


def hopper_cost(group: Group, variant: HopperBatch, facts: Facts) -> float:
    """Cycles of the busiest multiprocessor, roughly: the model of `matmul_batch_sm90`'s time.

    Its constants fit 36 cases on an H200: 5 % off in the mean, 20 % at worst.
    """
    # of 128 of K: what a warpgroup expands and multiplies adds up; x comes 64 bytes a cycle
    group_cycles = 0.1 * piece_bytes(group) + 4.6 * variant.columns
    strip = variant.groups * group_cycles + 4 * variant.columns
    strip = max(strip, 1600)  # few warps wait for their own latency
    pieces = blocks(blocks(group.n_cols, PIECE), variant.ranks)
    waves = blocks(variant.grid, facts.n_sms)
    # the blocks of the first wave start to fetch while the kernel before ends
    cost = waves * 2 * pieces * strip + 7000 + 12000 * (waves - 1)
    return cost + (550 * variant.ranks if variant.ranks > 1 else 0)


TILE_M = 128
"""Rows of prompts, and more single rows than 64, are padded to a multiple of it."""


def many_rows_chunks(rows: int, facts: Facts) -> Chunks:
    """How products have so many rows of prompts, or, on Hopper, more single rows than 64."""
    return Chunks(blocks(rows, TILE_M) * TILE_M, facts.hopper)


def keeps_halves(facts: Facts, settings: Settings) -> bool:
    """Whether expanded weights of prompts' products are kept."""
    return settings.cuda_halves and not facts.hopper


@dataclass(frozen=True, slots=True)
class Many:
    """A geometry of `matmul_many_sm90`.

    Attributes:
        columns: rows of x a tile covers; it always covers 128 packed rows of the weight.
        ranks: blocks that share the K of a tile.
        stages: slots of a warp's ring.
        x_stages: slots of the ring of x, of 64 of K each.
        tiles: how many there are.
        grid: blocks.
        shared: bytes of shared memory a block.
    """

    columns: int
    ranks: int
    stages: int
    x_stages: int
    tiles: int
    grid: int
    shared: int


MANY_COLUMNS = {256: 1.0, 192: 1.07, 128: 1.18, 96: 1.35, 64: 1.7}
"""Rows of x a tile may cover -> time a unit of work takes in it, relative to the widest.

Of 96 that is not measured, but lies between its neighbours.
"""
PROMPT_COLUMNS = (256, 192, 128, 64)
"""Those that rows of prompts choose among; 96 fill buckets of single rows."""
SHARED_ROWS = 256
"""Rows of prompts up to which blocks share the K of their tiles, where tiles are few.

Of single rows they always do: that is numerics, and a row must not tell how many others there are.
"""
_MANY_WARPS = 8
_MANY_FIXED = 9 << 10
"""Bytes of shared memory for outputs on their way to be halves, and for alignment."""


def many(group: Group, rows: int, facts: Facts) -> Many:
    """The geometry for `rows` rows of prompts: the one whose busiest multiprocessor does least."""
    ranks = _many_ranks(group, facts) if rows <= SHARED_ROWS else 1
    return _best_many(group, rows, ranks, facts, PROMPT_COLUMNS)


def many_singles(group: Group, rows: int, facts: Facts) -> Many:
    """The geometry for more than `MAX_BATCH_ROWS` single rows on Hopper."""
    return _best_many(group, rows, _many_ranks(group, facts), facts, MANY_COLUMNS)


def partial_room(group: Group, rows: int, facts: Facts) -> int:
    """Bytes of sums that wait for those of other ranks, of so many rows or fewer that share K."""
    ranks = _many_ranks(group, facts)
    padded = max(blocks(rows, columns) * columns for columns in MANY_COLUMNS)
    w_tiles = blocks(group.n_tiles, _MANY_WARPS)
    return 4 * _MANY_WARPS * matmul_pack.TILE * w_tiles * padded * ranks if ranks > 1 else 0


def _best_many(group: Group, rows: int, ranks: int, facts: Facts, columns: Collection[int]) -> Many:
    some = [v for v in manys(group, rows, ranks, facts) if v.columns in columns]
    return min(some, key=lambda v: many_cost(group, v, facts))


def _many_ranks(group: Group, facts: Facts) -> int:
    """Blocks that share K: numerics, so one number for all rows that are few enough."""
    return _ranks_of_shape(replace(group, names=()), facts)


@cache
def _ranks_of_shape(group: Group, facts: Facts) -> int:
    """The same of a group without names: every layer asks for the same few shapes."""

    def cost(ranks: int) -> float:
        rows = (64, 128, SHARED_ROWS)
        found = [_best_many(group, n, ranks, facts, PROMPT_COLUMNS) for n in rows]
        return sum(many_cost(group, v, facts) for v in found)

    # as many as have a multiprocessor each where x has one tile
    most = min(facts.n_sms // blocks(group.n_tiles, _MANY_WARPS), blocks(group.n_cols, PIECE))
    return min(range(1, max(1, most) + 1), key=cost)


def manys(group: Group, rows: int, ranks: int, facts: Facts) -> Iterator[Many]:
    """One for each number of columns, with the deepest rings that fit."""
    room = facts.shared_limit - _MANY_FIXED - 2048  # of static shared memory
    ring = _MANY_WARPS * piece_bytes(group)
    for columns in MANY_COLUMNS:
        slot = columns * 128
        stages = 3 if room - 3 * ring >= 3 * slot else 2
        x_stages = min(6, (room - stages * ring) // slot)
        tiles = blocks(rows, columns) * blocks(group.n_tiles, _MANY_WARPS)
        grid = min(facts.n_sms, tiles * ranks)
        shared = _MANY_FIXED + stages * ring + x_stages * slot
        yield Many(columns, ranks, stages, x_stages, tiles, grid, shared)


def many_cost(group: Group, variant: Many, facts: Facts) -> float:
    """Microseconds of the busiest multiprocessor of an H200, roughly."""
    wide = variant.columns / 256
    pieces = blocks(blocks(group.n_cols, PIECE), variant.ranks)
    each = 2.65 * wide * MANY_COLUMNS[variant.columns] * pieces + 1
    if variant.ranks == 1:
        return blocks(variant.tiles, facts.n_sms) * each
    each += 1.5 * wide  # sums are written, and at last added
    return blocks(variant.tiles * variant.ranks, facts.n_sms) * each + 3 + variant.ranks * wide


@dataclass(frozen=True, slots=True)
class Gemm:
    """A geometry of `matmul_gemm`: tiles of 128 rows of x and 128 packed rows of the weight.

    Attributes:
        stages: slots of the ring.
        grid: blocks.
        shared: bytes of shared memory a block.
    """

    stages: int
    grid: int
    shared: int


def gemm(group: Group, rows: int, facts: Facts) -> Gemm:
    """The geometry for `rows` rows of prompts."""
    slot = (TILE_M + 128) * 128  # 64 of K of both
    stages = 3 if facts.shared_limit >= 3 * slot else 2
    grid = blocks(rows, TILE_M) * blocks(group.n_rows, 128)
    return Gemm(stages, grid, stages * slot)
