"""JSON followed character by character: whether a text may still become it, and where in it it is.

Unlike a parser it has an opinion at every character, which streaming needs: what was passed on
cannot be taken back. It builds no values and has no depth limit. The grammar is RFC 8259's, with
one allowance: control characters in strings, which models write, are taken and escaped.
"""

from __future__ import annotations

import json
from types import MappingProxyType

_SPACE = frozenset(" \t\n\r")
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSER = MappingProxyType({"{": "}", "[": "]"})
_LITERALS = MappingProxyType({"t": "true", "f": "false", "n": "null"})
_DIGITS = frozenset("0123456789")

# State of a number -> the characters that may follow, and the state each leads to.
_NUMBER: MappingProxyType[str, tuple[tuple[frozenset[str], str], ...]] = MappingProxyType(
    {
        "minus": ((frozenset("0"), "zero"), (_DIGITS, "whole")),
        "zero": ((frozenset("."), "point"), (frozenset("eE"), "e")),
        "whole": ((_DIGITS, "whole"), (frozenset("."), "point"), (frozenset("eE"), "e")),
        "point": ((_DIGITS, "part"),),
        "part": ((_DIGITS, "part"), (frozenset("eE"), "e")),
        "e": ((frozenset("+-"), "sign"), (_DIGITS, "power")),
        "sign": ((_DIGITS, "power"),),
        "power": ((_DIGITS, "power"),),
    }
)
_NUMBER_ENDS = frozenset({"zero", "whole", "part", "power"})
_VALUE_STATES = frozenset({"value", "first item"})


class JsonFollower:
    """Follows one JSON object or array from its opening bracket.

    Attributes:
        depth: brackets that are open.
        string: the last string that ended, as its JSON text without the quotes.
    """

    def __init__(self) -> None:
        self.string = ""
        self._open: list[str] = []
        self._state = "value"  # see `_step`
        self._in_key = False
        self._left = ""  # of a literal; of an escape, one character a missing digit
        self._chars: list[str] = []  # of the string being read

    @property
    def depth(self) -> int:
        """Brackets that are open."""
        return len(self._open)

    @property
    def ended_key(self) -> bool:
        """Whether `string` is a key that has just been read to its end."""
        return self._state == "colon"

    @property
    def in_string(self) -> bool:
        """Whether a string is open."""
        return self._state in ("string", "escape", "hex")

    def take(self, char: str) -> str | None:
        """Go on by one character; its text in valid JSON, None if nothing valid begins like this.

        After None the follower is of no more use.
        """
        if self.in_string:
            return self._take_in_string(char)
        if self._state in _NUMBER:
            for chars, state in _NUMBER[self._state]:
                if char in chars:
                    self._state = state
                    return char
            if self._state not in _NUMBER_ENDS:
                return None
            self._state = "after"
        return char if self._step(char) else None

    def _take_in_string(self, char: str) -> str | None:
        text = char
        if self._state == "hex":
            if char not in _HEX:
                return None
            self._left = self._left[1:]
            self._state = "hex" if self._left else "string"
        elif self._state == "escape":
            if char not in '"\\/bfnrtu':
                return None
            self._left = "xxxx"
            self._state = "hex" if char == "u" else "string"
        elif char == '"':
            self.string = "".join(self._chars)
            self._state = "colon" if self._in_key else "after"
            return char
        elif char == "\\":
            self._state = "escape"
        elif char < " ":
            text = json.dumps(char)[1:-1]
        self._chars.append(text)
        return text

    def _step(self, char: str) -> bool:
        """Go on by one character that is in no string and no number."""
        state = self._state
        if state == "literal":
            if char != self._left[0]:
                return False
            self._left = self._left[1:]
            self._state = "literal" if self._left else "after"
        elif char in _SPACE:
            return state != "end"
        elif state == "colon":
            self._state = "value"
            return char == ":"
        elif state == "after":
            if char == ",":
                self._state = "key" if self._open[-1] == "{" else "value"
            else:
                return self._close(char)
        elif state in ("key", "first key"):
            if char == '"':
                self._begin_string(key=True)
            else:
                return state == "first key" and self._close(char)
        elif state == "first item" and char == "]":
            return self._close(char)
        elif state in _VALUE_STATES:
            return self._begin_value(char)
        else:
            return False
        return True

    def _begin_value(self, char: str) -> bool:
        if char == '"':
            self._begin_string(key=False)
        elif char in _CLOSER:
            self._open.append(char)
            self._state = "first key" if char == "{" else "first item"
        elif char in _LITERALS:
            self._left = _LITERALS[char][1:]
            self._state = "literal"
        elif char == "-":
            self._state = "minus"
        elif char in _DIGITS:
            self._state = "zero" if char == "0" else "whole"
        else:
            return False
        return True

    def _begin_string(self, *, key: bool) -> None:
        self._state = "string"
        self._in_key = key
        self._chars = []

    def _close(self, char: str) -> bool:
        if char != _CLOSER[self._open[-1]]:
            return False
        self._open.pop()
        self._state = "after" if self._open else "end"
        return True
