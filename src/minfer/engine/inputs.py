"""A step as data: which tokens stand in which rows, and where their keys and values go.

The graph of a step has two blocks of rows, for chunks in the row-at-a-time path and for the others;
each block is padded to its bucket. Padded rows have position -1 and store nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from minfer.engine.batcher import Chunk, bucket
from minfer.graph import PAGE


def fill(inputs: Mapping[str, NDArray[np.int32]], chunks: Sequence[Chunk]) -> int:
    """Write a step's inputs; answer how many rows of logits are wanted."""
    ids, positions, cells, seqs = (
        inputs[name] for name in ("token_ids", "positions", "cells", "seqs")
    )
    ids[:] = 0
    positions[:] = -1
    cells[:] = -1
    seqs[:] = 0
    wanted: list[int] = []
    counts = [0, 0]
    starts = [0, bucket(sum(c.count for c in chunks if c.single))]
    for chunk in chunks:
        sequence, kind = chunk.sequence, 0 if chunk.single else 1
        row = starts[kind] + counts[kind]
        rows = slice(row, row + chunk.count)
        at = np.arange(chunk.start, chunk.start + chunk.count)
        table = np.asarray(sequence.pages, np.int32)
        ids[rows] = sequence.tokens[chunk.start : chunk.start + chunk.count]
        positions[rows] = at
        cells[rows] = table[at // PAGE] * PAGE + at % PAGE
        seqs[rows] = sequence.slot
        inputs["page_table"][sequence.slot, : table.size] = table
        counts[kind] += chunk.count
        if chunk.wants_logits:
            wanted.append(row + chunk.count - 1)
    inputs["counts"][:] = (*counts, len(wanted))
    inputs["out_rows"][:] = 0
    inputs["out_rows"][: len(wanted)] = wanted
    return len(wanted)
