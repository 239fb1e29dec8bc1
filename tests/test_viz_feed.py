"""Events: kept for late pages, lost by slow ones with a word, in order for the rest."""

from __future__ import annotations

import json

from minfer.viz import Feed
from minfer.viz.feed import BACKLOG, KEPT_STEPS, Listener


def drained(listener: Listener) -> list[tuple[str, object]]:
    found = []
    while (text := listener.get(timeout=0.01)) is not None:
        kind, data = text.strip().split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_a_late_page_gets_what_lasts_and_what_is_recent() -> None:
    feed = Feed()
    feed.send("status", "loading", lasting="status")
    feed.send("step", 0)
    feed.send("status", "ready", lasting="status")
    feed.send("step", 1)
    early = feed.listen()
    assert drained(early) == [("status", "ready"), ("step", 0), ("step", 1)]
    feed.clear()
    feed.send("step", 2)
    assert drained(early) == [("step", 2)]
    assert drained(feed.listen()) == [("status", "ready"), ("step", 2)]
    feed.leave(early)
    feed.send("step", 3)
    assert drained(early) == []


def test_a_slow_page_is_told_what_it_missed() -> None:
    feed = Feed()
    slow = feed.listen()
    for n in range(BACKLOG + 10):
        feed.send("step", n)
    found = drained(slow)
    assert found[0] == ("lost", {"events": 10})
    assert [n for _, n in found[1:]] == list(range(10, BACKLOG + 10))


def test_only_so_many_steps_are_kept() -> None:
    feed = Feed()
    for n in range(KEPT_STEPS + 5):
        feed.send("step", n)
    assert [n for _, n in drained(feed.listen())] == list(range(5, KEPT_STEPS + 5))
