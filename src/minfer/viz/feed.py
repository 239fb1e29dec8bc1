"""What the page is told: events kept for whoever comes late, and handed to whoever listens."""

from __future__ import annotations

import json
from collections import deque
from queue import Empty, Full, Queue
from threading import Lock
from typing import Any

KEPT_STEPS = 256
"""Steps a page that opens later still gets."""
BACKLOG = 512
"""Events a listener may be behind; then its oldest go, and it is told how many."""


class Listener:
    """One open page."""

    def __init__(self) -> None:
        self._queue: Queue[str] = Queue(BACKLOG)
        self._n_lost = 0

    def put(self, message: str) -> None:
        """Hand over an event; a page that does not keep up loses the oldest."""
        while True:
            try:
                self._queue.put_nowait(message)
                return
            except Full:
                self._drop()

    def _drop(self) -> None:
        try:
            self._queue.get_nowait()
            self._n_lost += 1
        except Empty:
            pass  # the page has just caught up

    def get(self, timeout: float) -> str | None:
        """The next event, or None if there is none for so long."""
        if self._n_lost:
            lost, self._n_lost = self._n_lost, 0
            return message("lost", {"events": lost})
        try:
            return self._queue.get(timeout=timeout)
        except Empty:
            return None


class Feed:
    """Events in order, to any number of listeners."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: list[Listener] = []
        self._lasting: dict[str, str] = {}
        self._recent: deque[str] = deque(maxlen=KEPT_STEPS)

    def send(self, kind: str, content: Any, *, lasting: str | None = None) -> None:
        """Tell all listeners.

        Args:
            kind: name of the event.
            content: what JSON can hold.
            lasting: a name under which the event is kept for later listeners until another of
                that name replaces it; without one, only the latest events are kept.
        """
        text = message(kind, content)
        with self._lock:
            if lasting is not None:
                self._lasting[lasting] = text
            else:
                self._recent.append(text)
            for listener in self._listeners:
                listener.put(text)

    def clear(self) -> None:
        """Forget the latest events, as before another run."""
        with self._lock:
            self._recent.clear()

    def listen(self) -> Listener:
        """A new listener, which first gets what is kept."""
        listener = Listener()
        with self._lock:
            for text in (*self._lasting.values(), *self._recent):
                listener.put(text)
            self._listeners.append(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Forget a listener."""
        with self._lock:
            self._listeners.remove(listener)


def message(kind: str, content: Any) -> str:
    """An event as server-sent events have it."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"event: {kind}\ndata: {text}\n\n"
