"""Vocabularies the text tests share: three real ones, and small ones made by hand."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from minfer.text import Tokenizer

DATA = Path(__file__).parent / "data" / "tokenizer"
REAL = ("smollm2", "qwen2", "gemma3")


@cache
def real_metadata(name: str) -> dict[str, Any]:
    return json.loads(lzma.decompress((DATA / f"{name}.metadata.json.xz").read_bytes()))


@cache
def real_tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_metadata(real_metadata(name))


def real_cases(name: str) -> list[tuple[str, list[int]]]:
    """Texts and the ids the model's original tokenizer gives them, control tokens recognised."""
    cases = json.loads((DATA / f"{name}.ids.json").read_text(encoding="utf-8"))
    return [(case["text"], case["ids"]) for case in cases]


def byte_level(**keys: Any) -> dict[str, Any]:
    """A GPT-2-style vocabulary: every byte, one merge, `<|a|>`-style control and user tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "ab", "<|bos|>", "<|end|>", "<tag>"]
    meta = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": tokens,
        "token_type": [1] * 257 + [3, 3, 4],
        "merges": ["a b"],
        "bos_token_id": 257,
        "eos_token_id": 258,
    } | keys
    return {f"tokenizer.ggml.{key}": value for key, value in meta.items() if value is not None}


def sentencepiece(**keys: Any) -> dict[str, Any]:
    """A llama-style vocabulary: byte fallback, a few words, a space prefix by default."""
    words = ["▁", "a", "b", "c", "▁a", "ab", "bc", "abc", "▁abc", "▁▁", "é"]
    meta = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words, "<t>"],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(words) + [4],
        "scores": [0.0] * 259
        + [-9.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -9.0]
        + [0.0],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    } | keys
    return {f"tokenizer.ggml.{key}": value for key, value in meta.items() if value is not None}
