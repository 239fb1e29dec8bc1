"""Weight matrices in the layout the matmul kernels read: which, how large, and how they get there.

One or more matrices of the same input form a `Group`: they are packed into one allocation, one
after another, followed by a factor for each packed row. A pair (gate, up) is woven together, 8 rows
of each in turn. The layout itself is written down in `lib/quant.cuh`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minfer.backends.base import ALIGNMENT, Weight
from minfer.backends.cuda.launch import Kernel, Launch, kernel
from minfer.backends.cuda.ops.base import Store, blocks
from minfer.graph import WeightSpec

TILE = 16
"""Rows of a weight that a block of the layout holds."""


@dataclass(frozen=True, slots=True)
class Format:
    """A packed type.

    Attributes:
        struct: its name in `lib/quant.cuh`.
        block: weights of a row in a block.
        nbytes: bytes of a block of 16 rows.
    """

    struct: str
    block: int
    nbytes: int

    @property
    def plain(self) -> bool:
        """Whether its weights are halves, not codes with scales."""
        return self.nbytes == 2 * TILE * self.block


FORMATS: dict[str, Format] = {
    "f32": Format("F32", 128, 4096),
    "f16": Format("F16", 128, 4096),
    "bf16": Format("BF16", 128, 4096),
    "q4_0": Format("Q4_0", 128, 1152),
    "q4_1": Format("Q4_1", 128, 1280),
    "q5_0": Format("Q5_0", 128, 1408),
    "q5_1": Format("Q5_1", 128, 1536),
    "q8_0": Format("Q8_0", 128, 2176),
    "q2_K": Format("Q2_K", 256, 1344),
    "q3_K": Format("Q3_K", 256, 1824),
    "q4_K": Format("Q4_K", 256, 2368),
    "q5_K": Format("Q5_K", 256, 2880),
    "q6_K": Format("Q6_K", 256, 3360),
    "iq4_nl": Format("IQ4_NL", 128, 1152),
    "iq4_xs": Format("IQ4_XS", 256, 2208),
    "mxfp4": Format("MXFP4", 128, 1152),
}
"""Every weight type, by its name in `minfer.dtypes`. Plain types become halves."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One weight of a group: its type, its tiles of 16 packed rows, where its blocks start."""

    format: Format
    n_tiles: int
    n_blocks: int
    offset: int


