"""A lock that is handed on in the order of asking.

`threading.Lock` lets the thread that has just released it take it again before those that wait.
A thread that steps the engine for everybody would keep it, and the others would find their tokens
late and in bursts.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from types import TracebackType


class FairLock:
    """A lock for threads, first come, first served."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._held = False
        self._waiting: deque[Lock] = deque()

    def acquire(self) -> None:
        """Wait for the lock."""
        with self._guard:
            if not self._held:
                self._held = True
                return
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()  # released by whoever hands the lock on
        except BaseException:  # Ctrl-C while waiting
            with self._guard:
                handed_on = turn not in self._waiting
                if not handed_on:
                    self._waiting.remove(turn)
            if handed_on:
                self.release()
            raise

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it. Never waits, so a finalizer may call it anywhere."""
        if not self._guard.acquire(blocking=False):
            return False
        try:
            free = not self._held
            self._held = True
            return free
        finally:
            self._guard.release()

    def release(self) -> None:
        """Hand the lock to the one who has waited longest."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
