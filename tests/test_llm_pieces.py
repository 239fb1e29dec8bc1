"""From events to pieces: text, stop strings, usage."""

from __future__ import annotations

import pytest
from tiny_models import tiny

from minfer.engine import Choice, Event, Sampler, SamplingParams, Sequence
from minfer.llm import Piece, PieceMaker, Usage
from minfer.text import TextStream, Tokenizer

TOKENIZER = Tokenizer.from_metadata(tiny("llama").metadata)


def run_of(text: str) -> Sequence:
    ids = TOKENIZER.encode(text)
    return Sequence(ids, len(ids), 9, frozenset(), Sampler(SamplingParams(seed=1)), False)


def pieces(text: str, *stop: str, reason: str = "length") -> list[Piece]:
    """What becomes of a text that the engine answers token by token, up to its end."""
    run = run_of("prompt")
    maker = PieceMaker(TextStream(TOKENIZER, stop=stop))
    ids = TOKENIZER.encode(text)
    made = []
    for index, token in enumerate(ids):
        last = index == len(ids) - 1
        made.append(maker.piece(run, Event(Choice(token), reason if last else None)))
        if made[-1].finish_reason is not None:
            break
    return made


def joined(made: list[Piece]) -> str:
    return "".join(p.text for p in made)


def test_only_the_last_piece_tells_the_end() -> None:
    made = pieces("some text")
    assert joined(made) == "some text"
    assert [p.finish_reason for p in made] == [*[None] * (len(made) - 1), "length"]
    assert [p.usage for p in made[:-1]] == [None] * (len(made) - 1)
    usage = made[-1].usage
    assert usage is not None
    assert usage.prompt_tokens == len(TOKENIZER.encode("prompt"))
    assert usage.completion_tokens == len(made)
    assert usage.total_tokens == usage.prompt_tokens + len(made)


@pytest.mark.parametrize(("stop", "kept"), [("lo w", "hel"), ("h", ""), ("d", "hello worl")])
def test_a_stop_string_ends_the_text_before_itself(stop: str, kept: str) -> None:
    made = pieces("hello world", stop)
    last = made[-1]
    assert (joined(made), last.finish_reason, last.stop) == (kept, "stop", stop)
    assert last.usage is not None and last.usage.completion_tokens == len(made)


def test_the_beginning_of_a_stop_string_is_given_out_at_the_end() -> None:
    made = pieces("hello wor", "world")
    assert (joined(made), made[-1].finish_reason, made[-1].stop) == ("hello wor", "length", None)


def test_an_end_token_is_no_text() -> None:
    made = pieces("hello", reason="stop")
    assert joined(made) == TOKENIZER.decode(TOKENIZER.encode("hello")[:-1])
    assert made[-1].choice is not None


def test_an_unfinished_character_is_marked() -> None:
    run = run_of("x")
    maker = PieceMaker(TextStream(TOKENIZER))
    first = TOKENIZER.encode("é")[0]
    assert maker.piece(run, Event(Choice(first))).text == ""
    assert maker.piece(run, Event(None, "cancelled")).text == "\N{REPLACEMENT CHARACTER}"


def test_rates() -> None:
    usage = Usage(10, 5, 4, 2.0, 8.0)
    assert (usage.prompt_rate, usage.decode_rate) == (3.0, 0.5)
    assert (Usage(1, 1, 0, 0.0, 0.0).prompt_rate, Usage(1, 1, 0, 0.0, 0.0).decode_rate) == (0, 0)