@dataclass(frozen=True, slots=True)
class Group:
    """Weights of one input, as they lie in memory.

    Attributes:
        names: of the weights.
        specs: their types and shapes.
        paired: two weights woven together for a gated product: one segment, twice the rows.
    """

    names: tuple[str, ...]
    specs: tuple[WeightSpec, ...]
    paired: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Key in the store."""
        return ("pair" if self.paired else "packed", *self.names)

    @property
    def n_cols(self) -> int:
        """Features of the input."""
        return self.specs[0].shape[0]

    @property
    def n_outputs(self) -> int:
        """Features of the output: all weights side by side, or the gated product."""
        return self.specs[0].shape[1] if self.paired else sum(s.shape[1] for s in self.specs)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The packed weights, in order."""
        found: list[Segment] = []
        offset = 0
        for spec in self.specs[:1] if self.paired else self.specs:
            format = FORMATS[spec.dtype.name]
            n_tiles = blocks(spec.shape[1], TILE // 2 if self.paired else TILE)
            n_blocks = blocks(spec.shape[0], format.block)
            found.append(Segment(format, n_tiles, n_blocks, offset))
            offset += n_tiles * n_blocks * format.nbytes
            offset = blocks(offset, ALIGNMENT) * ALIGNMENT
        return tuple(found)

    @property
    def n_tiles(self) -> int:
        """Tiles of all segments."""
        return sum(s.n_tiles for s in self.segments)

    @property
    def n_rows(self) -> int:
        """Packed rows, with padding to whole tiles."""
        return self.n_tiles * TILE

    @property
    def factors(self) -> int:
        """Offset of the rows' factors, f32 [n_rows]."""
        last = self.segments[-1]
        end = last.offset + last.n_tiles * last.n_blocks * last.format.nbytes
        return blocks(end, ALIGNMENT) * ALIGNMENT

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.factors + 4 * self.n_rows


def refuse(specs: Sequence[WeightSpec], *, paired: bool = False) -> str | None:
    """Why these weights cannot form a group, None if they can."""
    for spec in specs:
        if spec.dtype.name not in FORMATS:
            return f"a weight of type {spec.dtype} has no CUDA matmul"
        if spec.shape[0] % 8:
            return f"rows of {spec.shape[0]} weights are no multiple of 8"
    if paired and specs[0].shape[1] % 2:
        return f"{specs[0].shape[1]} gated outputs are an odd number"
    if paired and specs[0] != specs[1]:
        return f"gate is {specs[0].dtype} and up is {specs[1].dtype}, one kernel takes one type"
    for spec in specs[:-1]:
        if not paired and spec.shape[1] % TILE:
            return f"{spec.shape[1]} outputs of a joined weight are no multiple of {TILE}"
    return None


def load(group: Group, weights: Mapping[str, Weight], store: Store) -> int:
    """Pack the group on the device, once, and answer its address."""

    def fill(address: int) -> None:
        for index, name in enumerate(group.names):
            data = weights[name].data
            source = store.device.allocate(data.nbytes, f"the weight {name} on its way")
            store.device.upload(source, data)
            store.device.run(pack(group, index, source, address))
            store.device.synchronize()
            store.device.free(source)

    return store.resident(group.key, group.nbytes, fill)


def pack(group: Group, index: int, source: int, address: int) -> list[Launch]:
    """The launches that pack one weight of a group.

    Args:
        group: what it is part of.
        index: its number there.
        source: device address of its GGUF bytes.
        address: device address of the group.
    """
    n_cols, n_rows = group.specs[index].shape
    tile = 0 if group.paired else sum(s.n_tiles for s in group.segments[:index])
    segment = group.segments[0 if group.paired else index]
    rows_a_tile, first_half, n_halves = (8, index, 1) if group.paired else (16, 0, 2)
    factor = address + group.factors + 4 * TILE * tile
    rows_kernel, pack_kernel = _kernels(segment.format)
    threads = segment.n_blocks * segment.format.block // 128 * n_halves * 32
    return [
        Launch(
            rows_kernel,
            (blocks(segment.n_tiles * rows_a_tile, 8), 1, 1),
            256,
            (source, factor, n_rows, n_cols, segment.n_tiles, rows_a_tile, first_half),
        ),
        *(
            Launch(
                pack_kernel,
                (blocks(threads, 128), min(MAX_GRID_Y, segment.n_tiles - first), 1),
                128,
                (
                    source + first * rows_a_tile * group.specs[index].dtype.nbytes(n_cols),
                    factor + 4 * TILE * first,
                    address + segment.offset + first * segment.n_blocks * segment.format.nbytes,
                    n_rows - first * rows_a_tile,
                    n_cols,
                    segment.n_blocks,
                    rows_a_tile,
                    first_half,
                    n_halves,
                ),
            )
            for first in range(0, segment.n_tiles, MAX_GRID_Y)
        ),
    ]


MAX_GRID_Y = 65535
"""Tiles a launch of the pack kernel covers."""


def _kernels(format: Format) -> tuple[Kernel, Kernel]:
    file = "ops/matmul_pack.cu"
    return (
        kernel(file, "matmul_pack_rows", "p p i i i i i", TYPE=format.struct),
        kernel(file, "matmul_pack", "p p p i i i i i i", TYPE=format.struct),
    )


def kernels() -> list[Kernel]:
    """Every type's kernels, for the compile check."""
    return [k for format in FORMATS.values() for k in _kernels(format)]
