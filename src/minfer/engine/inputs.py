"""A step as data: which tokens stand in which rows, and where their keys and values go.

The graph of a step has two blocks of rows, for chunks in the row-at-a-time path and for the others;
each block is padded to its bucket. Padded rows have position -1 and store nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.engine.batcher import Chunk, single_bucket
from minfer.engine.sampling import NO_PENALTY
from minfer.graph import PAGE


def fill(inputs: Mapping[str, NDArray[np.int32]], chunks: Sequence[Chunk]) -> int:
    """Write a step's inputs; answer how many rows of logits are wanted.

    What a padded row would have besides its position and cell is never read, and left as it is;
    so is the id of a token that is still being chosen.
    """
    inputs["positions"][:] = -1
    inputs["cells"][:] = -1
    for chunk in chunks:
        pages = chunk.sequence.pages
        inputs["page_table"][chunk.sequence.slot, : len(pages)] = pages
    wanted: list[int] = []
    n_single = _fill_singles(inputs, [c for c in chunks if c.single], wanted)
    others = [c for c in chunks if not c.single]
    n_other = _fill_others(inputs, others, single_bucket(n_single), wanted)
    inputs["counts"][:] = (n_single, n_other, len(wanted))
    inputs["out_rows"][: len(wanted)] = wanted
    return len(wanted)


def fill_sampling(sampling: NDArray[np.float32], chunks: Sequence[Chunk]) -> None:
    """Write how each chunk's next token is to be chosen, one row a chunk."""
    for row, chunk in enumerate(chunks):
        sampling[row] = chunk.sequence.sampler.device_row()


def fill_penalties(inputs: Mapping[str, NDArray[Any]], chunks: Sequence[Chunk]) -> None:
    """Write what each chunk's recent tokens cost; its own token, the newest, is in `token_ids`."""
    inputs["recent"][:] = -1
    inputs["penalties"][:] = NO_PENALTY
    for row, chunk in enumerate(chunks):
        sampler = chunk.sequence.sampler
        inputs["penalties"][row] = sampler.penalty_row()
        recent = sampler.recent(chunk.sequence.tokens, chunk.start)
        inputs["recent"][row, : len(recent)] = recent


def _fill_singles(
    inputs: Mapping[str, NDArray[np.int32]], chunks: Sequence[Chunk], wanted: list[int]
) -> int:
    """Rows from 0 on: few of each sequence, gathered in lists, which is quicker than arrays."""
    ids: list[int] = []
    positions: list[int] = []
    cells: list[int] = []
    seqs: list[int] = []
    for chunk in chunks:
        sequence = chunk.sequence
        for position in range(chunk.start, chunk.start + chunk.count):
            ids.append(0 if chunk.ahead else chunk.token(position))
            positions.append(position)
            cells.append(sequence.pages[position // PAGE] * PAGE + position % PAGE)
            seqs.append(sequence.slot)
        wanted.extend(range(len(ids) - chunk.n_wanted, len(ids)))
    if ids:
        rows = slice(0, len(ids))
        inputs["token_ids"][rows] = ids
        inputs["positions"][rows] = positions
        inputs["cells"][rows] = cells
        inputs["seqs"][rows] = seqs
    return len(ids)


def _fill_others(
    inputs: Mapping[str, NDArray[np.int32]], chunks: Sequence[Chunk], first: int, wanted: list[int]
) -> int:
    """Rows from `first` on: each chunk a run of consecutive positions."""
    row = first
    for chunk in chunks:
        sequence = chunk.sequence
        rows = slice(row, row + chunk.count)
        at = np.arange(chunk.start, chunk.start + chunk.count)
        table = np.asarray(sequence.pages, np.int32)
        inputs["token_ids"][rows] = sequence.tokens[chunk.start : chunk.start + chunk.count]
        inputs["positions"][rows] = at
        inputs["cells"][rows] = table[at // PAGE] * PAGE + at % PAGE
        inputs["seqs"][rows] = sequence.slot
        row += chunk.count
        if chunk.wants_logits:
            wanted.append(row - 1)
    return row - first
