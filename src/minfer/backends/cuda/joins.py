"""How the nodes of a split join: what one leaves to its reader, or makes for it.

Decided when a split is lowered, not in the plan: it changes no value that anyone else sees. A split
of one node, as a trace makes them, joins nothing.
"""

from __future__ import annotations

from minfer.backends.base import Split
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.handover import handed_over, norms_between
from minfer.backends.cuda.ops.base import Joins
from minfer.backends.cuda.ops.qkv import melting_projections
from minfer.backends.melt import melting_norms
from minfer.settings import Settings


def joins(split: Split, facts: Facts, settings: Settings) -> Joins:
    """All of a split."""
    norms = melting_norms(split)
    return Joins(
        norms=norms,
        projections=melting_projections(split),
        handed=handed_over(split, facts, settings),
        between=norms_between(split, norms, facts),
    )
