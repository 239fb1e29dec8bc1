"""What fits a given memory: how long a context, with which cache, or how many blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from minfer.dtypes import BY_NAME
from minfer.engine import Engine
from minfer.errors import RequestError
from minfer.graph import PAGE
from minfer.models import kv_bytes_a_cell

CACHE_TYPES = ("f32", "f16", "q8_0")
_UNITS = {"": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_bytes(text: str, *, where: str) -> int:
    """Bytes from `8GB`, `8GiB`, `512M` or a plain number; GB are 10^9, GiB and G are 2^30.

    Raises:
        RequestError: for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(iB|B|)", text.strip(), re.IGNORECASE)
    if match is None:
        raise RequestError(
            f"value {text!r} is no size", where=where, remedy="Write 8GB, 8GiB or 512M"
        )
    unit = match[2].upper()
    base = 1000 if match[3].upper() == "B" and unit else 1024
    return int(float(match[1]) * base ** (_UNITS[unit] if unit else 0))


@dataclass(frozen=True)
class Fit:
    """What a budget holds.

    Attributes:
        budget: bytes.
        weights: bytes of all weights as they lie in memory, estimated for a part of the blocks.
        arena: bytes of a step's values.
        tokens: cache type -> tokens of KV cache that fit beside them, whole pages; 0 for none.
        n_blocks: blocks that fit with a cache of `n_ctx` tokens, when not all do.
        n_layers: blocks there are.
        n_ctx_train: tokens the model was trained for.
    """

    budget: int
    weights: int
    arena: int
    tokens: dict[str, int]
    n_blocks: int
    n_layers: int
    n_ctx: int
    n_ctx_train: int

    @property
    def everything(self) -> bool:
        """Whether the model runs in the budget with the context it has now."""
        return self.n_blocks == self.n_layers


def fit(engine: Engine, budget: int) -> Fit:
    """What fits `budget` bytes of the memory that an engine's weights lie in."""
    model = engine.model
    plan = engine.plan(0, engine.config.prefill_rows)
    arena = max(plan.arena_bytes.values())
    weights = sum(engine.weight_bytes.values())
    room = budget - weights - arena
    tokens = {
        name: max(0, room // kv_bytes_a_cell(model, BY_NAME[name]) // PAGE * PAGE)
        for name in CACHE_TYPES
    }
    n_layers = len(model.layers)
    in_file = [
        sum(s.dtype.nbytes(_count(s.shape)) for w, s in model.weights.items() if _of(w, layer))
        for layer in range(n_layers)
    ]
    whole_file = sum(s.dtype.nbytes(_count(s.shape)) for s in model.weights.values())
    grown = weights / whole_file  # what repacking adds
    cache = kv_bytes_a_cell(model, engine.config.cache_type) // n_layers * engine.config.n_ctx
    left, n_blocks = float(budget - arena), 0
    for nbytes in in_file:
        left -= nbytes * grown + cache
        if left < 0:
            break
        n_blocks += 1
    rest = (whole_file - sum(in_file)) * grown  # embedding and head come with the last block
    if n_blocks == n_layers and left < rest:
        n_blocks -= 1
    return Fit(
        budget, weights, arena, tokens, n_blocks, n_layers, engine.config.n_ctx, model.n_ctx_train
    )


def _of(weight: str, layer: int) -> bool:
    return weight.startswith(f"blk.{layer}.")


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count
