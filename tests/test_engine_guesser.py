"""Speculative decoding: whatever is guessed, the tokens are those of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from typing import Any

import pytest
from serving import tiny

from minfer.engine import (
    Drafter,
    DraftModel,
    Engine,
    Event,
    PromptLookup,
    Sampler,
    SamplingParams,
    Sequence,
)
from minfer.engine.batcher import Chunk
from minfer.engine.guesser import Guesser
from minfer.llm import LLM

PROMPTS = [[7, 8, 9] * 20, [1, 2, 3], list(range(40, 140)), [5] * 70, [11, 12]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=40),
    SamplingParams(temperature=1, seed=3, max_tokens=30),
    SamplingParams(temperature=0, max_tokens=25, repeat_penalty=1.3, logprobs=2),
    SamplingParams(temperature=0.7, seed=9, max_tokens=1, top_p=0.9),
    SamplingParams(temperature=0, max_tokens=33, frequency_penalty=0.5),
]


class Oracle:
    """Guesses rightly, wrongly or at random, from answers known before."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]], right: float) -> None:
        self.answers = answers
        self.right = right
        self.random = random.Random(1)
        self.forgotten: list[Sequence] = []

    def propose(self, sequence: Sequence, n: int) -> list[int]:
        answer = self.answers[tuple(sequence.tokens[: sequence.n_prompt])]
        guesses = answer[sequence.n_generated : sequence.n_generated + n]
        return [t if self.random.random() < self.right else (t + 1) % 500 for t in guesses]

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence)

    def close(self) -> None:
        self.forgotten.clear()


def run(engine: Engine, **more: Any) -> tuple[list[list[int]], list[list[Event]]]:
    """Tokens and events of all prompts at once."""
    runs = [engine.add(p, q, **more) for p, q in zip(PROMPTS, PARAMS, strict=True)]
    events: dict[Sequence, list[Event]] = {r: [] for r in runs}
    while engine.has_work:
        for owner, event in engine.step():
            events[owner].append(event)
    free, cached, total = engine.pages
    assert free + cached == total
    return [r.tokens[r.n_prompt :] for r in runs], [events[r] for r in runs]


def engine(device: str = "reference", **options: Any) -> Engine:
    llm = tiny(max_sequences=8, n_ctx=256, **options)
    made = llm.lend_engine()
    made.keep = llm  # type: ignore[attr-defined]
    return made


@pytest.fixture(scope="module")
def plain() -> tuple[list[list[int]], list[list[Event]]]:
    return run(engine())


@pytest.mark.parametrize("right", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("most", [1, 3, 7])
def test_right_and_wrong_guesses_change_nothing(
    plain: tuple[list[list[int]], list[list[Event]]], right: float, most: int
) -> None:
    answers = {tuple(p): a for p, a in zip(PROMPTS, plain[0], strict=True)}
    speculating = engine()
    oracle = Oracle(answers, right)
    speculating.speculate(oracle, most)
    assert run(speculating) == plain
    assert len(oracle.forgotten) == len(PROMPTS)
    counters = speculating.counters
    assert 0 <= counters.right_guesses <= counters.guessed_tokens
    if right == 1.0:
        assert counters.right_guesses == counters.guessed_tokens > 20
    if right == 0.0:
        assert counters.right_guesses == 0


def test_right_guesses_save_steps(plain: tuple[list[list[int]], list[list[Event]]]) -> None:
    answers = {tuple(p): a for p, a in zip(PROMPTS, plain[0], strict=True)}
    slow, fast = engine(), engine()
    fast.speculate(Oracle(answers, 1.0), 7)
    for each in (slow, fast):
        each.add(PROMPTS[0], PARAMS[0])
        while each.has_work:
            each.step()
    assert slow.counters.generated_tokens == fast.counters.generated_tokens == 40
    assert fast.counters.steps < slow.counters.steps / 4


def test_prompt_lookup(plain: tuple[list[list[int]], list[list[Event]]]) -> None:
    speculating = engine()
    speculating.speculate(PromptLookup())
    assert run(speculating) == plain
    assert speculating.counters.guessed_tokens > 0


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llama3-rope"])
def test_a_draft_model(plain: tuple[list[list[int]], list[list[Event]]], name: str) -> None:
    """The same model guesses nearly always right, a stranger hardly ever; both change nothing."""
    draft: LLM = tiny(name, max_sequences=8, n_ctx=256)
    drafter: Drafter = DraftModel(draft.lend_engine(), 256)
    speculating = engine()
    speculating.speculate(drafter, 4)
    assert run(speculating) == plain
    counters = speculating.counters
    if name == "tiny-llama":
        assert counters.right_guesses > 0.5 * counters.guessed_tokens


def test_with_too_few_pages(plain: tuple[list[list[int]], list[list[Event]]]) -> None:
    answers = {tuple(p): a for p, a in zip(PROMPTS, plain[0], strict=True)}
    small = engine(n_cells=256)
    small.speculate(Oracle(answers, 0.7), 7)
    assert run(small)[0] == plain[0]


def test_an_end_token_among_right_guesses_ends_the_sequence(
    plain: tuple[list[list[int]], list[list[Event]]],
) -> None:
    answers = {tuple(p): a for p, a in zip(PROMPTS, plain[0], strict=True)}
    stop = frozenset({plain[0][0][5]})
    one, two = engine(), engine()
    two.speculate(Oracle(answers, 1.0), 7)
    assert run(one, stop_ids=stop) == run(two, stop_ids=stop)


class Noting:
    """Says what it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def propose(self, sequence: Sequence, n: int) -> list[int]:
        self.asked.append(n)
        return [0] * n

    def forget(self, sequence: Sequence) -> None:
        self.asked.append(-1)

    def close(self) -> None:
        self.asked.append(-2)


def sequence(n_prompt: int = 4, n_generated: int = 1, max_tokens: int = 99) -> Sequence:
    sampler = Sampler(SamplingParams(seed=1))
    tokens = [0] * (n_prompt + n_generated)
    return Sequence(tokens, n_prompt, max_tokens, frozenset(), sampler, False)


def chunks(*runs: Sequence) -> Seq[Chunk]:
    return [Chunk(r, len(r.tokens) - 1, 1, single=True) for r in runs]


def test_how_many_guesses() -> None:
    drafter = Noting()
    guesser = Guesser(drafter, 8)
    run, other, ending = sequence(), sequence(), sequence(max_tokens=2)
    guesser.add_guesses(chunks(run, other), 8)
    assert drafter.asked == [6]  # the first takes all rows that are left
    guesser.note(run, 6, 2)
    guesser.add_guesses(chunks(run, other), 8)
    assert drafter.asked[1:] == [3, 3]
    guesser.note(run, 3, 3)
    guesser.add_guesses(chunks(run, ending), 64)
    assert drafter.asked[3:] == [6]  # nothing follows an answer's last token
    prompt = Chunk(sequence(n_generated=0), 0, 4, single=False)
    assert guesser.add_guesses([prompt], 64) == [prompt]
    guesser.forget(run)
    guesser.close()
    assert drafter.asked[4:] == [-1, -2]
