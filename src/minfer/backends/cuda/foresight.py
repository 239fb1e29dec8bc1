"""What splits would take of a GPU's memory, and which kernels would run, found without running any.

The ops' own `load` and `lower` are asked, as when they run; what they take is only added up. What
the driver takes, its loaded kernels among it, is not in the sum: see `backend.RESERVE_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from minfer.backends.base import Split, Weight
from minfer.backends.cuda.joins import joins
from minfer.backends.cuda.kv import KVState
from minfer.backends.cuda.launch import Launch
from minfer.backends.cuda.ops import OPS, lowered, matmul
from minfer.backends.cuda.ops.base import COUNTERS_BYTES, Context, Store, halves_key
from minfer.backends.cuda.ops.matmul_choose import keeps_halves
from minfer.graph import Node
from minfer.settings import Settings

if TYPE_CHECKING:
    from minfer.backends.cuda.device import Facts

SCRATCH_GROWTH = 2.25
"""Outgrown scratch stays. At worst blocks double, as rows do: twice the last, with their spare."""

WHEN: Mapping[str, str] = {
    "matmul_vec": "one single row, by quantized weights, which stay as they are",
    "matmul_batch": "single rows, up to 16 on Hopper: weights become halves in registers",
    "matmul_batch_sm90": "17 to 64 single rows on Hopper: the same, by products of warpgroups",
    "matmul_many_sm90": "rows of prompts, and over 64 single ones, on Hopper: the same, in tiles",
    "matmul_gemm": "rows of prompts on other cards",
    "matmul_expand": "weights as halves, for rows of prompts on other cards",
    "attention_decode": "single rows, and all rows with an f32 cache or MINFER_NO_FA_PREFILL",
    "attention_prefill": "rows of prompts",
    "attention_prefill_sm90": "rows of prompts on Hopper, heads of 64, 128 and 256",
    "attention_expand": "a q8_0 cache as halves, for rows of prompts",
}
"""Kernels among which rows, weights and cards decide -> which of them take it."""


class _Ledger(Store):
    """A store without a device, which notes what it would take and fills nothing."""

    def __init__(self, halves: bool = False) -> None:
        self.halves = halves
        self._addresses = {}
        self.nbytes = 0
        self.scratch: dict[str, int] = {}

    def resident(self, key: Hashable, nbytes: int, fill: Callable[[int], None]) -> int:
        if key not in self:
            self._addresses[key] = 0
            self.nbytes += nbytes
        return 0

    def constant(self, array: NDArray[np.generic]) -> int:
        return self.resident(("constant", array.tobytes()), array.nbytes, lambda address: None)

    def take(self, nbytes: int, name: str = "work") -> int:
        self.scratch[name] = max(nbytes, self.scratch.get(name, 0))
        return 0


def footprint(
    splits: Sequence[Split], weights: Mapping[str, Weight], facts: Facts, settings: Settings
) -> int:
    """Bytes that loading and running `splits` takes: weights, KV states, scratch; no arena.

    Args:
        splits: of plans that are never run at the same time, over the same states.
        weights: of all their nodes.
    """
    ledger = _Ledger(keeps_halves(facts, settings))
    states: dict[str, KVState] = {}
    on_its_way = 0  # the largest matrix as the file has it, while it is packed
    for split in reversed(splits):  # as they are loaded: from a plan's last node to its first
        for node in (split.graph.nodes[i] for i in reversed(split.nodes)):
            load = getattr(OPS[node.op], "load", None)
            if load is not None:
                load(node, weights, ledger)
            matrices = [] if node.op == "embed" else node.weights
            on_its_way = max([on_its_way, *(weights[name].data.nbytes for name in matrices)])
            name = getattr(node.attrs, "state", None)
            if name is not None:
                states[name] = KVState(split.graph.states[name], 0)
    for split in splits:
        for _ in _lowered(split, ledger, facts, settings):
            pass
    passing = max(on_its_way, int(SCRATCH_GROWTH * sum(ledger.scratch.values())))
    return ledger.nbytes + sum(s.nbytes for s in states.values()) + passing + COUNTERS_BYTES


def kernels(split: Split, facts: Facts, settings: Settings) -> dict[int, tuple[str, ...]]:
    """The kernels each node launches, in order; none for a norm that its readers take in."""
    return {
        node.id: tuple(launch.kernel.name for launch in launches)
        for node, launches in _lowered(split, _Ledger(), facts, settings)
    }


def resident(split: Split, facts: Facts, settings: Settings) -> Callable[[Hashable], int]:
    """`Context.find` of a split that was loaded: not 0 for what would be there."""
    nodes = [split.graph.nodes[i] for i in split.nodes]
    packed = {
        matmul.group_of(node, split.graph.weights).key for node in nodes if node.op == "matmul"
    }

    def find(key: Hashable) -> int:
        is_halves = isinstance(key, tuple) and key == halves_key(key[1:])
        return int(keeps_halves(facts, settings) if is_halves else key in packed)

    return find


def _lowered(
    split: Split, ledger: _Ledger, facts: Facts, settings: Settings
) -> Iterator[tuple[Node, list[Launch]]]:
    """Every node and its launches, over addresses that mean nothing."""
    context = Context(
        graph=split.graph,
        facts=facts,
        settings=settings,
        base=0,
        offsets=split.offsets,
        weights=lambda key: 1,  # 0 would say that there is none
        states={name: KVState(spec, 0) for name, spec in split.graph.states.items()},
        joins=joins(split, facts, settings),
        constant=ledger.constant,
        find=resident(split, facts, settings),
        scratch=ledger.take,
        counters=lambda count: 0,
    )
    return lowered(split.nodes, context)
