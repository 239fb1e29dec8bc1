"""What an op of this backend offers, and what it is given to describe its launches.

An op is a module beside this one, listed in `minfer.backends.cuda.ops.OPS`, with

    supports(node, graph) -> str | None     the reason why not, as in the backend contract
    load(node, weights, store) -> None      makes its weights resident (only ops with weights)
    hands_over(node, graph, facts, settings) -> tuple[bool, bool]
                                            whether it can write single rows, and the others, as
                                            halves for a product that reads them, see `handover`
                                            (only ops that know how)
    lower(node, ctx) -> list[Launch]        the node's work; needs no GPU
    kernels(facts) -> list[Kernel]          representative variants, for the compile check

Everything an op knows of a step's size is the plan's bucket; what is real in it is read on the
device. So a launch's geometry and arguments never change between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.backends.base import Weight
from minfer.backends.cuda.kv import KVState
from minfer.backends.cuda.launch import Kernel, Launch
from minfer.graph import Graph, Node, NormAttrs
from minfer.settings import Settings

if TYPE_CHECKING:
    from minfer.backends.cuda.device import Device, Facts

SQUARES = 16
"""Values whose squares are one sum at least, as products prepare them for a norm."""
COUNTERS_BYTES = 64 << 10
"""Zeroed counters that kernels share, one after another."""


class Op(Protocol):
    """The functions of an op's module."""

    def supports(self, node: Node, graph: Graph) -> str | None: ...
    def lower(self, node: Node, ctx: Context) -> list[Launch]: ...
    def kernels(self, facts: Facts) -> Sequence[Kernel]: ...


class Store:
    """Weights in device memory, by what they are: (layout, name, ...).

    Args:
        device: where they live.
        halves: whether weights of prompts' products are kept as halves, too.
    """

    def __init__(self, device: Device, halves: bool = False) -> None:
        self.device = device
        self.halves = halves
        self._addresses: dict[Hashable, int] = {}
        self.nbytes = 0
        """Bytes resident."""

    def __contains__(self, key: Hashable) -> bool:
        return key in self._addresses

    def address(self, key: Hashable) -> int:
        """Where a resident weight is; KeyError if it was never loaded."""
        return self._addresses[key]

    def find(self, key: Hashable) -> int:
        """As `address`, but 0 for what was never loaded."""
        return self._addresses.get(key, 0)

    def resident(self, key: Hashable, nbytes: int, fill: Callable[[int], None]) -> int:
        """The address of a weight; on first use takes `nbytes` and lets `fill(address)` write."""
        if key not in self._addresses:
            address = self.device.allocate(nbytes, f"the weight {key}")
            fill(address)
            self._addresses[key] = address
            self.nbytes += nbytes
        return self._addresses[key]

    def raw(self, weight: Weight) -> int:
        """A weight as the file has it."""
        key = raw_key(weight.name)
        return self.resident(
            key, weight.data.nbytes, lambda address: self.device.upload(address, weight.data)
        )


def halves_key(key: tuple[str, ...]) -> tuple[str, ...]:
    """Key in the store of packed weights as halves."""
    return ("halves", *key)


def raw_key(name: str) -> tuple[str, str]:
    """Key in the store of a weight kept as the file has it."""
    return ("raw", name)


class Scratch(Protocol):
    """Answers memory for a while: see `Context.scratch`."""

    def __call__(self, nbytes: int, name: str = ...) -> int: ...


@dataclass(frozen=True, slots=True)
class Chunks:
    """How a product has rows of x: as chunked halves (`lib/act.cuh`).

    Attributes:
        columns: rows of a chunk; what pads them may be anything.
        ordered: whether values are in the order of products that expand weights in registers.
    """

    columns: int
    ordered: bool


def order_of(chunks: Chunks | None) -> int:
    """A kernel's macro HALVES: 0 for f32 rows, 1 for chunked halves, 2 for those in order."""
    return 1 + chunks.ordered if chunks else 0


def out_defines(chunks: Chunks | None) -> dict[str, int]:
    """Macros of a kernel for how its rows lie, None for f32."""
    found = chunks or Chunks(0, False)
    return {"OUT_COLUMNS": found.columns, "OUT_ORDERED": int(found.ordered)}


@dataclass(frozen=True, slots=True)
class Halves:
    """Which rows of a value are halves, made for the one product that reads it.

    They take the place of the f32 rows, those beyond the single ones behind these.

    Attributes:
        single: how the single rows are halves, None for f32.
        many: how the others are.
    """

    single: Chunks | None = None
    many: Chunks | None = None


