"""The vocabulary of a GGUF file as checked data: tokens, kinds, scores, merges, special ids.

Everything a damaged or careless file can get wrong about its `tokenizer.ggml.*` keys is found here
and named, so that the tokenizer can take its data for granted. Nothing is encoded or decoded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from minfer.errors import TokenizerError, UnsupportedError

_PREFIX = "tokenizer.ggml."
_NO_TOKEN = (-1, 2**32 - 1)  # how files spell "this model has no such token"


class TokenKind(IntEnum):
    """The values of `tokenizer.ggml.token_type` (GGUF specification)."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocab:
    """What a file says about its tokenizer.

    Attributes:
        model: `gpt2` (byte-level BPE) or `llama` (SentencePiece-style BPE).
        pre: `tokenizer.ggml.pre`, which only `gpt2` vocabularies need.
        tokens: the text of each id, as stored: byte-level or with `▁` for space.
        kinds: `TokenKind` of each id, [n_vocab].
        scores: merge priority of each id, [n_vocab]; only in `llama` vocabularies.
        merges: `left right` pairs, best first; only in `gpt2` vocabularies.
        special: token ids by role, such as `bos` or `eot`; absent where the file names none.
        add_bos: whether a prompt starts with BOS; None where the file leaves it to its kind.
        add_eos: whether training text ended with EOS.
        add_space_prefix: whether text gets a leading space; None where left to its kind.
    """

    model: str
    pre: str | None
    tokens: list[str]
    kinds: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32] | None
    merges: list[tuple[str, str]]
    special: dict[str, int]
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool | None


# Role -> metadata key; two spellings where both are in use.
_SPECIAL_KEYS = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "pad": ("padding_token_id",),
    "sep": ("seperator_token_id", "separator_token_id"),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
}

MODELS = ("gpt2", "llama")


def read_vocab(meta: Mapping[str, Any]) -> Vocab:
    """Read and check the `tokenizer.ggml.*` keys of a file.

    Raises:
        TokenizerError: a key is missing, of the wrong type, or contradicts another.
        UnsupportedError: the tokenizer is of a kind minfer does not implement.
    """
    model = _text(meta, "model")
    if model is None:
        raise TokenizerError(
            "the file holds no tokenizer",
            where=_PREFIX + "model",
            remedy="Convert the model again with its tokenizer",
        )
    if model not in MODELS:
        raise UnsupportedError(
            f"tokenizer model {model!r} is not supported",
            where=_PREFIX + "model",
            remedy="Supported: gpt2 (byte-level BPE) and llama (SentencePiece BPE)",
        )
    tokens = _strings(meta, "tokens")
    n_vocab = len(tokens)
    special = special_ids(meta, n_vocab)
    return Vocab(
        model=model,
        pre=_text(meta, "pre"),
        tokens=tokens,
        kinds=_kinds(meta, n_vocab, special),
        scores=_scores(meta, n_vocab) if model == "llama" else None,
        merges=_merges(meta) if model == "gpt2" else [],
        special=special,
        add_bos=_flag(meta, "add_bos_token"),
        add_eos=bool(_flag(meta, "add_eos_token")),
        add_space_prefix=_flag(meta, "add_space_prefix"),
    )


def _text(meta: Mapping[str, Any], key: str) -> str | None:
    value = meta.get(_PREFIX + key)
    if value is not None and not isinstance(value, str):
        raise _wrong_type(key, value, "a string")
    return value


def _flag(meta: Mapping[str, Any], key: str) -> bool | None:
    value = meta.get(_PREFIX + key)
    if value is None:
        return None
    if not isinstance(value, bool | np.bool_):
        raise _wrong_type(key, value, "a boolean")
    return bool(value)


