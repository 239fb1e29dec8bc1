"""Guesses: where they come from, and that they are of the right tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import tiny

from minfer.engine import Sampler, SamplingParams, Sequence
from minfer.engine.draft import DraftModel, PromptLookup
from minfer.llm import LLM


def sequence(tokens: list[int]) -> Sequence:
    sampler = Sampler(SamplingParams(seed=1))
    return Sequence(list(tokens), len(tokens), 99, frozenset(), sampler, False)


def slow_lookup(tokens: list[int], n: int) -> list[int]:
    """The same, by looking everywhere each time."""
    for size in (4, 3, 2):
        tail = tokens[-size:]
        for end in range(len(tokens) - 1, size - 1, -1):
            if len(tail) == size and tokens[end - size : end] == tail:
                return tokens[end : end + n]
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 8))
def test_lookup_finds_the_latest_and_longest_match(tokens: list[int], n: int) -> None:
    drafter = PromptLookup()
    run = sequence(tokens[:1])
    assert drafter.propose(run, n) == []
    for token in tokens[1:]:
        run.tokens.append(token)
        assert drafter.propose(run, n) == slow_lookup(run.tokens, n)


def test_lookup_keeps_sequences_apart_and_forgets() -> None:
    drafter = PromptLookup()
    quoting, other = sequence([1, 2, 3, 4, 1, 2]), sequence([7, 1, 2])
    assert drafter.propose(quoting, 2) == [3, 4]
    assert drafter.propose(other, 2) == []
    drafter.forget(quoting)
    assert quoting not in drafter._seen
    assert drafter.propose(quoting, 2) == [3, 4]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with tiny(max_sequences=1, n_ctx=128) as made:
        yield made


def test_a_model_guesses_its_own_greedy_tokens(llm: LLM) -> None:
    prompt = llm.encode("once upon a time")
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    expected = list(llm.generate(prompt, greedy).token_ids)
    drafter = DraftModel(llm.lend_engine(), 128)
    run = sequence(prompt)
    assert drafter.propose(run, 4) == expected[:4]
    run.tokens += expected[:3]  # three were right
    assert drafter.propose(run, 4) == expected[3:7]
    run.tokens += [expected[3], 5]  # then another token was chosen
    drafter.propose(run, 4)
    run.tokens[:] = prompt + expected[:6]
    assert drafter.propose(run, 4) == expected[6:10]


def test_no_room_no_guess(llm: LLM) -> None:
    drafter = DraftModel(llm.lend_engine(), 128)
    first, second = sequence([1, 2, 3]), sequence([4, 5])
    assert len(drafter.propose(first, 2)) == 2
    assert drafter.propose(second, 2) == []
    drafter.forget(first)
    assert len(drafter.propose(second, 2)) == 2
    assert drafter.propose(sequence([1] * 128), 2) == []
    assert len(drafter.propose(sequence([1] * 127), 5)) <= 1
