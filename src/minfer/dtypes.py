"""The table of element and block types: name, GGUF id, items and bytes a block. Facts only.

What the bytes of a block mean is `minfer.gguf.quants`' business; whether a backend computes on a
type is that backend's (`supports`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """A storage type.

    Attributes:
        name: as GGUF tools print it, lower case (`q4_K`).
        gguf_id: number in a tensor info.
        block_items: values a block holds (1 for plain elements).
        block_bytes: bytes a block takes.
    """

    name: str
    gguf_id: int
    block_items: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        """Whether values are stored in blocks with shared scales."""
        return self.block_items > 1

    def nbytes(self, n_items: int) -> int:
        """Bytes of `n_items` values; `n_items` must be a multiple of the block."""
        blocks, rest = divmod(n_items, self.block_items)
        if rest:
            raise ValueError(f"{n_items} is not a multiple of {self.block_items} ({self.name})")
        return blocks * self.block_bytes

    def __str__(self) -> str:
        return self.name


TYPES: tuple[DType, ...] = (
    DType("f32", 0, 1, 4),
    DType("f16", 1, 1, 2),
    DType("q4_0", 2, 32, 18),
    DType("q4_1", 3, 32, 20),
    DType("q5_0", 6, 32, 22),
    DType("q5_1", 7, 32, 24),
    DType("q8_0", 8, 32, 34),
    DType("q8_1", 9, 32, 36),
    DType("q2_K", 10, 256, 84),
    DType("q3_K", 11, 256, 110),
    DType("q4_K", 12, 256, 144),
    DType("q5_K", 13, 256, 176),
    DType("q6_K", 14, 256, 210),
    DType("q8_K", 15, 256, 292),
    DType("iq2_xxs", 16, 256, 66),
    DType("iq2_xs", 17, 256, 74),
    DType("iq3_xxs", 18, 256, 98),
    DType("iq1_s", 19, 256, 50),
    DType("iq4_nl", 20, 32, 18),
    DType("iq3_s", 21, 256, 110),
    DType("iq2_s", 22, 256, 82),
    DType("iq4_xs", 23, 256, 136),
    DType("i8", 24, 1, 1),
    DType("i16", 25, 1, 2),
    DType("i32", 26, 1, 4),
    DType("i64", 27, 1, 8),
    DType("f64", 28, 1, 8),
    DType("iq1_m", 29, 256, 56),
    DType("bf16", 30, 1, 2),
    DType("tq1_0", 34, 256, 54),
    DType("tq2_0", 35, 256, 66),
    DType("mxfp4", 39, 32, 17),
    DType("nvfp4", 40, 64, 36),
    DType("q1_0", 41, 128, 18),
    DType("q2_0", 42, 64, 18),
)

BY_ID: dict[int, DType] = {t.gguf_id: t for t in TYPES}
BY_NAME: dict[str, DType] = {t.name: t for t in TYPES}

F32 = BY_NAME["f32"]
F16 = BY_NAME["f16"]
BF16 = BY_NAME["bf16"]
I32 = BY_NAME["i32"]
Q8_0 = BY_NAME["q8_0"]

_WEIGHTS = "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_K q3_K q4_K q5_K q6_K iq4_nl iq4_xs mxfp4"
WEIGHT_TYPES: tuple[DType, ...] = tuple(BY_NAME[n] for n in _WEIGHTS.split())
"""Types a weight matrix may have: `minfer.gguf.quants` defines each in NumPy."""
