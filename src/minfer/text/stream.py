"""Text as it is generated: token ids in, printable pieces out, ending before a stop string.

The pieces joined are exactly what decoding all ids at once and cutting at the first stop would
give, however the text falls into tokens. Bytes of a character not yet complete, and characters that
may turn out to begin a stop string, are held back.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

from minfer.errors import RequestError
from minfer.text.tokenizer import Tokenizer


class StopStrings:
    """Passes text on up to the first stop string, wherever its pieces break.

    The first stop is the one that ends first, and of those the one that begins first: so the cut
    does not depend on the pieces.

    Attributes:
        stopped: the stop string found, None while there is none.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        for at, text in enumerate(stop):
            if not isinstance(text, str) or not text:
                raise RequestError(f"is {text!r}, not a string with text", where=f"stop[{at}]")
        self.stopped: str | None = None
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""

    def push(self, text: str) -> str:
        """Take the next piece and return what can no longer belong to a stop string."""
        if self.stopped is not None:
            return ""
        text = self._held + text
        cut = self.first(text)
        if cut is not None:
            begin, self.stopped = cut
            self._held = ""
            return text[:begin]
        keep = next(
            (
                size
                for size in range(min(self._longest - 1, len(text)), 0, -1)
                if any(stop.startswith(text[-size:]) for stop in self._stop)
            ),
            0,
        )
        emit = len(text) - keep
        self._held = text[emit:]
        return text[:emit]

    def finish(self) -> str:
        """Return what was held back: the text ended without completing a stop string."""
        held, self._held = self._held, ""
        return held

    def first(self, text: str) -> tuple[int, str] | None:
        """Return where the first stop string in a text begins, and which it is."""
        found = [(at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if not found:
            return None
        _, at, stop = min(found)
        return at, stop


class TextStream:
    """Turns generated ids into text, piece by piece.

    Attributes:
        stopped: the stop string that ended the text, None while there is none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        skip_special: bool = True,
        keep: Collection[int] = (),
    ) -> None:
        """Begin a text.

        Args:
            tokenizer: the vocabulary of the ids.
            stop: strings the text ends before.
            skip_special: leave control tokens out.
            keep: control tokens to leave in all the same, such as the marks of tool calls.

        Raises:
            RequestError: a stop string is empty.
        """
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._keep = frozenset(keep)
        self._stops = StopStrings(stop)
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._fresh = True

    @property
    def stopped(self) -> str | None:
        return self._stops.stopped

    def push(self, token: int) -> str:
        """Take the next id and return the text that is certain by now, often the empty string.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """
        piece, self._fresh = self._tokenizer.piece(token, self._fresh)
        if self._skip_special and self._tokenizer.is_control(token) and token not in self._keep:
            return ""
        return self._stops.push(self._bytes.decode(piece))

    def finish(self) -> str:
        """Return the rest: incomplete bytes as U+FFFD, and what looked like the start of a stop."""
        rest = self._stops.push(self._bytes.decode(b"", final=True))
        return rest + self._stops.finish()
