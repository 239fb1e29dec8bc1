"""All ways to put a token together from two others, for a whole vocabulary at once.

SentencePiece vocabularies do not list their merges, and a quarter million tokens can be cut in more
than a million places. Looking up every half as a string takes seconds; here a half is looked up by
a 64-bit hash that prefix sums give for any piece of any token, all cuts in one NumPy pass.
"""

from __future__ import annotations

from operator import add, eq

import numpy as np
import numpy.typing as npt

from minfer.errors import TokenizerError

_BASE = 0x5851F42D4C957F2D  # odd, so that it has an inverse modulo 2**64
_BUCKET_BITS = 19

Ints = npt.NDArray[np.intp]
Hashes = npt.NDArray[np.uint64]


def all_splits(texts: list[str]) -> list[tuple[str, str]]:
    """Return every (left, right) of which both are in `texts` and left + right is too.

    Args:
        texts: different, non-empty strings.

    Returns:
        The pairs, ordered by the place of the whole in `texts`, then of the left half.

    Raises:
        TokenizerError: two of the texts, or of their pieces, have the same hash.
    """
    if not texts:
        return []
    n_chars = np.fromiter(map(len, texts), np.intp, len(texts))
    ends = np.cumsum(n_chars)
    starts = ends - n_chars
    hasher = _PieceHasher("".join(texts))
    table = _Table(hasher(starts, ends))

    # Every cut that leaves something on both sides, and whose text it cuts.
    whole = np.repeat(np.arange(len(texts)), n_chars - 1)
    inside = np.ones(ends[-1], bool)
    inside[starts] = False
    cut = np.flatnonzero(inside)

    right, found = table.find(hasher(cut, ends[whole]))
    whole, cut, right = whole[found], cut[found], right[found]
    left, found = table.find(hasher(starts[whole], cut))
    whole, left, right = whole[found], left[found], right[found]

    order = np.argsort(whole * len(texts) + left)
    lefts = [texts[at] for at in left[order].tolist()]
    rights = [texts[at] for at in right[order].tolist()]
    wholes = [texts[at] for at in whole[order].tolist()]
    if not all(map(eq, map(add, lefts, rights), wholes)):
        raise _collision()
    return list(zip(lefts, rights, strict=True))


class _PieceHasher:
    """Hashes any piece of a text in constant time, by prefix sums of a polynomial modulo 2**64."""

    def __init__(self, text: str) -> None:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        mixed = (codes + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        self._sums = np.zeros(len(codes) + 1, np.uint64)
        np.cumsum(mixed * _powers(_BASE, len(codes)), out=self._sums[1:])
        self._shift = _powers(pow(_BASE, -1, 2**64), len(codes) + 1)

    def __call__(self, begin: Ints, end: Ints) -> Hashes:
        hashes: Hashes = (self._sums[end] - self._sums[begin]) * self._shift[begin]
        return hashes


class _Table:
    """Finds hashes: sorted, with the first place of each bucket of their top bits."""

    def __init__(self, hashes: Hashes) -> None:
        self._order = np.argsort(hashes)
        ordered = hashes[self._order]
        if (ordered[1:] == ordered[:-1]).any():
            raise _collision()
        self._ordered = np.append(ordered, np.uint64(0))  # a place past the end holds something
        counts = np.bincount(self._bucket(ordered), minlength=1 << _BUCKET_BITS)
        self._first = np.cumsum(counts) - counts

    def find(self, hashes: Hashes) -> tuple[Ints, Ints]:
        """Return for each hash the index of its equal, and the positions of the hashes found."""
        at = self._first[self._bucket(hashes)]
        last = len(self._order)
        behind = np.flatnonzero((self._ordered[at] < hashes) & (at < last))
        while behind.size:
            at[behind] += 1
            behind = behind[(self._ordered[at[behind]] < hashes[behind]) & (at[behind] < last)]
        found = np.flatnonzero((self._ordered[at] == hashes) & (at < last))
        return self._order[np.minimum(at, last - 1)], found

    @staticmethod
    def _bucket(hashes: Hashes) -> Ints:
        return (hashes >> np.uint64(64 - _BUCKET_BITS)).astype(np.intp)


def _powers(base: int, n: int) -> Hashes:
    factors = np.full(n, base, np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)


def _collision() -> TokenizerError:
    return TokenizerError(
        "two tokens have the same 64-bit hash",
        where="tokenizer.ggml.tokens",
        remedy="No vocabulary in use does; report this file",
    )
