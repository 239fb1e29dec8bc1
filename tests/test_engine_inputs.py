"""A step as arrays: every real row in its place, every padded row marked."""

from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minfer.engine import Sampler, SamplingParams, Sequence
from minfer.engine.batcher import Chunk, bucket, single_bucket
from minfer.engine.inputs import fill
from minfer.graph import PAGE

N_SLOTS, MAX_PAGES = 4, 5


@st.composite
def batches(draw: st.DrawFn) -> list[Chunk]:
    chunks = []
    slots = draw(st.lists(st.integers(0, N_SLOTS - 1), min_size=1, unique=True))
    pages = draw(st.permutations(range(N_SLOTS * MAX_PAGES)))
    for slot in slots:
        n = draw(st.integers(1, MAX_PAGES * PAGE))
        tokens = [(slot * 1000 + i) % 30_000 for i in range(n)]
        run = Sequence(tokens, n, 1, frozenset(), Sampler(SamplingParams(seed=1)), False)
        run.slot = slot
        run.pages = array("i", pages[slot * MAX_PAGES : slot * MAX_PAGES + -(-n // PAGE)])
        start = draw(st.integers(0, n - 1))
        single = draw(st.booleans())
        count = draw(st.integers(1, min(n - start, 3 if single else 40)))
        chunks.append(Chunk(run, start, count, single))
    return [c for c in chunks if c.single] + [c for c in chunks if not c.single]


@given(batches(), batches())
def test_every_row_is_what_its_chunk_says(before: list[Chunk], chunks: list[Chunk]) -> None:
    n_single = sum(c.count for c in chunks if c.single)
    n_other = sum(c.count for c in chunks if not c.single)
    rows = max(single_bucket(n_single) + bucket(n_other), 200)
    names = ("token_ids", "positions", "cells", "seqs", "out_rows")
    inputs = {name: np.full(rows, 77, np.int32) for name in names}
    inputs["counts"] = np.zeros(3, np.int32)
    inputs["page_table"] = np.full((N_SLOTS, MAX_PAGES), -5, np.int32)
    fill(inputs, before)  # what an earlier step left must not matter
    n_wanted = fill(inputs, chunks)
    assert inputs["counts"].tolist() == [n_single, n_other, n_wanted]
    real = set()
    wanted = []
    row = {True: 0, False: single_bucket(n_single)}
    for chunk in chunks:
        run = chunk.sequence
        for position in range(chunk.start, chunk.start + chunk.count):
            at = row[chunk.single]
            row[chunk.single] += 1
            real.add(at)
            page = run.pages[position // PAGE]
            assert inputs["token_ids"][at] == run.tokens[position]
            assert inputs["positions"][at] == position
            assert inputs["cells"][at] == page * PAGE + position % PAGE
            assert inputs["seqs"][at] == run.slot
            assert inputs["page_table"][run.slot, position // PAGE] == page
        if chunk.wants_logits:
            wanted.append(row[chunk.single] - 1)
    assert inputs["out_rows"][:n_wanted].tolist() == wanted
    padded = [at for at in range(rows) if at not in real]
    assert (inputs["positions"][padded] == -1).all()
    assert (inputs["cells"][padded] == -1).all()
