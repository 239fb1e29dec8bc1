"""Building the `tokenizers` objects that merge text into ids, one per kind of vocabulary.

The library takes a vocabulary and a ranked list of merges. Byte-level files list their merges;
SentencePiece files only score tokens, so every way to put a token together from two others is a
merge there, ranked by the score of the token it makes. Nothing here is kept after building.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from minfer.errors import TokenizerError
from minfer.text.pretokenizers import PreTokenizer
from minfer.text.vocab import TokenKind, Vocab

if TYPE_CHECKING:
    import tokenizers


def build_byte_level(
    vocab: Vocab, ids: dict[str, int], pre: PreTokenizer, *, space_prefix: bool
) -> tokenizers.Tokenizer:
    """Build the encoder of a `gpt2` vocabulary, without added tokens.

    Raises:
        TokenizerError: a merge names or makes a token that is not there.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    for rank, (left, right) in enumerate(vocab.merges):
        if not (left in ids and right in ids and left + right in ids):
            missing = next(text for text in (left, right, left + right) if text not in ids)
            raise TokenizerError(
                f"entry {rank} ({left!r} {right!r}) needs the token {missing!r}, which is missing",
                where="tokenizer.ggml.merges",
            )
    encoder = Tokenizer(models.BPE(ids, vocab.merges, ignore_merges=pre.ignore_merges))
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=space_prefix, use_regex=False),
        ]
    )
    return encoder


def build_sentencepiece(
    vocab: Vocab, ids: dict[str, int], *, space_prefix: bool
) -> tokenizers.Tokenizer:
    """Build the encoder of a `llama` vocabulary, without added tokens."""
    from tokenizers import Tokenizer, models, normalizers

    unknown = vocab.special.get("unk")
    encoder = Tokenizer(
        models.BPE(
            ids,
            scored_merges(vocab, ids),
            unk_token=None if unknown is None else vocab.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    encoder.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if space_prefix else spaces
    )
    return encoder


def scored_merges(vocab: Vocab, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every pair of tokens that makes a normal token, best score of the result first.

    Ties go to the lower id of the result, then of its left half, as the reference converters rank
    them. Only normal tokens are made: a control token never comes out of plain text.
    """
    assert vocab.scores is not None  # read_vocab demands them of this kind
    made = np.flatnonzero(vocab.kinds == TokenKind.NORMAL)
    best_first = made[np.argsort(-vocab.scores[made], kind="stable")]
    merges = []
    for text in map(vocab.tokens.__getitem__, best_first.tolist()):
        splits = [
            (text[:cut], text[cut:])
            for cut in range(1, len(text))
            if text[cut:] in ids and text[:cut] in ids
        ]
        if len(splits) > 1:
            splits.sort(key=lambda pair: ids[pair[0]])
        merges += splits
    return merges


def twin(encoder: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return an encoder that shares another's merger and splits as it does, without its tokens."""
    from tokenizers import Tokenizer

    other = Tokenizer(encoder.model)
    other.normalizer = encoder.normalizer
    other.pre_tokenizer = encoder.pre_tokenizer
    return other


def empty() -> tokenizers.Tokenizer:
    """Return an encoder that yields nothing until it is given tokens to match."""
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE({}, []))


def add_tokens(encoder: tokenizers.Tokenizer, vocab: Vocab, kinds: tuple[TokenKind, ...]) -> None:
    """Let an encoder match the tokens of these kinds whole, before any merging."""
    from tokenizers import AddedToken

    whole = np.flatnonzero(np.isin(vocab.kinds, kinds)).tolist()
    encoder.add_tokens(
        [
            AddedToken(vocab.tokens[token], normalized=False)
            for token in whole
            if vocab.tokens[token]
        ]
    )
