"""The pieces of one request as an iterator that ends its request with itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from minfer.engine import Event
from minfer.engine import Sequence as Run
from minfer.llm.pieces import PieceMaker
from minfer.llm.results import Piece


class PieceStream(Iterator[Piece]):
    """Pieces of text, computed when they are asked for.

    Closing it, or dropping it, cancels a request that has not ended. (A generator would not do:
    one that was never started runs no code when it is dropped.)

    Args:
        run: the request.
        maker: makes its pieces.
        wait: answers the request's next event.
        close: called once, when the stream has ended or is left.

    Attributes:
        events: what came for this stream and was not asked for yet.
        closed: whether it has ended or was left.
    """

    def __init__(
        self,
        run: Run,
        maker: PieceMaker,
        wait: Callable[[PieceStream], Event],
        close: Callable[[Run], None],
    ) -> None:
        self.run = run
        self.events: deque[Event] = deque()
        self.closed = False
        self._maker = maker
        self._wait = wait
        self._close = close

    def __next__(self) -> Piece:
        if self.closed:
            raise StopIteration
        try:
            event = self._wait(self)
            if event.error is not None:
                raise event.error
            piece = self._maker.piece(self.run, event)
        except BaseException:
            self.close()
            raise
        if piece.finish_reason is not None:
            self.close()
        return piece

    def close(self) -> None:
        """Leave the stream; any thread may, and whoever waits for a piece gets a last one."""
        if not self.closed:
            self.closed = True
            self._close(self.run)

    def __del__(self) -> None:
        self.close()