F32_ROWS = Halves()


@dataclass(frozen=True, slots=True)
class Between:
    """A norm between two products, which do its work for single rows (`lib/norm_between.cuh`).

    Attributes:
        norm: its node.
        chunks: how the second product has the rows.
    """

    norm: Node
    chunks: Chunks


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the first of them leaves to the second, at `address`; the first takes `norm`.

    Attributes:
        address: chunked halves of x * norm, and sums of squares of x.
        norm: f32 [n_cols], the norm's weight.
        chunks: how the halves lie.
    """

    address: int
    norm: int
    chunks: Chunks


@dataclass(frozen=True, slots=True)
class Joins:
    """What nodes of a split leave to their readers, or make for them, by id: see `joins.py`.

    Attributes:
        norms: norms that become part of their readers.
        projections: `fused_qkv` nodes that leave to their reader what follows the product.
        handed: which rows nodes make halves for their reader; of the others, none.
        between: norms whose work is done by the product before, which is the key, and its reader.
    """

    norms: Mapping[int, Node] = field(default_factory=dict)
    projections: Mapping[int, Node] = field(default_factory=dict)
    handed: Mapping[int, Halves] = field(default_factory=dict)
    between: Mapping[int, Between] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Normed:
    """The input of a product.

    Attributes:
        x: its address, f32 [rows, n_cols].
        norm: f32 [n_cols], the weight of a norm that x passes first, 0 for none.
        eps: of that norm.
        halves: which of its rows are halves already.
        prepared: its single rows as the product before the norm has prepared them, if it has.
    """

    x: int
    norm: int = 0
    eps: float = 0.0
    halves: Halves = F32_ROWS
    prepared: Prepared | None = None


@dataclass(frozen=True)
class Context:
    """Addresses and facts an op's `lower` works with.

    Attributes:
        graph: the whole graph.
        facts: the device.
        base: address of the arena.
        offsets: node id -> offset in the arena.
        weights: resident weights: key -> address.
        states: KV states by name.
        joins: what nodes leave to their readers.
        settings: the A/B switches.
        constant: makes an array of constants resident, answers its address.
        find: address of a resident weight, by its key; 0 where there is none.
        scratch: takes bytes, and a name where an op needs two that do not overlap; answers memory
            that ops running one after another share, so it holds nothing when an op starts.
        counters: takes a number of 32-bit counters, answers memory that is zero whenever an op
            starts: a kernel leaves it zero.
    """

    graph: Graph
    facts: Facts
    settings: Settings
    base: int
    offsets: Mapping[int, int]
    weights: Callable[[Hashable], int]
    states: Mapping[str, KVState]
    joins: Joins
    constant: Callable[[NDArray[np.generic]], int]
    find: Callable[[Hashable], int]
    scratch: Scratch
    counters: Callable[[int], int]

    def out(self, node: Node) -> int:
        """Address of the node's output."""
        return self.base + self.offsets[node.id]

    def src(self, node: Node, index: int) -> int:
        """Address of the output of the node's source number `index`."""
        return self.base + self.offsets[node.srcs[index]]

    def normed(self, node: Node) -> Normed:
        """What a product reads: its first source, or that of the norm it takes in."""
        norm = self.joins.norms.get(node.srcs[0])
        if norm is None:
            return Normed(self.src(node, 0), halves=self.halves(node.srcs[0]))
        assert isinstance(norm.attrs, NormAttrs)
        prepared = self.prepared(norm.srcs[0])
        weight = self.raw(norm.weights[0])
        return Normed(self.src(norm, 0), weight, norm.attrs.eps, prepared=prepared)

    def prepared(self, index: int) -> Prepared | None:
        """What a product, by its node's id, leaves to the one behind a norm."""
        between = self.joins.between.get(index)
        if between is None:
            return None
        values = between.chunks.columns * between.norm.shape[1]
        room = self.scratch(values * 2 + values // SQUARES * 4, "normed")
        return Prepared(room, self.raw(between.norm.weights[0]), between.chunks)

    def halves(self, index: int) -> Halves:
        """Which rows of a node's output, by its id, are halves."""
        return self.joins.handed.get(index, F32_ROWS)

    def input(self, name: str) -> int:
        """Address of a graph-wide input, e.g. `counts`."""
        return self.out(self.graph.inputs[name])

    def raw(self, name: str) -> int:
        """Address of a weight kept as the file has it."""
        return self.weights(raw_key(name))


def blocks(n: int, size: int) -> int:
    """How many pieces of `size` cover `n`."""
    return -(-n // size)
