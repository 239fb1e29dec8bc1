"""Log probabilities of tokens in the two shapes OpenAI has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minfer.engine import Choice
from minfer.text import Tokenizer

LEAST = -9999.0
"""What stands for minus infinity, which JSON cannot say."""


def chat_logprobs(tokenizer: Tokenizer, choices: Sequence[Choice]) -> dict[str, Any]:
    """As in chat: one entry a token, with its bytes and its alternatives."""
    return {
        "content": [
            {
                **_entry(tokenizer, choice.token, choice.logprob),
                "top_logprobs": [_entry(tokenizer, t, lp) for t, lp in choice.top],
            }
            for choice in choices
        ],
        "refusal": None,
    }


def text_logprobs(tokenizer: Tokenizer, choices: Sequence[Choice], offset: int) -> dict[str, Any]:
    """As in completions: parallel lists. The first token of a prompt has no probability.

    Args:
        tokenizer: of the tokens.
        choices: the tokens.
        offset: characters of text before the first of them.
    """
    tokens = [_text(tokenizer, choice.token) for choice in choices]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [
            None if choice.logprob is None else max(choice.logprob, LEAST) for choice in choices
        ],
        "top_logprobs": [
            None
            if choice.logprob is None
            else {_text(tokenizer, token): max(logprob, LEAST) for token, logprob in choice.top}
            for choice in choices
        ],
        "text_offset": offsets,
    }


def _entry(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    return {
        "token": _text(tokenizer, token),
        "bytes": list(tokenizer.token_bytes(token)),
        "logprob": LEAST if logprob is None else max(logprob, LEAST),
    }


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", errors="replace")
