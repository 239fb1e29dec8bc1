"""Reading a turn from the keyboard or a pipe: one line, a continued line, or a quoted block."""

from __future__ import annotations

import sys

QUOTES = '"""'


class Prompt:
    """Reads turns; on a terminal with line editing and a history of this conversation."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()
        if self.is_terminal and sys.platform != "win32":
            import readline  # noqa: F401  # importing it gives `input` its line editing

    def read(self) -> str | None:
        """The next turn, or None at the end of the input."""
        line = self._line("> ")
        if line is None:
            return None
        if line.lstrip().startswith(QUOTES):
            return self._block(line.lstrip().removeprefix(QUOTES))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\")
            lines.append(self._line(". ") or "")
        return "\n".join(lines)

    def _block(self, first: str) -> str:
        """The text up to the closing quotes or the end of the input."""
        lines, line = [], first
        while not line.rstrip().endswith(QUOTES):
            lines.append(line)
            following = self._line(". ")
            if following is None:
                return "\n".join(lines).strip("\n")
            line = following
        lines.append(line.rstrip().removesuffix(QUOTES))
        return "\n".join(lines).strip("\n")

    def _line(self, mark: str) -> str | None:
        if not self.is_terminal:
            line = sys.stdin.readline()
            return line.rstrip("\r\n") if line else None
        while True:
            try:
                return input(mark)
            except EOFError:
                print(file=sys.stderr)
                return None
            except KeyboardInterrupt:
                print("\nCtrl-D or /exit leaves", file=sys.stderr)
