"""What splits would take of a GPU's memory, found by lowering them without one.

The ops' own `load` and `lower` ask for the memory, as when they run; here it is only added up. What
the driver takes, its loaded kernels among it, is not in the sum: see `backend.RESERVE_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from minfer.backends.base import Split, Weight
from minfer.backends.cuda.kv import KVState
from minfer.backends.cuda.ops import OPS
from minfer.backends.cuda.ops.base import COUNTERS_BYTES, Context, Store
from minfer.backends.melt import melting_norms
from minfer.settings import Settings

if TYPE_CHECKING:
    from minfer.backends.cuda.device import Facts

SCRATCH_GROWTH = 3
"""Scratch that a longer prompt outgrows stays, and the next block is at least twice as large."""


class _Ledger(Store):
    """A store without a device, which notes what it would take and fills nothing."""

    def __init__(self) -> None:
        self._addresses = {}
        self.nbytes = 0

    def resident(self, key: Hashable, nbytes: int, fill: Callable[[int], None]) -> int:
        if key not in self:
            self._addresses[key] = 0
            self.nbytes += nbytes
        return 0


def footprint(
    splits: Sequence[Split], weights: Mapping[str, Weight], facts: Facts, settings: Settings
) -> int:
    """Bytes that loading and running `splits` takes: weights, KV states, scratch; no arena.

    Args:
        splits: of plans that are never run at the same time, over the same states.
        weights: of all their nodes.
    """
    ledger = _Ledger()
    scratch: dict[str, int] = {}
    states: dict[str, KVState] = {}

    def constant(array: NDArray[np.generic]) -> int:
        return ledger.resident(("constant", array.tobytes()), array.nbytes, lambda address: None)

    def take(nbytes: int, name: str = "work") -> int:
        scratch[name] = max(nbytes, scratch.get(name, 0))
        return 0

    on_its_way = 0  # the largest matrix as the file has it, while it is packed
    for split in splits:
        norms = melting_norms(split)
        context = Context(
            graph=split.graph,
            facts=facts,
            settings=settings,
            base=0,
            offsets=split.offsets,
            weights=ledger.address,
            states={name: KVState(spec, 0) for name, spec in split.graph.states.items()},
            norms=norms,
            constant=constant,
            scratch=take,
            counters=lambda count: 0,
        )
        nodes = [split.graph.nodes[i] for i in split.nodes]
        for node in nodes:
            load = getattr(OPS[node.op], "load", None)
            if load is not None:
                load(node, weights, ledger)
            matrices = [] if node.op == "embed" else node.weights
            on_its_way = max([on_its_way, *(weights[name].data.nbytes for name in matrices)])
        for node in nodes:
            name = getattr(node.attrs, "state", None)
            if name is not None:
                states[name] = context.states[name]
            if node.id not in norms:
                OPS[node.op].lower(node, context)
    passing = max(on_its_way, SCRATCH_GROWTH * sum(scratch.values()))
    return ledger.nbytes + sum(s.nbytes for s in states.values()) + passing + COUNTERS_BYTES
