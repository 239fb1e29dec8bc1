"""Which kernel computes a product, and in what geometry: pure functions of shapes and the device.

`single` rows (decode rows, output heads) go to `matmul_vec`; a row's bits are the same in every
variant of it (`lib/order.cuh`). The other rows go to a tensor-core product on weights expanded to
halves: `matmul_gemm_sm90` on Hopper, `matmul_gemm` elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minfer.backends.cuda.ops.base import blocks
from minfer.backends.cuda.ops.matmul_pack import Group

if TYPE_CHECKING:
    from minfer.backends.cuda.device import Facts

PIECE = 256
"""Weights of a row in a slot of the rings."""
MAX_VEC_ROWS = 16
SHARED_A_SM = 228 << 10
SHARED_RESERVED = 1 << 10  # of a block, taken by the driver


def pieces_a_part(n_cols: int) -> int:
    """Pieces that are summed in one chain: part of the numerics, whatever the kernel."""
    return 2 if n_cols > 1024 else 1


def parts_a_section(n_cols: int) -> int:
    """Parts that are summed before sections are: part of the numerics, whatever the kernel."""
    return 8 if blocks(n_cols, PIECE * pieces_a_part(n_cols)) <= 8 else 4


@dataclass(frozen=True, slots=True)
class Vec:
    """A geometry of `matmul_vec`.

    Attributes:
        rows: rows of x a launch computes.
        warps: streaming warps a block.
        stages: slots of a warp's ring.
        tiles_in_flight: tiles whose partial sums are kept at a time.
        grid: blocks.
        shared: bytes of shared memory a block.
    """

    rows: int
    warps: int
    stages: int
    tiles_in_flight: int
    grid: int
    shared: int


def vec(group: Group, rows: int, facts: Facts) -> Vec:
    """The geometry for `rows` single rows; it may take fewer rows a launch than asked.

    Two blocks fit a multiprocessor where possible, so that the next kernel's rings fill while this
    one ends.
    """
    half = (min(SHARED_A_SM, facts.shared_limit + SHARED_RESERVED)) // 2 - SHARED_RESERVED
    for n in range(min(rows, MAX_VEC_ROWS), 0, -1):
        for limit in (half, facts.shared_limit):
            for warps, stages in ((12, 4), (12, 3), (12, 2), (8, 3), (8, 2)):
                found = vec_geometry(group, n, warps, stages, facts.n_sms)
                if found.shared <= limit:
                    return found
    raise ValueError(f"rows of {group.n_cols} features do not fit {facts.shared_limit} bytes")


def vec_geometry(group: Group, rows: int, warps: int, stages: int, n_sms: int) -> Vec:
    """The geometry with this number of warps and stages."""
    slot = max(s.format.nbytes * (PIECE // s.format.block) for s in group.segments)
    n_pieces = blocks(group.n_cols, PIECE)
    n_parts = blocks(n_pieces, pieces_a_part(group.n_cols))
    grid = min(n_sms, group.n_tiles)
    tiles_in_flight = min(blocks(group.n_tiles, grid), max(2, blocks(2 * warps, n_parts) + 1))
    shared = (
        warps * stages * slot
        + tiles_in_flight * n_parts * rows * 64
        + rows * (n_pieces * 2 * PIECE + 64)
        + 8 * (warps * stages + 2 * tiles_in_flight)
    )
    return Vec(rows, warps, stages, tiles_in_flight, grid, shared)


@dataclass(frozen=True, slots=True)
class Gemm:
    """A geometry of the many-rows product.

    Attributes:
        hopper: whether it is `matmul_gemm_sm90`.
        tile_n: packed rows of the weight a tile covers; it always covers 128 rows of x.
        stages: slots of the ring.
        grid: blocks.
        shared: bytes of shared memory a block.
    """

    hopper: bool
    tile_n: int
    stages: int
    grid: int
    shared: int


TILE_M = 128
_OVERHEAD = {256: 1.0, 224: 1.0, 192: 1.03, 128: 1.12}
"""Time a unit of work takes in a Hopper tile of this width, relative to the widest."""


def gemm(group: Group, rows: int, facts: Facts) -> Gemm:
    """The geometry for `rows` rows."""
    tiles_m = blocks(rows, TILE_M)
    if facts.capability != (9, 0):
        grid = tiles_m * blocks(group.n_rows, 128)
        stages = 3 if facts.shared_limit >= 3 * 2 * 128 * 128 else 2
        return Gemm(False, 128, stages, grid, stages * 2 * 128 * 128)

    def cost(tile_n: int) -> float:
        tiles = tiles_m * blocks(group.n_rows, tile_n)
        return blocks(tiles, facts.n_sms) * tile_n * _OVERHEAD[tile_n]

    tile_n = min(_OVERHEAD, key=cost)
    slot = (TILE_M + tile_n) * 128
    stages = min(6, (facts.shared_limit - 4096) // slot)
    grid = min(facts.n_sms, tiles_m * blocks(group.n_rows, tile_n))
    return Gemm(True, tile_n, stages, grid, stages * slot + 1024)
