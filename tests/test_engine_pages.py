"""Reference counts, and the tree of known beginnings: what it finds, keeps and gives up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.engine import PagePool, Prefix, PrefixCache
from minfer.graph import PAGE

A = list(range(1000, 1200))
B = [*A[:100], *range(2000, 2100)]


class Known:
    """A cache, and the pages of what is put into it."""

    def __init__(self, n_pages: int = 12) -> None:
        self.pool = PagePool(n_pages)
        self.cache = PrefixCache(self.pool)

    def add(self, tokens: Sequence[int], n_exact: int | None = None) -> list[int]:
        """What a finished sequence leaves: the cache is then the only holder of its pages."""
        pages = [self.pool.take() for _ in range(-(-len(tokens) // PAGE))]
        self.cache.add(tokens, pages, len(tokens) if n_exact is None else n_exact)
        for page in pages:
            self.pool.drop(page)
        return pages

    def find(self, tokens: Sequence[int], exact_only: bool = True) -> Prefix:
        return self.cache.find(tokens, exact_only=exact_only)

    @property
    def n_held(self) -> int:
        return self.pool.n_pages - self.pool.n_free


def test_a_page_is_free_after_its_last_holder() -> None:
    pool = PagePool(2)
    page = pool.take()
    pool.share(page)
    pool.drop(page)
    assert (pool.references(page), pool.n_free, pool.n_shared) == (1, 1, 0)
    pool.drop(page)
    assert pool.n_free == 2
    with pytest.raises(AssertionError):
        pool.drop(page)
    with pytest.raises(AssertionError):
        pool.share(page)


def test_whole_pages_are_shared_and_the_rest_copied() -> None:
    known = Known()
    pages = known.add(A[:150])
    assert known.find(A) == Prefix(tuple(pages[:2]), pages[2], 22)
    assert known.find(A[:128]) == Prefix(tuple(pages[:1]), pages[1], 63)  # one is left to compute
    assert known.find(A[:129]) == Prefix(tuple(pages[:2]))
    assert known.find(A[:1]) == Prefix()
    assert known.find(B) == Prefix(tuple(pages[:1]), pages[1], 36)
    assert known.find(A[1:]) == Prefix()
    assert known.find(A).n_tokens == 150


def test_the_longest_of_several_is_found() -> None:
    known = Known()
    known.add(A[:70])
    pages = known.add(B[:120])
    first = known.find(B).pages[0]
    assert known.find(B) == Prefix((first,), pages[1], 56)


def test_generated_tokens_serve_only_those_who_accept_them() -> None:
    known = Known()
    pages = known.add(A[:150], n_exact=80)
    assert known.find(A) == Prefix(tuple(pages[:1]), pages[1], 16)
    assert known.find(A, exact_only=False) == Prefix(tuple(pages[:2]), pages[2], 22)


def test_exact_pages_replace_inexact_ones_for_those_who_need_them() -> None:
    known = Known()
    rough = known.add(A[:128], n_exact=0)
    assert known.find(A) == Prefix()
    exact = known.add(A[:128])
    assert known.find(A) == Prefix(tuple(exact))
    assert known.find(A, exact_only=False).pages in (tuple(rough), tuple(exact))
    assert known.add(A[:128], n_exact=0) and known.n_held == 4  # nothing new


def test_a_longer_tail_takes_the_place_of_a_shorter_one() -> None:
    known = Known()
    known.add(A[:70])
    known.add(A[:90])
    assert known.n_held == len(known.cache) == 2
    known.add(A[:80])
    known.add(A[:128])
    assert known.n_held == 2
    known.add(B[:110], n_exact=0)
    assert known.n_held == 3
    known.add(B[:128], n_exact=0)
    assert known.n_held == 3
    known.add(A[:100], n_exact=100)
    assert known.n_held == 3


def test_an_exact_tail_is_not_replaced_by_a_rougher_one() -> None:
    known = Known()
    known.add(A[:90])
    known.add(A[:120], n_exact=70)
    assert known.find(A[:100]).n_tokens == 90
    assert known.find(A, exact_only=False).n_tokens == 120


def test_the_least_recently_used_leaf_goes_first() -> None:
    known = Known()
    known.add(A[:192])
    other = known.add(range(64))
    known.find(A)
    assert known.cache.evict(1) == 1
    assert known.pool.references(other[0]) == 0
    assert known.cache.evict(2) == 2  # from the end of A on
    assert known.find(A).n_tokens == 64
    assert known.cache.evict(5) == 1
    assert known.cache.evict(1) == 0
    assert (known.n_held, len(known.cache)) == (0, 0)


def test_what_a_sequence_holds_stays() -> None:
    known = Known()
    pages = known.add(A[:192])
    known.pool.share(pages[1])
    assert known.cache.n_reclaimable() == 1
    assert known.cache.evict(3) == 1
    assert known.find(A).n_tokens == 128
    known.pool.drop(pages[1])
    assert known.cache.n_reclaimable() == 2


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=5 * PAGE).map(
    lambda bits: [bit * (i % 7 == 0) for i, bit in enumerate(bits)]
)


@given(st.lists(st.tuples(tokens, st.integers(0, 400)), max_size=8), tokens, st.booleans())
def test_what_is_found_is_a_beginning_that_was_put_in(
    added: list[tuple[list[int], int]], wanted: list[int], exact_only: bool
) -> None:
    known = Known(64)
    contents: dict[int, tuple[int, ...]] = {}
    for put, n_exact in added:
        for index, page in enumerate(known.add(put, n_exact)):
            if known.pool.references(page):
                contents[page] = tuple(put[index * PAGE : (index + 1) * PAGE])
    found = known.find(wanted, exact_only=exact_only)
    held = [t for page in found.pages for t in contents[page]]
    if found.tail is not None:
        assert 0 < found.n_tail < PAGE
        held += contents[found.tail][: found.n_tail]
    assert held == wanted[: found.n_tokens]
    assert found.n_tokens < len(wanted)

    def common(put: list[int], limit: int) -> int:
        limit = min(limit, len(put), len(wanted) - 1)
        return next((i for i in range(limit) if put[i] != wanted[i]), limit)

    best = max(
        (common(put, n_exact if exact_only else len(put)) for put, n_exact in added), default=0
    )
    assert found.n_tokens >= best
    assert known.n_held == len(known.cache) == known.cache.n_reclaimable()
    known.cache.clear()
    assert known.n_held == 0
