"""Streaming text: the pieces joined are the whole, cut at the first stop, valid at every piece."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_vocabularies import byte_level, real_tokenizer, sentencepiece

from minfer.errors import RequestError, TokenizerError
from minfer.text import TextStream, Tokenizer
from minfer.text.stream import StopStrings

stops = st.lists(st.text("ab \ufffdé", min_size=1, max_size=4), max_size=3)


def whole(text: str, stop: list[str]) -> tuple[str, str | None]:
    """The text up to the stop that ends first, the longer one where two end together."""
    for end in range(len(text) + 1):
        ended = [one for one in stop if text[:end].endswith(one)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(stream: TextStream, ids: list[int]) -> str:
    pieces = [stream.push(token) for token in ids]
    pieces.append(stream.finish())
    for piece in pieces:
        piece.encode()  # a lone surrogate has no UTF-8 form
    return "".join(pieces)


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@settings(deadline=None)
@given(data=st.data())
def test_joined_pieces_are_the_decoded_text(make: object, data: st.DataObject) -> None:
    tokenizer = Tokenizer.from_metadata(make())  # type: ignore[operator]
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1)))
    stop = data.draw(stops)
    skip = data.draw(st.booleans())
    stream = TextStream(tokenizer, stop=stop, skip_special=skip)
    text, stopped = whole(tokenizer.decode(ids, skip_special=skip), stop)
    assert run(stream, ids) == text
    assert stream.stopped == stopped


@pytest.mark.parametrize("name", ["smollm2", "qwen2", "gemma3"])
@settings(deadline=None)
@given(data=st.data())
def test_joined_pieces_are_the_decoded_text_of_real_vocabularies(
    name: str, data: st.DataObject
) -> None:
    tokenizer = real_tokenizer(name)
    text = data.draw(st.text(st.sampled_from("abc é😀\u0301好\n")))
    stop = data.draw(stops)
    ids = tokenizer.encode(text, add_bos=False)
    stream = TextStream(tokenizer, stop=stop)
    assert (run(stream, ids), stream.stopped) == whole(text, stop)


@given(
    text=st.text("abAB", max_size=30),
    cuts=st.lists(st.integers(0, 30)),
    stop=st.lists(st.text("abAB", min_size=1, max_size=4), max_size=4),
)
def test_stops_do_not_depend_on_how_the_text_is_cut(
    text: str, cuts: list[int], stop: list[str]
) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    scanner = StopStrings(stop)
    got = "".join(scanner.push(text[a:b]) for a, b in pairwise(edges))
    got += scanner.finish()
    assert (got, scanner.stopped) == whole(text, stop)


def test_text_ends_before_a_stop_that_begins_inside_a_token() -> None:
    tokenizer = real_tokenizer("smollm2")
    stream = TextStream(tokenizer, stop=["own fox"])
    assert run(stream, tokenizer.encode("The quick brown fox jumps")) == "The quick br"
    assert stream.stopped == "own fox"


def test_a_tail_that_was_held_back_comes_at_the_end_once() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    stream = TextStream(tokenizer, stop=["\n\n"])
    assert [stream.push(token) for token in tokenizer.encode("a?\n")] == ["a", "?", ""]
    assert stream.finish() == "\n"
    assert stream.finish() == ""
    assert stream.stopped is None


def test_characters_wait_for_their_last_byte() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level())
    stream = TextStream(tokenizer)
    assert [stream.push(token) for token in tokenizer.encode("😀a")] == ["", "", "", "😀", "a"]
    stream = TextStream(tokenizer)
    cut = tokenizer.encode("😀")[:2]
    assert run(stream, cut) == tokenizer.decode(cut) == "\ufffd"


def test_the_prefixed_space_goes_in_streams_too() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece())
    assert run(TextStream(tokenizer), tokenizer.encode("abc a")) == "abc a"


@pytest.mark.parametrize("stop", ["", 5, None])
def test_a_stop_without_text_is_refused(stop: object) -> None:
    with pytest.raises(RequestError, match=r"stop\[1\]"):
        TextStream(Tokenizer.from_metadata(byte_level()), stop=["a", stop])  # type: ignore[list-item]


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(TokenizerError):
        TextStream(Tokenizer.from_metadata(byte_level())).push(10**6)