def _strings(meta: Mapping[str, Any], key: str) -> list[str]:
    value = meta.get(_PREFIX + key)
    if value is None:
        raise TokenizerError(
            "is missing",
            where=_PREFIX + key,
            remedy="Convert the model again with its tokenizer",
        )
    if not isinstance(value, list) or not all(map(str.__instancecheck__, value)):
        raise _wrong_type(key, value, "an array of strings")
    if not value:
        raise TokenizerError("is empty", where=_PREFIX + key)
    at = next((at for at, text in enumerate(value) if not _is_utf8(text)), None)
    if at is not None:
        raise TokenizerError(
            f"entry {at} is {value[at].encode('utf-8', 'surrogateescape')!r}, which is not UTF-8",
            where=_PREFIX + key,
            remedy="The file is damaged or was converted wrongly; fetch or convert it again",
        )
    return value


def _is_utf8(text: str) -> bool:
    """Whether a string from an array, where the reader escapes stray bytes, has none."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _array(meta: Mapping[str, Any], key: str, n_vocab: int) -> npt.NDArray[Any] | None:
    value = meta.get(_PREFIX + key)
    if value is None:
        return None
    if not isinstance(value, list | tuple | np.ndarray):
        raise _wrong_type(key, value, "an array")
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise _wrong_type(key, value, "an array of numbers")
    if len(array) != n_vocab:
        raise TokenizerError(
            f"holds {len(array)} values for {n_vocab} tokens",
            where=_PREFIX + key,
            remedy="The file's vocabulary is inconsistent; convert the model again",
        )
    return array


def _kinds(meta: Mapping[str, Any], n_vocab: int, special: dict[str, int]) -> npt.NDArray[np.int64]:
    array = _array(meta, "token_type", n_vocab)
    if array is None:  # old files: only the ids named by a role are known to be special
        kinds = np.full(n_vocab, int(TokenKind.NORMAL), dtype=np.int64)
        kinds[list(special.values())] = TokenKind.CONTROL
        return kinds
    if array.dtype.kind == "f":
        raise _wrong_type("token_type", array, "an array of integers")
    outside = np.flatnonzero((array < 0) | (array > max(TokenKind)))
    if outside.size:
        at = int(outside[0])
        raise TokenizerError(
            f"token {at} has type {array[at]}, and types end at {int(max(TokenKind))}",
            where=_PREFIX + "token_type",
        )
    return array.astype(np.int64)


def _scores(meta: Mapping[str, Any], n_vocab: int) -> npt.NDArray[np.float32]:
    array = _array(meta, "scores", n_vocab)
    if array is None:
        raise TokenizerError(
            "is missing, and a llama vocabulary merges by score",
            where=_PREFIX + "scores",
            remedy="Convert the model again with its tokenizer",
        )
    scores = array.astype(np.float32)
    if np.isnan(scores).any():
        raise TokenizerError(
            f"token {int(np.flatnonzero(np.isnan(scores))[0])} has no number as its score",
            where=_PREFIX + "scores",
        )
    return scores


def _merges(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = [tuple(merge.split(" ")) for merge in _strings(meta, "merges")]
    if any(len(pair) != 2 for pair in pairs):
        at = next(at for at, pair in enumerate(pairs) if len(pair) != 2)
        raise TokenizerError(
            f"entry {at} is {' '.join(pairs[at])!r}, not two tokens with a space between them",
            where=_PREFIX + "merges",
        )
    return pairs  # type: ignore[return-value]  # every pair was just counted


def special_ids(meta: Mapping[str, Any], n_vocab: int) -> dict[str, int]:
    """Return the ids that the file gives to roles such as `bos`, without those it leaves open.

    Raises:
        TokenizerError: an id is not an integer or outside the vocabulary.
    """
    special = {}
    for role, keys in _SPECIAL_KEYS.items():
        for key in keys:
            value = meta.get(_PREFIX + key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise _wrong_type(key, value, "an integer")
            if int(value) in _NO_TOKEN:
                continue
            if not 0 <= value < n_vocab:
                raise TokenizerError(
                    f"is {value}, and the vocabulary has {n_vocab} tokens", where=_PREFIX + key
                )
            special[role] = int(value)
            break
    return special


def _wrong_type(key: str, value: object, wanted: str) -> TokenizerError:
    return TokenizerError(
        f"is {type(value).__name__} {str(value)[:40]!r}, where {wanted} is expected",
        where=_PREFIX + key,
    )
