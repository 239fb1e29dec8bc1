"""Slots and pages change hands all or not at all, whatever fails on the way."""

from __future__ import annotations

import pytest

from minfer.engine import Sampler, SamplingParams, Sequence
from minfer.engine.space import KVSpace
from minfer.graph import PAGE


def run_of(n_tokens: int, first: int = 0, reuse_decoded: bool = False) -> Sequence:
    tokens = list(range(first, first + n_tokens))
    sampler = Sampler(SamplingParams(seed=1))
    return Sequence(tokens, n_tokens, 10, frozenset(), sampler, reuse_decoded)


class Space(KVSpace):
    def __init__(self, n_pages: int = 4, n_slots: int = 2, keep: bool = True) -> None:
        self.copies: list[tuple[int, int]] = []
        self.broken = False
        super().__init__(n_pages, n_slots, keep_prefixes=keep, copy_page=self.copy)

    def copy(self, source: int, target: int) -> None:
        if self.broken:
            raise RuntimeError("the device is gone")
        self.copies.append((source, target))

    def finish(self, run: Sequence, n_computed: int | None = None) -> None:
        self.remember(run, len(run.tokens) if n_computed is None else n_computed)
        self.leave(run)


def test_room_for_the_prompt_and_one_more() -> None:
    space = Space()
    run = run_of(PAGE)
    assert space.enter(run)
    assert (len(run.pages), run.slot, run.n_computed) == (2, 0, 0)
    space.leave(run)
    assert (space.pool.n_free, run.slot, len(run.pages), space.n_left) == (4, -1, 0, 1)


def test_no_slot_or_no_page_changes_nothing() -> None:
    space = Space(n_pages=4, n_slots=1)
    assert space.enter(run_of(10))
    other = run_of(10)
    assert not space.enter(other)
    assert not space.enter_alone(other)
    space = Space(n_pages=4)
    big = run_of(4 * PAGE)
    assert not space.enter(big)
    assert (space.pool.n_free, big.slot, len(big.pages)) == (4, -1, 0)
    assert space.enter_alone(big)


def test_a_known_beginning_is_shared_and_its_tail_copied() -> None:
    space = Space(8)
    first = run_of(100)
    assert space.enter(first)
    space.finish(first)
    second = run_of(120)
    assert space.enter(second)
    assert second.n_computed == 100
    assert space.copies == [
        (space.cache.find(second.tokens, exact_only=True).tail, second.pages[1])
    ]
    assert space.pool.references(second.pages[0]) == 2
    assert space.pool.references(second.pages[1]) == 1


def test_prefixes_are_not_kept_when_switched_off() -> None:
    space = Space(keep=False)
    for _ in range(2):
        run = run_of(100)
        assert space.enter(run)
        assert run.n_computed == 0
        space.finish(run)
    assert space.pool.n_free == 4


def test_the_tail_is_given_up_when_its_own_page_is_missing() -> None:
    """Four pages hold a conversation; its next turn needs the fourth one itself."""
    space = Space(4)
    first = run_of(200)
    assert space.enter(first)
    space.finish(first)
    assert space.pool.n_free == 0
    second = run_of(230)
    assert space.enter(second)
    assert (second.n_computed, len(second.pages), space.copies) == (192, 4, [])


def test_cached_pages_are_given_up_only_when_that_is_enough() -> None:
    space = Space(4)
    old = run_of(2 * PAGE, first=500)
    assert space.enter(old)
    space.finish(old)
    running = run_of(70)
    assert space.enter(running)
    assert len(space.cache) == 2
    assert not space.enter(run_of(3 * PAGE, first=900))
    assert len(space.cache) == 2  # nothing was lost for nothing
    assert space.enter(run_of(PAGE, first=900))
    assert len(space.cache) == 0


def test_a_failed_copy_gives_everything_back() -> None:
    space = Space(8)
    first = run_of(100)
    assert space.enter(first)
    space.finish(first)
    before = space.pool.n_free
    space.broken = True
    second = run_of(120)
    with pytest.raises(RuntimeError):
        space.enter(second)
    assert (space.pool.n_free, second.slot, len(second.pages)) == (before, -1, 0)
    space.broken = False
    assert space.enter(second)


def test_a_failed_restore_gives_everything_back() -> None:
    space = Space(4)

    def write(index: int, page: int) -> None:
        if index == 1:
            raise ValueError("bytes of another size")

    with pytest.raises(ValueError, match="another size"):
        space.put(list(range(100)), write)
    assert (space.pool.n_free, len(space.cache)) == (4, 0)
    assert not space.put(list(range(5 * PAGE)), lambda index, page: None)
    assert space.put(list(range(100)), lambda index, page: None)
    assert (space.pool.n_free, len(space.cache)) == (2, 2)
    exact = run_of(120)
    rough = run_of(120, reuse_decoded=True)
    assert space.enter(rough)
    assert rough.n_computed == 100
    space.leave(rough)
    assert space.enter(exact)
    assert exact.n_computed == 0  # nobody knows how what was restored had been computed
