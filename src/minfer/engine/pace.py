"""How many prompt rows a step takes, so that nobody waits long for it.

After a step that took too long there are as many fewer rows as it took too much; after one that
took less than half of what it may, twice as many. A step beside running streams may take less time
than one with prompts alone, which still must end soon enough for new requests and cancellations;
where any step shows that the device is far slower than thought, both learn from it.
"""

from __future__ import annotations

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
        rows, limit = self._rows[beside], self._seconds[beside]
        if seconds > limit:
            self._fit(beside, n_other, seconds)
        elif n_other >= rows and seconds < limit / 2:
            self._rows[beside] = min(self._most, 2 * rows)
        if n_other >= min(LEAST, self._most):  # fewer tell more of a step than of its rows
            for kind, limit in self._seconds.items():
                if seconds * self._rows[kind] / n_other > 2 * limit:
                    self._fit(kind, n_other, seconds)

    def _fit(self, beside: bool, n_rows: int, seconds: float) -> None:
        """Take as many rows as there is time for, where `n_rows` take so many seconds."""
        fit = int(n_rows * self._seconds[beside] / seconds)
        power = 1 << max(0, fit.bit_length() - 1)
        self._rows[beside] = min(max(power, min(LEAST, self._most)), self._rows[beside])
