"""Operands of products as halves: weights expanded for rows of prompts, x converted for batches.

Both lie in chunks of `lib/act.cuh`. What multiplies them is `matmul`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops import matmul_pack
from minfer.backends.cuda.ops.base import Chunks, Normed, blocks
from minfer.backends.cuda.ops.matmul_pack import Format, Group
from minfer.dtypes import WEIGHT_TYPES

ACT_THREADS = 512
"""Of a block that norms a row."""


def halves_bytes(rows: int, group: Group) -> int:
    """Bytes of so many rows of a group's columns as chunked halves (`lib/act.cuh`)."""
    return rows * blocks(group.n_cols, 128) * 256


def expand_launches(group: Group, weights: int, out: int) -> list[Launch]:
    """Expand a group to halves, segment by segment."""
    launches, first = [], 0
    for s in group.segments:
        strips = s.n_blocks * s.format.block // 128
        launches.append(
            Launch(
                _expand_kernel(s.format),
                (blocks(s.n_tiles * strips, 8), 1, 1),
                256,
                (weights + s.offset, out, s.n_tiles, s.n_blocks, first, group.n_rows),
            )
        )
        first += s.n_tiles * matmul_pack.TILE
    return launches


def _expand_kernel(format: Format) -> Kernel:
    """The specialised `matmul_expand`."""
    return kernel("ops/matmul_expand.cu", "matmul_expand", "p p i i i i", TYPE=format.struct)


def act_launch(
    x: Normed,
    first: int,
    out: int,
    rows: int,
    chunks: Chunks,
    group: Group,
) -> Launch:
    """Make halves of `rows` rows of x from `first` on, and zeros in what pads the chunks."""
    strips = blocks(group.n_cols, 128)
    shape = (rows, chunks.columns, group.n_cols, strips)
    source = x.x + 4 * first * group.n_cols
    if x.norm:
        args = (source, x.norm, out, *shape, x.eps)
        return Launch(
            _act_normed(group.n_cols, chunks.ordered), (chunks.columns, 1, 1), ACT_THREADS, args
        )
    grid = (chunks.columns, blocks(strips * 16, 256), 1)
    return Launch(_act_plain(chunks.ordered), grid, 256, (source, out, *shape))


def _act_plain(ordered: bool) -> Kernel:
    """The kernel `matmul_act`."""
    return _act_kernel("matmul_act", "p p i i i i", 1, ordered)


def _act_normed(n_cols: int, ordered: bool) -> Kernel:
    """The kernel `matmul_act_normed` for rows of so many values."""
    per = blocks(n_cols, 8 * ACT_THREADS)
    return _act_kernel("matmul_act_normed", "p p p i i i i f", per, ordered)


def _act_kernel(name: str, signature: str, per: int, ordered: bool) -> Kernel:
    macros = {"THREADS": ACT_THREADS, "PER": per, "ORDERED": int(ordered)}
    return kernel("ops/matmul_act.cu", name, signature, **macros)


def kernels(facts: Facts) -> Sequence[Kernel]:
    """Every type where they expand, and x of several widths in each order that a product has."""
    types = () if facts.hopper else WEIGHT_TYPES
    found = [_expand_kernel(matmul_pack.FORMATS[dtype.name]) for dtype in types]
    for ordered in (False, True) if facts.hopper else (False,):
        found.append(_act_plain(ordered))
        found += [_act_normed(n, ordered) for n in (4096, 8192, 28672)]
    return found
