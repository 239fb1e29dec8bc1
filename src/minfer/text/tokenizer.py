"""Text <-> token ids for the vocabulary of a GGUF file.

Two kinds of vocabulary are understood. `gpt2`: text is split by the model's own patterns, its UTF-8
bytes become printable stand-ins, and pairs merge by rank. `llama` (SentencePiece): spaces become
`▁`, pairs merge by the score of what they make, and characters outside the vocabulary fall back to
byte tokens. Both run on the `tokenizers` library, built in memory from the metadata; the ids are
those of the model's original tokenizer. No Unicode normalization is applied, so decoding gives back
the text that was encoded (except that SentencePiece cannot tell `▁` from a space).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from minfer.errors import TokenizerError
from minfer.text.merging import (
    add_tokens,
    build_byte_level,
    build_sentencepiece,
    empty,
    twin,
)
from minfer.text.pretokenizers import pre_tokenizer
from minfer.text.vocab import TokenKind, Vocab, read_vocab

# Tokens that end a turn or a text whatever a file's id keys say; llama.cpp knows them by name too.
_STOP_NAMES = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|eom_id|> <EOT> _<EOT>"
    " <|end_of_text|> <|return|> <|call|> <｜end▁of▁sentence｜> <|eot|> [EOT] [EOS]"
    " <end_of_utterance> <turn|>".split()
)
_STOP_ROLES = ("eos", "eot", "eom")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Bytes that UTF-8 text can hold: all but C0, C1 and F5-FF.
_UTF8_BYTES = frozenset(range(0xF5)) - {0xC0, 0xC1}


def _byte_level() -> dict[str, int]:
    """Stand-in character -> byte, as GPT-2 defined it: printable Latin-1 stands for itself, every
    other byte for the next free code point from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + at): byte for at, byte in enumerate(others)})
    return table


_BYTE_OF = _byte_level()


