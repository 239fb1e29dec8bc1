"""How many prompt rows a step takes, so that nobody waits long for it.

Rows are halved after a step that took too long, and doubled after one that took less than half of
what it may. A step beside running streams may take less time than one with prompts alone, which
still must end soon enough for new requests and cancellations.
"""

from __future__ import annotations

from minfer.engine.batcher import bucket

LEAST = 16
"""Prompt rows a step takes in any case: a prompt must come to its end."""
ALONE = 5.0
"""How much longer a step may take while no stream is running."""


class Pace:
    """Adapts the prompt rows of steps to the time they take.

    Args:
        most: prompt rows a step can take.
        seconds: what a step beside running streams may take.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = {True: seconds, False: seconds * ALONE}
        self._rows = {True: min(most, 128), False: most}

    def rows(self, *, beside_streams: bool) -> int:
        """Prompt rows for the next step."""
        return self._rows[beside_streams]

    def note(self, n_single: int, n_other: int, seconds: float) -> None:
        """Learn from a step: its rows for streams, its prompt rows, and how long it took."""
        if not n_other:
            return
        beside = n_single > 0
        if seconds > self._seconds[beside]:
            self._rows[beside] = max(min(LEAST, self._most), bucket(n_other) // 2)
        elif n_other >= self._rows[beside] and seconds < self._seconds[beside] / 2:
            self._rows[beside] = min(self._most, 2 * self._rows[beside])
