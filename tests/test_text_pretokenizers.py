"""The table of splits: each pattern compiles, covers the text, and cuts as its family does."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from minfer.errors import UnsupportedError
from minfer.text.pretokenizers import GPT2, PRE_TOKENIZERS, pre_tokenizer

words = st.text(st.sampled_from("abZé\u0301ß好ा1½Ⅷ '’sS-_$^~|`<=>+!?.。\n\r\t\u3000\x85 "))


def splitter(patterns: tuple[str, ...]) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    )


def split(name: str, text: str) -> list[str]:
    return [
        piece for piece, _ in splitter(pre_tokenizer(name).patterns).pre_tokenize_str(text) if piece
    ]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
@settings(deadline=None)
@given(text=words)
def test_pieces_joined_are_the_text(name: str, text: str) -> None:
    assert "".join(split(name, text)) == text


@settings(deadline=None)
@given(text=words)
def test_the_lookbehind_changes_no_piece(text: str) -> None:
    patterns = PRE_TOKENIZERS["deepseek-llm"].patterns
    published = [pattern.replace("(?<!\\s)", "") for pattern in patterns]
    assert published != list(patterns)
    assert splitter(patterns).pre_tokenize_str(text) == splitter(tuple(published)).pre_tokenize_str(
        text
    )


ONE_OF_EACH = sorted({family: name for name, family in PRE_TOKENIZERS.items()}.values())
RUNS = (" ", "\t ", "\u3000", "\n", " \n", "a", "A", "aA", "a\u0301", "1", "!", "'s", "好")


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_no_split_is_quadratic(name: str) -> None:
    split = splitter(pre_tokenizer(name).patterns)
    start = time.process_time()
    for unit in RUNS:
        for tail in ("1", "好", "!", "a"):
            split.pre_tokenize_str(unit * (40_000 // len(unit)) + tail)
    # Two million characters in all; one quadratic run of 40,000 takes four seconds alone.
    assert time.process_time() - start < 8.0


# Facts of each family, as its own tokenizer.json states them.
FACTS = [
    ("qwen2", "a12345b", ["a", "1", "2", "3", "4", "5", "b"]),
    ("llama-bpe", "a12345b", ["a", "123", "45", "b"]),
    ("gpt-2", "a 12345b", ["a", " 12345", "b"]),
    ("smollm", "a  12345b", ["a", "  ", "1", "2", "3", "4", "5", "b"]),
    ("falcon", "a 12345b", ["a", " ", "123", "45", "b"]),
    ("deepseek-v3", "a1234好b", ["a", "123", "4", "好", "b"]),
    ("deepseek-llm", "ab 12\n好", ["ab", " ", "1", "2", "\n", "好"]),
    ("deepseek-coder", "x = 1", ["x", " = ", "1"]),
    ("qwen2", "न्a", ["न", "्a"]),
    ("qwen35", "न्a", ["न्a"]),
    ("qwen2", "I'LL go", ["I", "'LL", " go"]),
    ("gpt-2", "I'LL go", ["I", "'", "LL", " go"]),
    ("tekken", "camelCase HTTPServer", ["camel", "Case", " HTTPServer"]),
    ("gpt-4o", "don't 1234", ["don't", " ", "123", "4"]),
    ("tekken", "don't 12", ["don", "'t", " ", "1", "2"]),
    ("llama-bpe", "x\n\n  y", ["x", "\n\n", " ", " y"]),
    ("seed-coder", "a;\n", ["a", ";", "\n"]),
    ("qwen2", "a;\n", ["a", ";\n"]),
]


def test_deepseek_letters_are_cased_letters() -> None:
    # Were a range of the long class mangled, letters would be missing or others let in.
    pattern = PRE_TOKENIZERS["deepseek-llm"].patterns[1]
    cased = pre_tokenizers.Split(Regex(pattern), "removed")
    for code in range(0x21, 0x2000):
        left = "".join(piece for piece, _ in cased.pre_tokenize_str(chr(code)))
        if not left:
            assert unicodedata.category(chr(code)) in ("Lu", "Ll", "Lt", "Cn"), hex(code)
        elif unicodedata.category(chr(code)) in ("Lu", "Lt"):
            assert not 0x1F00 <= code < 0x2000, hex(code)
    for code in (0x1F71, 0x1FBE, 0x1FD3, 0x1FDB, 0x2126, 0x212A, 0x212D):
        assert not cased.pre_tokenize_str(chr(code)), hex(code)


@pytest.mark.parametrize(("name", "text", "pieces"), FACTS)
def test_families_cut_as_published(name: str, text: str, pieces: list[str]) -> None:
    assert split(name, text) == pieces


@settings(deadline=None)
@given(text=words)
def test_digits_then_words_is_one_pattern(text: str) -> None:
    published = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(GPT2), "isolated"),
        ]
    )
    expected = [piece for piece, _ in published.pre_tokenize_str(text) if piece]
    assert split("smollm", text) == expected


@settings(deadline=None)
@given(text=words)
def test_falcon_cuts_as_its_own_components_do(text: str) -> None:
    published = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.Split(Regex(GPT2), "isolated"),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )
    expected = [piece for piece, _ in published.pre_tokenize_str(text) if piece]
    assert split("falcon", text) == expected


def test_names_outside_the_table_are_refused_with_the_list() -> None:
    with pytest.raises(UnsupportedError, match=r"'nope' is not known.*llama-bpe.*qwen2"):
        pre_tokenizer("nope")
    with pytest.raises(UnsupportedError, match="does not name its pre-tokenizer"):
        pre_tokenizer(None)