class Tokenizer:
    """Encodes and decodes with one model's vocabulary; immutable and safe to share by threads.

    Attributes:
        n_vocab: number of tokens.
        bos_id, eos_id, pad_id, unk_id: ids of these tokens, None where the file names none.
        add_bos: whether a prompt starts with BOS.
        add_eos: whether the model's training texts ended with EOS (`encode` never adds it).
        stop_ids: tokens that end generation: the file's eos, eot and eom, and known names.
        missing_bytes: bytes of UTF-8 for which a byte-level vocabulary has no token; `encode`
            drops them, as the original tokenizer does.
    """

    def __init__(self, vocab: Vocab) -> None:
        self._tokens = vocab.tokens
        self._kinds = vocab.kinds.tolist()
        self._byte_level = vocab.model == "gpt2"
        self._bytes: dict[int, bytes] = {}
        self.n_vocab = len(vocab.tokens)
        self.bos_id = vocab.special.get("bos")
        self.eos_id = vocab.special.get("eos")
        self.pad_id = vocab.special.get("pad")
        self.unk_id = vocab.special.get("unk")
        self.add_eos = vocab.add_eos
        self._ids = _index(vocab.tokens)
        self.stop_ids = _stop_ids(vocab, self._ids)

        if self._byte_level:
            pre = pre_tokenizer(vocab.pre)
            self._space_prefix = bool(vocab.add_space_prefix)
            self.add_bos = pre.add_bos if vocab.add_bos is None else vocab.add_bos
            self.missing_bytes = frozenset(
                byte
                for char, byte in _BYTE_OF.items()
                if char not in self._ids and byte in _UTF8_BYTES
            )
            build = partial(build_byte_level, vocab, self._ids, pre)
        else:
            self._space_prefix = vocab.add_space_prefix is not False
            self.add_bos = vocab.add_bos is not False
            self.missing_bytes = frozenset()
            build = partial(build_sentencepiece, vocab, self._ids)
        if self.bos_id is None:
            self.add_bos = False
        # One merger under two matchers: for the tokens found in any text, and with control tokens.
        self._plain = build(space_prefix=self._space_prefix)
        self._special = twin(self._plain)
        self._finder = empty()  # knows these tokens and nothing else
        whole = (TokenKind.USER_DEFINED, TokenKind.CONTROL)
        add_tokens(self._plain, vocab, (TokenKind.USER_DEFINED,))
        add_tokens(self._special, vocab, whole)
        add_tokens(self._finder, vocab, whole)

    @classmethod
    def from_metadata(cls, meta: Mapping[str, Any]) -> Tokenizer:
        """Build the tokenizer that a GGUF file's metadata describes.

        Args:
            meta: the file's keys; string arrays as lists, numeric arrays as lists or NumPy arrays.

        Raises:
            TokenizerError: the vocabulary is missing or inconsistent.
            UnsupportedError: its kind or pre-tokenizer is not known.
        """
        return cls(read_vocab(meta))

    def encode(self, text: str, *, special: bool = False, add_bos: bool | None = None) -> list[int]:
        """Return the ids of a text.

        Args:
            text: any text without lone surrogates.
            special: whether control tokens written out in the text become those tokens.
                User-defined tokens always do.
            add_bos: put BOS in front unless the ids begin with it already; None asks the file.

        Raises:
            TokenizerError: the text has no UTF-8 form.
        """
        encoder = self._special if special else self._plain
        try:
            # The batch call leaves out character offsets, which cost more than the encoding.
            ids: list[int] = encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:
            raise _no_utf8(text) from None
        if self.add_bos if add_bos is None else add_bos:
            if self.bos_id is None:
                raise TokenizerError(
                    "a BOS token is asked for, and the vocabulary has none", where="add_bos"
                )
            if ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD.

        Undoes `encode`: where the vocabulary prefixes text with a space, that space goes.

        Args:
            ids: token ids.
            skip_special: leave control and unknown tokens out.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        pieces = []
        fresh = True
        for token in ids:
            piece, fresh = self.piece(token, fresh)
            if not (skip_special and self.is_control(token)):
                pieces.append(piece)
        return b"".join(pieces).decode("utf-8", errors="replace")

    def piece(self, token: int, fresh: bool) -> tuple[bytes, bool]:
        """Return the bytes a token adds to a text, and whether the next one starts afresh.

        Args:
            token: the id.
            fresh: whether the token stands at the start of a text or after a token that is matched
                whole: there a prefixed space is the encoder's, not the text's.
        """
        piece = self.token_bytes(token)
        whole = self._kinds[token] in (TokenKind.CONTROL, TokenKind.USER_DEFINED)
        if fresh and self._space_prefix and not whole and piece[:1] == b" ":
            piece = piece[1:]
        return piece, whole

    def token_bytes(self, token: int) -> bytes:
        """Return the exact bytes of a token in the middle of a text.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._compute_bytes(token)
        return found

    def token_text(self, token: int) -> str:
        """Return a token as the vocabulary spells it, with stand-ins for bytes and spaces.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """
        self._check(token)
        return self._tokens[token]

    def token_id(self, text: str) -> int | None:
        """Return the id of the token the vocabulary spells so, None where there is none."""
        return self._ids.get(text)

    def is_control(self, token: int) -> bool:
        """Tell whether a token is markup rather than text (control or unknown).

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """
        self._check(token)
        return self._kinds[token] in (TokenKind.CONTROL, TokenKind.UNKNOWN)

    def control_tokens(self) -> dict[str, int]:
        """Return the control tokens, text to id."""
        return {
            text: token
            for token, (text, kind) in enumerate(zip(self._tokens, self._kinds, strict=True))
            if kind == TokenKind.CONTROL
        }

    def find_special(self, text: str) -> Iterator[tuple[str, bool]]:
        """Cut a text at the tokens matched whole: pieces, and whether each is such a token.

        The longest token wins where several begin at one place, as in `encode` with `special`.
        """
        # The batch call lets other threads run meanwhile.
        (found,) = self._finder.encode_batch([text], add_special_tokens=False)
        start = 0
        for begin, end in found.offsets:
            if begin > start:
                yield text[start:begin], False
            yield text[begin:end], True
            start = end
        if start < len(text):
            yield text[start:], False

    def split_special(self, text: str) -> list[str | int]:
        """Cut a text at the control tokens written out in it: texts, and the ids between them."""
        parts: list[str | int] = []
        for piece, found in self.find_special(text):
            if found and self._kinds[self._ids[piece]] == TokenKind.CONTROL:
                parts.append(self._ids[piece])
            elif parts and isinstance(parts[-1], str):
                parts[-1] += piece
            else:
                parts.append(piece)
        return parts

    def _check(self, token: int) -> None:
        if not 0 <= token < self.n_vocab:
            raise TokenizerError(
                f"token id {token} is outside the vocabulary of {self.n_vocab}", where="ids"
            )

    def _compute_bytes(self, token: int) -> bytes:
        self._check(token)
        text, kind = self._tokens[token], self._kinds[token]
        if kind == TokenKind.BYTE:
            match = _BYTE_TOKEN.fullmatch(text)
            if match is None:
                raise TokenizerError(
                    f"token {token} is of type byte but spelled {text!r}, not <0x00>..<0xFF>",
                    where="tokenizer.ggml.tokens",
                )
            return bytes([int(match[1], 16)])
        if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN):
            return text.encode()
        if not self._byte_level:
            return text.replace("▁", " ").encode()
        if kind != TokenKind.USER_DEFINED and all(char in _BYTE_OF for char in text):
            return bytes(_BYTE_OF[char] for char in text)
        return text.encode()


def _no_utf8(text: str) -> Exception:
    at = next((at for at, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
    if at is None:
        return TypeError(f"text must be a string, not {type(text).__name__}")
    return TokenizerError(
        f"character {at} is the lone surrogate U+{ord(text[at]):04X}, which has no UTF-8 form",
        where="text",
        remedy="Decode the text with errors='replace'",
    )


def _index(tokens: Sequence[str]) -> dict[str, int]:
    ids = {text: token for token, text in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(text for token, text in enumerate(tokens) if ids[text] != token)
        raise TokenizerError(
            f"{twice!r} is there twice, as {tokens.index(twice)} and {ids[twice]}",
            where="tokenizer.ggml.tokens",
            remedy="Texts would have two encodings; convert the model again",
        )
    return ids


def _stop_ids(vocab: Vocab, ids: Mapping[str, int]) -> frozenset[int]:
    stops = {vocab.special[role] for role in _STOP_ROLES if role in vocab.special}
    whole = (TokenKind.CONTROL, TokenKind.USER_DEFINED)
    names = {name for name in _STOP_NAMES if name in ids and vocab.kinds[ids[name]] in whole}
    if {"<|return|>", "<|call|>"} <= names:  # harmony: <|end|> only ends one of several messages
        names.discard("<|end|>")
    return frozenset(stops | {ids[name] for name in names})
