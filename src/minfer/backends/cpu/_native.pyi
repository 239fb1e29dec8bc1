"""Types of the native module (native/module.cpp). Addresses and byte counts are plain integers.

Classes of arguments take their fields as keywords, and fields left out are zero.
"""

from collections.abc import Sequence
from enum import Enum
from typing import overload

from minfer.backends.base import Bytes

MAX_PRODUCTS: int
"""Matrices that one `MatMul` may apply to its input."""

def available_isas() -> list[str]:
    """Instruction sets in this build that this processor runs, best first."""

def drop_file_pages(data: Bytes) -> None:
    """Give the pages of a window into a mapped file back to the system."""

def copy_to(address: int, data: Bytes) -> None:
    """Copy bytes to an address."""

class Region:
    """Zeroed memory, 2 MiB-aligned, in huge pages where the system has them."""

    def __init__(self, nbytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def view(self) -> Bytes:
        """All its bytes as an array that keeps it alive."""

class Pool:
    """Many small zeroed allocations that are freed together."""

    def __init__(self) -> None: ...
    def take(self, nbytes: int) -> int:
        """Address of `nbytes` of memory, 64-byte aligned."""

    @property
    def taken(self) -> int: ...

class Format(Enum):
    """Types of a matrix, by `minfer.dtypes` name."""

    f32 = ...
    f16 = ...
    bf16 = ...
    q4_0 = ...
    q4_1 = ...
    q5_0 = ...
    q5_1 = ...
    q8_0 = ...
    q2_K = ...
    q3_K = ...
    q4_K = ...
    q5_K = ...
    q6_K = ...
    iq4_nl = ...
    iq4_xs = ...
    mxfp4 = ...

class KVType(Enum):
    """Element types of a KV state, by `minfer.dtypes` name."""

    f32 = ...
    f16 = ...
    q8_0 = ...

class ElementwiseOp(Enum):
    """What an `Elementwise` step does."""

    add = ...
    mul = ...
    scale = ...
    softcap = ...
    silu_gated = ...
    gelu_gated = ...

class Gate(Enum):
    """What joins the two products of a gated `MatMul`."""

    none = ...
    silu = ...
    gelu = ...

class Rows:
    """Which rows of a buffer are real."""

    def __init__(
        self, *, counts: int = 0, places: int, single_places: int, outputs: bool = False
    ) -> None: ...
    counts: int
    places: int
    single_places: int
    outputs: bool

class KVState:
    """The KV cache of a layer."""

    def __init__(
        self, *, base: int = 0, n_pages: int, n_kv_heads: int, head_dim: int, type: KVType
    ) -> None: ...
    base: int
    n_pages: int
    n_kv_heads: int
    head_dim: int
    type: KVType
    @property
    def page_bytes(self) -> int: ...

class RmsNorm:
    def __init__(
        self,
        *,
        rows: Rows,
        x: int,
        weight: int,
        residual: int,
        y: int,
        groups: int,
        width: int,
        eps: float,
    ) -> None: ...

class Elementwise:
    def __init__(
        self,
        *,
        rows: Rows,
        op: ElementwiseOp,
        a: int,
        b: int,
        y: int,
        width: int,
        factor: float,
    ) -> None: ...

class Gather:
    def __init__(
        self, *, rows: Rows, x: int, index: int, y: int, n_rows: int, width: int
    ) -> None: ...

class Embed:
    def __init__(
        self,
        *,
        rows: Rows,
        table: int,
        format: Format,
        row_bytes: int,
        n_rows: int,
        ids: int,
        y: int,
        width: int,
        scale: float,
    ) -> None: ...

class RopeTable:
    def __init__(self, *, rows: Rows, positions: int, magnitude: float, table: int) -> None: ...

class Rotation:
    def __init__(self, *, table: int, n_pairs: int, interleaved: bool) -> None: ...

class Rope:
    def __init__(
        self, *, rows: Rows, x: int, y: int, rotation: Rotation, n_heads: int, head_dim: int
    ) -> None: ...

class KVStore:
    def __init__(self, *, rows: Rows, k: int, v: int, cells: int, kv: KVState) -> None: ...

class QKVTail:
    def __init__(
        self,
        *,
        rows: Rows,
        q: int,
        k: int,
        v: int,
        cells: int,
        rotation: Rotation,
        n_heads: int,
        kv: KVState,
        q_norm: int = 0,
        k_norm: int = 0,
        eps: float = 0.0,
    ) -> None: ...
    q_norm: int
    k_norm: int
    eps: float

class Attention:
    def __init__(
        self,
        *,
        rows: Rows,
        q: int,
        y: int,
        positions: int,
        seqs: int,
        page_table: int,
        n_slots: int,
        max_pages: int,
        kv: KVState,
        n_heads: int,
        scale: float,
        window: int,
        softcap: float,
        rounded: bool,
    ) -> None: ...
    scratch: int

class Product:
    def __init__(
        self,
        *,
        format: Format,
        n_out: int,
        packed: int,
        out: int,
        bias: int = 0,
        residual: int = 0,
    ) -> None: ...
    residual: int

class MatMul:
    def __init__(
        self,
        *,
        rows: Rows,
        n_in: int,
        x: int,
        products: Sequence[Product],
        gate: Gate = ...,
    ) -> None: ...
    norm_weight: int
    norm_eps: float
    scratch: int

class Device:
    """Kernels of one instruction set, the team that runs them, and the memory they work in."""

    def __init__(self, isa: str, threads: int, cores: int) -> None: ...
    def packed_bytes(self, format: Format, n_in: int, n_out: int) -> int:
        """Bytes of a packed matrix."""

    def pack(self, format: Format, n_in: int, n_out: int, gguf: Bytes, packed: int) -> None:
        """Repack a matrix [n_out][n_in] to the address `packed`, on all threads."""

    def matmul_scratch_bytes(self, args: MatMul) -> int: ...
    def attention_single_scratch_bytes(self, args: Attention) -> int: ...
    def attention_other_scratch_bytes(self, args: Attention) -> int: ...
    def work_in(self, nbytes: int) -> Region:
        """Memory for values that live within one run; all programs share it."""

class Program:
    """Steps that run in one call.

    A `joined` step has no barrier between it and the one before: neither needs the other.
    """

    def __init__(self, device: Device, workspace: Region) -> None: ...
    @overload
    def add(self, device: Device, label: str, args: RmsNorm, joined: bool = False) -> None: ...
    @overload
    def add(self, device: Device, label: str, args: Elementwise, joined: bool = False) -> None: ...
    @overload
    def add(self, device: Device, label: str, args: Gather, joined: bool = False) -> None: ...
    @overload
    def add(self, device: Device, label: str, args: Embed, joined: bool = False) -> None: ...
    @overload
    def add(self, device: Device, label: str, args: Rope, joined: bool = False) -> None: ...
    @overload
    def add(self, device: Device, label: str, args: KVStore, joined: bool = False) -> None: ...
    @overload
    def add(self, device: Device, label: str, args: QKVTail, joined: bool = False) -> None: ...
    @overload
    def add(self, device: Device, label: str, args: MatMul, joined: bool = False) -> None: ...
    def add_rope_table(
        self,
        device: Device,
        label: str,
        args: RopeTable,
        inv_freq: Sequence[float],
        joined: bool = False,
    ) -> None: ...
    def add_attention(
        self, device: Device, label: str, args: Attention, other_scratch: int
    ) -> None: ...
    def expect_counts(self, counts: int, limits: Sequence[int]) -> None:
        """Check the counts of real rows at an address before each run."""

    def run(self) -> None:
        """Run all steps; RuntimeError if a kernel found an invariant broken."""

    def profile(self) -> list[int]:
        """Run all steps; the nanoseconds of each, barrier included."""

    @property
    def labels(self) -> list[str]: ...

class Pace:
    """How many lanes to use, given how much they wait for one another (native/team.h)."""

    def __init__(self, most: int) -> None: ...
    @property
    def count(self) -> int: ...
    def note(self, begin: int, end: int, lost: int) -> None: ...
