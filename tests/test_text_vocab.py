"""Reading a vocabulary: careless types are accepted, contradictions are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from text_vocabularies import byte_level, sentencepiece

from minfer.errors import TokenizerError, UnsupportedError
from minfer.text.vocab import TokenKind, read_vocab


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32", "int64", "uint64"])
def test_any_integer_width_serves_for_kinds_and_any_number_for_scores(dtype: str) -> None:
    kinds = np.array(byte_level()["tokenizer.ggml.token_type"], dtype)
    assert read_vocab(byte_level(token_type=kinds)).kinds.tolist() == kinds.tolist()
    scores = np.arange(len(sentencepiece()["tokenizer.ggml.tokens"])) % 100
    read = read_vocab(sentencepiece(scores=scores.astype(dtype))).scores
    assert read is not None
    assert read.tolist() == scores.tolist()
    assert read_vocab(sentencepiece(scores=scores.astype("float64"))).scores is not None


BROKEN: list[tuple[dict[str, Any], str]] = [
    (byte_level(model=None), r"\[tokenizer.ggml.model\] the file holds no tokenizer"),
    (byte_level(model=7), r"tokenizer.ggml.model\] is int '7', where a string is expected"),
    (byte_level(tokens=None), r"tokenizer.ggml.tokens\] is missing"),
    (byte_level(tokens=[]), r"tokenizer.ggml.tokens\] is empty"),
    (byte_level(tokens="abc"), "an array of strings is expected"),
    (byte_level(tokens=["a", 1]), "an array of strings is expected"),
    (byte_level(tokens=["a", "b\udcff"]), r"tokens\] entry 1 is b'b\\xff', which is not UTF-8"),
    (byte_level(merges=["a b", "\udcc4 c"]), r"merges\] entry 1 is b'\\xc4 c', which is not UTF-8"),
    (byte_level(merges=None), r"tokenizer.ggml.merges\] is missing"),
    (byte_level(merges=["a b", "ab"]), "entry 1 is 'ab', not two tokens"),
    (byte_level(merges=["a b c"]), "entry 0 is 'a b c', not two tokens"),
    (byte_level(token_type=[1, 1]), r"token_type\] holds 2 values for 260 tokens"),
    (byte_level(token_type=[1.5] * 260), "an array of integers is expected"),
    (byte_level(token_type=[9] * 260), "token 0 has type 9, and types end at 6"),
    (byte_level(token_type=[-1] * 260), "token 0 has type -1"),
    (byte_level(token_type=5), "an array is expected"),
    (byte_level(token_type=["x"] * 260), "an array of numbers is expected"),
    (sentencepiece(scores=None), r"scores\] is missing"),
    (sentencepiece(scores=[0.0]), r"scores\] holds 1 values"),
    (sentencepiece(scores=[float("nan")] * 271), "token 0 has no number as its score"),
    (byte_level(eos_token_id=260), r"eos_token_id\] is 260, and the vocabulary has 260 tokens"),
    (byte_level(bos_token_id="1"), r"bos_token_id\] is str '1', where an integer is expected"),
    (byte_level(bos_token_id=True), "an integer is expected"),
    (byte_level(eot_token_id=-7), "is -7"),
    (byte_level(add_bos_token=1), r"add_bos_token\] is int '1', where a boolean is expected"),
    (byte_level(pre=3), r"tokenizer.ggml.pre\] is int"),
]


@pytest.mark.parametrize(("metadata", "message"), BROKEN)
def test_contradictions_name_their_key(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        read_vocab(metadata)


def test_other_kinds_of_tokenizer_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"'bert' is not supported.*gpt2"):
        read_vocab(byte_level(model="bert"))


def test_special_ids_by_role() -> None:
    metadata = byte_level(
        padding_token_id=np.uint32(3), eot_token_id=2**32 - 1, seperator_token_id=5
    )
    assert read_vocab(metadata).special == {"bos": 257, "eos": 258, "pad": 3, "sep": 5}


def test_without_kinds_only_the_named_ids_are_control_tokens() -> None:
    kinds = read_vocab(byte_level(token_type=None)).kinds
    assert np.flatnonzero(kinds == TokenKind.CONTROL).tolist() == [257, 258]
