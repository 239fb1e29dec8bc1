"""Which kernel computes a product, and in what geometry: pure functions of shapes and the device.

Single rows (decode rows, output heads) go to `matmul_vec` while they are few, quantized and fit its
shared memory, else to `matmul_batch`; a row's bits are the same in every variant of each, whatever
other rows there are. The other rows go to a tensor-core product on weights expanded to halves:
`matmul_gemm_sm90` on Hopper, `matmul_gemm` elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minfer.backends.cuda.ops.base import blocks
from minfer.backends.cuda.ops.matmul_pack import Group

if TYPE_CHECKING:
    from minfer.backends.cuda.device import Facts

PIECE = 256
"""Weights of a row in a step of the rings."""
MAX_VEC_ROWS = 2
SHARED_A_SM = 228 << 10
SHARED_RESERVED = 1 << 10  # of a block, taken by the driver


@dataclass(frozen=True, slots=True)
class Order:
    """In what order the single-row kernels add (`lib/order.cuh`): numerics, not speed alone.

    Attributes:
        part: pieces that are summed in one chain.
        section: parts that are summed before sections are.
        n_parts: parts of a row.
    """

    part: int
    section: int
    n_parts: int

    @property
    def n_sections(self) -> int:
        """Sections of a row."""
        return blocks(self.n_parts, self.section)


def order(group: Group) -> Order:
    """The order for a group: short chains where there are few rows to share among warps."""
    n_pieces = blocks(group.n_cols, PIECE)
    part = 2 if group.n_tiles >= 1024 else 1
    n_parts = blocks(n_pieces, part)
    return Order(part, 16 if n_parts <= 16 else 10, n_parts)


def piece_bytes(group: Group) -> int:
    """Bytes of a piece of a tile, of the largest type."""
    return max(s.format.nbytes * (PIECE // s.format.block) for s in group.segments)


@dataclass(frozen=True, slots=True)
class Vec:
    """A geometry of `matmul_vec`.

    Attributes:
        rows: rows of x.
        parts: warps that share the K of a tile.
        groups: tiles a block works on at a time, each by `parts` warps.
        stages: slots of a warp's ring.
        round_tiles: tiles of a block whose sums wait for each other.
        grid: blocks.
        shared: bytes of shared memory a block.
    """

    rows: int
    parts: int
    groups: int
    stages: int
    round_tiles: int
    grid: int
    shared: int

    @property
    def warps(self) -> int:
        """Warps a block."""
        return self.parts * self.groups


MAX_VEC_WARPS = 16
ROUND_BYTES = 72 << 10
"""Most bytes of sums that wait for the end of a round."""
_NOMINAL_SMS = 132
"""`vec_split` is numerics, so it takes one card for all."""


def takes_vec(group: Group, rows: int, facts: Facts) -> bool:
    """Whether single rows go to `matmul_vec`: two at most, of quantized weights that fit."""
    plain = any(s.format.plain for s in group.segments)
    return rows <= MAX_VEC_ROWS and not plain and _fits(group, 1, facts)


def _fits(group: Group, rows: int, facts: Facts) -> bool:
    return vec_geometry(group, rows, 2, facts.n_sms).shared <= facts.shared_limit


def vec(group: Group, rows: int, facts: Facts) -> Vec:
    """The geometry for as many of the rows as fit, where `takes_vec`."""
    rows = next(n for n in (2, 1) if n <= rows and _fits(group, n, facts))
    deep = vec_geometry(group, rows, 3, facts.n_sms)
    pieces = blocks(group.n_tiles, deep.grid) * blocks(blocks(group.n_cols, PIECE), deep.parts)
    # a short kernel starts sooner with less to fetch
    if deep.shared <= facts.shared_limit and pieces > 3:
        return deep
    return vec_geometry(group, rows, 2, facts.n_sms)


def vec_split(group: Group) -> tuple[int, int]:
    """Parts and groups: as many parts as warps, each with as many pieces, more groups if few."""
    n_pieces = blocks(group.n_cols, PIECE)
    parts = blocks(n_pieces, blocks(n_pieces, MAX_VEC_WARPS))
    return parts, min(MAX_VEC_WARPS // parts, blocks(group.n_tiles, _NOMINAL_SMS))


def vec_geometry(group: Group, rows: int, stages: int, n_sms: int) -> Vec:
    """The geometry with rings of this many stages."""
    parts, groups = vec_split(group)
    grid = min(n_sms, group.n_tiles)
    tiles, tile_bytes = blocks(group.n_tiles, grid), parts * rows * 256
    buffers = 1 if tiles * tile_bytes <= ROUND_BYTES else 2
    round_tiles = min(tiles, max(1, ROUND_BYTES // tile_bytes // buffers // groups) * groups)
    most_pieces = blocks(blocks(group.n_cols, PIECE), parts)
    shared = (
        parts * groups * (stages * (piece_bytes(group) + 8) + rows * most_pieces * 640 + 128)
        + buffers * round_tiles * tile_bytes
        + 4 * (rows * parts + 1)
    )
    return Vec(rows, parts, groups, stages, round_tiles, grid, shared)


@dataclass(frozen=True, slots=True)
class Batch:
    """A geometry of `matmul_batch`.

    Attributes:
        columns: rows of x a launch computes, padded to 8, 16, 32 or 64.
        warps: streaming warps a block.
        tiles: row tiles a warp.
        stages, x_stages: slots of a warp's ring and of the ring of x.
        split: 0 whole rows a block; 1 parts, 2 sections, which a second launch adds.
        parts_a_block: parts a block computes.
        grid: blocks in x (tiles) and y (parts).
        shared: bytes of shared memory a block.
    """

    columns: int
    warps: int
    tiles: int
    stages: int
    x_stages: int
    split: int
    parts_a_block: int
    grid: tuple[int, int]
    shared: int


def batch(group: Group, rows: int, facts: Facts) -> Batch:
    """The geometry for single rows, 64 at most: the one whose busiest multiprocessor does least.

    It may take fewer `columns` than rows, where shared memory is small.
    """
    for columns in (64, 32, 16, 8):
        if columns > 8 and rows <= columns // 2:
            continue
        found = [(_batch_cost(group, v, facts.n_sms), v) for v in _batches(group, columns, facts)]
        if found:
            return min(found, key=lambda pair: pair[0])[1]
    raise ValueError(f"8 rows do not fit {facts.shared_limit} bytes of shared memory")


def _batches(group: Group, columns: int, facts: Facts) -> Iterator[Batch]:
    even = all(s.n_tiles % 2 == 0 for s in group.segments[:-1])
    for tiles in (2, 1) if even else (1,):
        # A quarter of the registers serves three warps; two where one needs more than 168 a thread,
        # five where 96 are enough.
        most = 7 if columns == 64 and tiles == 2 else 18 if columns <= 16 and tiles == 1 else 11
        for warps in range(most, 0, -1):
            yield from batch_splits(group, columns, warps, tiles, facts)


def _batch_cost(group: Group, variant: Batch, n_sms: int) -> float:
    """Cycles of the busiest multiprocessor, roughly: the model of `matmul_batch`'s time."""
    rule = order(group)
    waves = blocks(variant.grid[0] * variant.grid[1], n_sms)
    pieces = variant.parts_a_block * rule.part
    warps, tiles, eights = variant.warps, variant.tiles, variant.columns // 8
    instructions = warps * (tiles * (230 + 16 * eights) + 8 * eights + 60)
    # few warps wait for their own latency; two tiles hide some of it, and tie up registers
    busy = min(1.0, warps / 16) if tiles == 1 else min(0.75, warps / 8)
    issued = instructions / (2.8 * busy)
    wavefronts = warps * (32.0 * eights + tiles * piece_bytes(group) / 128)
    fetched = (warps * tiles * piece_bytes(group) + 512 * variant.columns / 2) / 19.5
    cost = waves * (pieces * max(issued, wavefronts, fetched) + 4000)
    if variant.split:
        n_units = rule.n_parts if variant.split == 1 else rule.n_sections
        cost += 3000 + 8.0 * n_units * variant.columns * group.n_rows / n_sms / 19.5
    return cost


