"""Which rows a step computes: one of every stream, and prompts cut to what is left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minfer.engine import Sampler, SamplingParams, Sequence
from minfer.engine.batcher import bucket, pick, single_bucket


def sequence(n_prompt: int, n_generated: int, n_computed: int) -> Sequence:
    run = Sequence(
        [0] * (n_prompt + n_generated),
        n_prompt,
        100,
        frozenset(),
        Sampler(SamplingParams(seed=1)),
        False,
    )
    run.n_computed = n_computed
    return run


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    n_prompt, n_generated = draw(st.integers(1, 40)), draw(st.integers(0, 20))
    n_computed = draw(st.integers(0, n_prompt + n_generated - 1))
    return sequence(n_prompt, n_generated, n_computed)


@given(st.lists(sequences(), max_size=8), st.integers(1, 60))
def test_rows_of_a_step(running: list[Sequence], max_other: int) -> None:
    chunks = pick(running, 8, max_other)
    singles = [c for c in chunks if c.single]
    others = [c for c in chunks if not c.single]
    assert chunks == singles + others
    assert sum(c.count for c in singles) <= 8
    assert sum(c.count for c in others) <= max_other
    decoding = [s for s in running if s.n_computed >= s.n_prompt]
    assert [c.sequence for c in singles] == decoding  # nobody is left out
    prompts = [s for s in running if s.n_computed < s.n_prompt]
    chosen = [c.sequence for c in others]
    assert chosen == [s for s in prompts if s in chosen]
    for chunk in chunks:
        assert chunk.count >= 1
        assert chunk.start == chunk.sequence.n_computed
        end = chunk.start + chunk.count
        assert end <= len(chunk.sequence.tokens)
        if not chunk.single:
            assert end <= chunk.sequence.n_prompt  # the rest comes in the other path
        assert chunk.wants_logits == (end == len(chunk.sequence.tokens))
    if running and max_other and (prompts or decoding):
        assert chunks  # something always moves
    if prompts:
        assert chosen[0] is prompts[0]
        left = prompts[0].n_prompt - prompts[0].n_computed
        assert others[0].count >= min(left, (max_other + 1) // 2)
        cut = [c for c in others[1:] if c.start + c.count < c.sequence.n_prompt]
        assert len(cut) <= 1
        longest = max((c.count for c in others[1:] if c not in cut), default=0)
        for late in prompts[1:]:
            if late not in chosen or any(c.sequence is late for c in cut):
                assert late.n_prompt - late.n_computed >= longest  # short ones come first


def test_a_sequence_that_lost_its_pages_takes_what_the_others_leave() -> None:
    lost, young = sequence(4, 20, 4), sequence(4, 1, 4)
    chunks = pick([lost, young], 8, 10)
    assert [(c.sequence, c.count) for c in chunks] == [(lost, 7), (young, 1)]


@given(st.integers(0, 5000))
def test_buckets_are_powers_of_two(count: int) -> None:
    size = bucket(count)
    assert (size == 0) == (count == 0)
    assert count <= size < max(1, 2 * count)
    assert size & (size - 1) == 0


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_buckets_of_single_rows_have_one_more_between_powers_of_two(count: int, more: int) -> None:
    size = single_bucket(count)
    assert count <= size <= bucket(count)
    assert size in (bucket(count), bucket(count) // 4 * 3)
    assert size == single_bucket(size) <= single_bucket(count + more)
    assert size == bucket(count) if count <= 32 else 2 * size < 3 * count
