"""The engine under random requests: no page is lost, none is shared wrongly, no token changes.

`Historian` stands for the model: its next token depends on every token the page table leads to.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from backends_fake import next_token
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiny_models import N_VOCAB, expected_tokens, historian_engine

from minfer.engine import Lane, Sequence, State
from minfer.engine import SamplingParams as Params
from minfer.errors import BusyError

BASES = [[7 * i + b for i in range(200)] for b in range(3)]


class Requests(RuleBasedStateMachine):
    """Requests with common beginnings come, go on and are cancelled in a cache of six pages."""

    def __init__(self) -> None:
        super().__init__()
        self.engine, self.backend = historian_engine()
        self.runs: list[Sequence] = []
        self.events: dict[Sequence, list[object]] = {}
        self.lanes: list[Lane] = []

    @rule(
        base=st.integers(0, 2),
        length=st.sampled_from([1, 5, 63, 64, 65, 127, 128, 129, 190]),
        n=st.sampled_from([1, 2, 10, 30]),
        reuse=st.booleans(),
        extra=st.integers(0, 2),
        client=st.sampled_from("ab"),
    )
    def add(self, base: int, length: int, n: int, reuse: bool, extra: int, client: str) -> None:
        prompt = [t % N_VOCAB for t in BASES[base][:length]] + [1, 2, 3][:extra]
        params = Params(temperature=0.0, max_tokens=n)
        self.runs.append(self.engine.add(prompt, params, reuse_decoded=reuse, client=client))

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), reuse=st.booleans())
    def go_on(self, data: st.DataObject, reuse: bool) -> None:
        """The next turn of a conversation: what was said, and a little more."""
        run = data.draw(st.sampled_from(self.runs))
        if len(run.tokens) < 200:
            params = Params(temperature=0.0, max_tokens=5)
            prompt = [*run.tokens, 9, 9]
            self.runs.append(self.engine.add(prompt, params, reuse_decoded=reuse))

    @rule(n=st.integers(1, 6))
    def step(self, n: int) -> None:
        for _ in range(n):
            for run, event in self.engine.step():
                self.events.setdefault(run, []).append(event)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.engine.cancel(data.draw(st.sampled_from(self.runs)))

    @rule()
    def forget(self) -> None:
        self.engine.clear_cache()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def save_and_restore(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.runs))
        n_tokens, pages = self.engine.prefix_pages(run.tokens)
        contents = self.engine.read_pages(pages)
        if n_tokens and self.engine.pages[0] > len(pages):
            self.engine.clear_cache()
            self.engine.restore(run.tokens[:n_tokens], contents)

    @rule(length=st.sampled_from([3, 64, 100]))
    def open_lane(self, length: int) -> None:
        try:
            lane = self.engine.lane(length)
        except BusyError:
            assert self.engine.n_running or self.lanes
            return
        logits = lane.compute([5] * length, wanted="all")
        assert logits[-1].argmax() == next_token([5] * length, N_VOCAB)
        self.lanes.append(lane)

    @precondition(lambda self: self.lanes)
    @rule()
    def close_lane(self) -> None:
        self.lanes.pop(0).close()

    @invariant()
    def every_reference_has_its_holder(self) -> None:
        space = self.engine._space
        holders = [*self.engine._roster.running, *(lane._run for lane in self.lanes)]
        held = Counter(chain.from_iterable(run.pages for run in holders))
        held.update(node.page for node in space.cache._nodes())
        for page in range(space.pool.n_pages):
            assert space.pool.references(page) == held[page]
        assert space.pool.n_free == sum(held[p] == 0 for p in range(space.pool.n_pages))
        assert len(space.cache) == len(space.cache._nodes())

    @invariant()
    def states_agree(self) -> None:
        for run in self.runs:
            assert (run.slot >= 0) == (run in self.engine._roster.running)
            assert (run.state is State.WAITING) == (run in self.engine._roster.waiting)
        slots = [run.slot for run in self.engine._roster.running]
        assert len(set(slots)) == len(slots)

    @invariant()
    def what_could_be_reclaimed_can_be(self) -> None:
        free, reclaimable, total = self.engine.pages
        assert 0 <= free + reclaimable <= total

    def teardown(self) -> None:
        for lane in self.lanes:
            lane.close()
        self.lanes.clear()
        for _ in range(2000):
            if not self.engine.has_work:
                break
            self.step(1)
        assert not self.engine.has_work, "the engine never came to an end"
        for run in self.runs:
            events = self.events[run]
            assert [e.finish_reason for e in events[:-1]] == [None] * (len(events) - 1)
            assert events[-1].finish_reason == run.finish_reason in ("length", "cancelled")
            found = run.tokens[run.n_prompt :]
            assert [e.choice.token for e in events if e.choice] == found
            assert found == expected_tokens(run.tokens[: run.n_prompt], len(found))
            if run.finish_reason == "length":
                assert len(found) == run.max_tokens
        self.engine.clear_cache()
        assert self.engine.pages == (6, 0, 6)


Requests.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestRequests = pytest.mark.filterwarnings("default")(Requests.TestCase)
