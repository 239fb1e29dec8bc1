"""Building the `tokenizers` objects that merge text into ids, one per kind of vocabulary.

The library takes a vocabulary and a ranked list of merges. Byte-level files list their merges;
SentencePiece files only score tokens, so every way to put a token together from two others is a
merge there, ranked by the score of the token it makes. Nothing here is kept after building.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minfer.errors import TokenizerError
from minfer.text.pretokenizers import PreTokenizer
from minfer.text.splits import all_splits
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
            scored_merges(vocab),
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


def scored_merges(vocab: Vocab) -> list[tuple[str, str]]:
    """Return every pair of normal tokens that makes a third, best score of the result first.

    Ties go to the lower id of the result, then to the better left half. Control tokens take no
    part: none ever comes out of plain text.
    """
    assert vocab.scores is not None  # read_vocab demands them of this kind
    normal = np.flatnonzero(vocab.kinds == TokenKind.NORMAL)
    best_first = normal[np.argsort(-vocab.scores[normal], kind="stable")]
    return all_splits([text for at in best_first.tolist() if (text := vocab.tokens[at])])


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
