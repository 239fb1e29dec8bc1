"""How a KV state lies in device memory. Facts and addresses; the kernels' side is `lib/kv.cuh`.

K and V are two planes of the same form, page-major: `[page][kv_head]` blocks of PAGE keys of
`head_dim` values, so that a block is contiguous, in the order `value_at` of `lib/kv.cuh` gives:
halves as Hopper's matrix units read them, all else key by key. q8_0 keeps quants (one byte a
value), and beside them a plane of f16 scales `[page][kv_head][PAGE][head_dim / group]`.
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.dtypes import F16, F32, Q8_0, DType
from minfer.graph import PAGE, KVSpec

ELEMENT_BYTES: dict[DType, int] = {F32: 4, F16: 2, Q8_0: 1}
"""Element type of a KV state -> bytes a value in its main plane; the types there are."""

KIND: dict[DType, int] = {F32: 0, F16: 1, Q8_0: 2}
"""Element type -> the number kernels know it by (macro KV)."""


def scale_group(head_dim: int) -> int:
    """Values that share a q8_0 scale: 32, or 16 where the head is no multiple of 32."""
    return 32 if head_dim % 32 == 0 else 16


@dataclass(frozen=True, slots=True)
class KVState:
    """A KV state at its place.

    Attributes:
        spec: what it is.
        address: of its single allocation: K values, V values, K scales, V scales.
    """

    spec: KVSpec
    address: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in one value plane."""
        spec = self.spec
        return PAGE * spec.n_kv_heads * spec.head_dim * ELEMENT_BYTES[spec.dtype]

    @property
    def page_scale_bytes(self) -> int:
        """Bytes of one page in one scale plane."""
        spec = self.spec
        if spec.dtype is not Q8_0:
            return 0
        return PAGE * spec.n_kv_heads * (spec.head_dim // scale_group(spec.head_dim)) * 2

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return 2 * self.spec.n_pages * (self.page_bytes + self.page_scale_bytes)

    @property
    def planes(self) -> tuple[tuple[int, int], ...]:
        """Address and bytes a page of each plane: K, V, then the scales of K and of V."""
        values = self.spec.n_pages * self.page_bytes
        scales = self.spec.n_pages * self.page_scale_bytes
        found = [(self.address, self.page_bytes), (self.address + values, self.page_bytes)]
        if scales:
            first = self.address + 2 * values
            found += [(first, self.page_scale_bytes), (first + scales, self.page_scale_bytes)]
        return tuple(found)

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """K, V, K scales, V scales; the scales' are 0 where there are none."""
        at = [address for address, _ in self.planes]
        return (at[0], at[1], at[2], at[3]) if len(at) == 4 else (at[0], at[1], 0, 0)