def batch_splits(group: Group, columns: int, warps: int, tiles: int, facts: Facts) -> list[Batch]:
    """The geometries with these warps and tiles that fit, by how they split K."""
    rule = order(group)
    across = blocks(group.n_tiles, warps * tiles)
    splits = [(2, rule.section)] if rule.n_sections > 1 else [(0, rule.n_parts)]
    if rule.n_sections == 1:
        splits += [(1, n) for n in range(1, rule.n_parts)]
    found = []
    for split, parts in splits:
        for stages, x_stages in ((3, 3), (3, 2), (2, 2)):
            shared = (
                1024
                + x_stages * columns * 2 * PIECE
                + warps * stages * tiles * piece_bytes(group)
                + (0 if split == 1 else warps * tiles * columns * 64)
                + 8 * (warps * stages + 2 * x_stages)
            )
            if shared <= facts.shared_limit:
                grid = (across, blocks(rule.n_parts, parts))
                found.append(
                    Batch(columns, warps, tiles, stages, x_stages, split, parts, grid, shared)
                )
                break
    return found


@dataclass(frozen=True, slots=True)
class Gemm:
    """A geometry of the many-rows product.

    Attributes:
        hopper: whether it is `matmul_gemm_sm90`.
        tile_n: packed rows of the weight a tile covers; it always covers 128 rows of x.
        cluster: blocks that share the weights they fetch.
        stages: slots of the ring.
        padded: rows of x, padded to whole tiles of a cluster.
        grid: blocks.
        shared: bytes of shared memory a block.
    """

    hopper: bool
    tile_n: int
    cluster: int
    stages: int
    padded: int
    grid: int
    shared: int


TILE_M = 128
CLUSTER = 1
"""Blocks of a cluster that share the weights they fetch; two have not been seen to be faster."""
_OVERHEAD = {256: 1.0, 224: 1.0, 192: 1.03, 128: 1.12}
"""Time a unit of work takes in a Hopper tile of this width, relative to the widest."""


def gemm(group: Group, rows: int, facts: Facts) -> Gemm:
    """The geometry for `rows` rows."""
    tiles_m = blocks(rows, TILE_M)
    if facts.capability != (9, 0):
        grid = tiles_m * blocks(group.n_rows, 128)
        stages = 3 if facts.shared_limit >= 3 * 2 * 128 * 128 else 2
        shared = stages * 2 * 128 * 128
        return Gemm(False, 128, 1, stages, tiles_m * TILE_M, grid, shared)
    cluster = CLUSTER
    tiles_m = blocks(tiles_m, cluster)

    def cost(tile_n: int) -> float:
        tiles = tiles_m * blocks(group.n_rows, tile_n)
        return blocks(tiles, facts.n_sms // cluster) * tile_n * _OVERHEAD[tile_n]

    tile_n = min(_OVERHEAD, key=cost)
    slot = (TILE_M + tile_n) * 128
    stages = min(6, (facts.shared_limit - 4096) // slot)
    grid = cluster * min(facts.n_sms // cluster, tiles_m * blocks(group.n_rows, tile_n))
    padded = tiles_m * cluster * TILE_M
    return Gemm(True, tile_n, cluster, stages, padded, grid, stages * slot + 1024)
