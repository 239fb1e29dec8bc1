"""Whose turn it is: clients take turns, and nobody computes what another is computing."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from hypothesis import given
from hypothesis import strategies as st

from minfer.engine import Sampler, SamplingParams, Sequence, State
from minfer.engine.waiting import Waiting
from minfer.graph import PAGE


def sequence(tokens: Seq[int] = (1,), client: str = "", n_cached: int = 0) -> Sequence:
    run = Sequence(
        list(tokens), len(tokens), 9, frozenset(), Sampler(SamplingParams(seed=1)), False, client
    )
    run.n_cached = n_cached
    return run


def order(waiting: Waiting, running: Seq[Sequence] = ()) -> list[Sequence]:
    """How they come in, if each stays."""
    inside = list(running)
    while (turn := waiting.next(inside)) is not None:
        waiting.remove(turn)
        turn.state = State.DECODING
        inside.append(turn)
    return inside[len(running) :]


def queue(*sequences: Sequence, share_prefixes: bool = True) -> Waiting:
    waiting = Waiting(share_prefixes=share_prefixes)
    for run in sequences:
        waiting.add(run)
    return waiting


@given(st.lists(st.sampled_from("abc"), max_size=20))
def test_clients_take_turns(clients: list[str]) -> None:
    runs = [sequence(client=client) for client in clients]
    came = order(queue(*runs))
    assert set(came) == set(runs)
    assert len(came) == len(runs)
    for at in range(len(came)):
        inside = [run.client for run in came[:at]]
        fewest = min(inside.count(run.client) for run in came[at:])
        assert inside.count(came[at].client) == fewest
    for client in "abc":  # each in its own order
        own = [run for run in runs if run.client == client]
        assert [run for run in came if run.client == client] == own


def test_who_ran_already_comes_first() -> None:
    new, again, more = sequence(), sequence(), sequence()
    waiting = queue(new)
    waiting.put_back(more)
    waiting.put_back(again)
    assert len(waiting) == 3
    assert order(waiting) == [again, more, new]


def test_removing() -> None:
    a, b, c = sequence(), sequence(), sequence()
    waiting = queue(a, b)
    waiting.put_back(c)
    for run in (a, c, c):
        waiting.remove(run)
    assert len(waiting) == 1
    assert (a in waiting, b in waiting, c in waiting) == (False, True, False)


def test_a_prompt_waits_for_one_that_begins_like_it() -> None:
    system = list(range(2 * PAGE))
    first = sequence([*system, 7])
    first.state = State.PREFILLING
    like_it = sequence([*system, 8])
    other = sequence([5, *system])
    waiting = queue(like_it, other)
    assert waiting.next([first]) is other
    waiting.remove(other)
    assert waiting.next([first]) is None
    first.state = State.DECODING
    assert waiting.next([first]) is like_it


def test_it_does_not_wait_for_what_it_cannot_share() -> None:
    system = list(range(2 * PAGE))
    short = sequence(system[: PAGE - 1])
    same = sequence(system[:PAGE])  # its last token is computed in any case
    known = sequence([*system, 8])

    def first(n_cached: int) -> Sequence:
        run = sequence([*system, 7], n_cached=n_cached)
        run.state = State.PREFILLING
        return run

    assert queue(short).next([first(0)]) is short
    assert queue(same).next([first(0)]) is same
    assert queue(known).next([first(PAGE)]) is None
    assert queue(known).next([first(2 * PAGE)]) is known
    assert queue(known, share_prefixes=False).next([first(0)]) is known
