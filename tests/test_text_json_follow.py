"""JSON followed character by character, against Python's own reading of it."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.text.json_follow import JsonFollower

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
roots = st.lists(values) | st.dictionaries(st.text(), values)
scraps = st.lists(
    st.sampled_from([*'{}[]",:\\ \n-+.eE019u', "true", "false", "null", '"a"', '{"a":', "1e5"])
).map("".join)


def follow(text: str) -> tuple[str, JsonFollower]:
    """What is taken of a text, from its opening bracket to where it goes wrong or ends."""
    follower = JsonFollower()
    taken = ""
    for char in text:
        more = follower.take(char)
        if more is None:
            break
        taken += more
        if not follower.depth:
            break
    return taken, follower


def may_become_json(text: str) -> bool:
    """Whether some ending makes a text JSON; tries every kind of ending."""
    escapes = ("", "n", "0000", "000", "00", "0")
    strings = ("", '"', "true", "rue", "ue", "e", "false", "alse", "lse", "se", "null", "ull", "ll")
    values = ("", "0", ":0", '"":0', ',"":0')
    for parts in product(escapes, (*strings, "l"), values):
        whole = text + "".join(parts)
        try:
            json.loads(whole + _closers(whole))
            return True
        except ValueError:
            continue
    return False


def _closers(text: str) -> str:
    """What closes all brackets."""
    found: list[str] = []
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "{[":
            found.append("}" if char == "{" else "]")
        elif char in "}]" and found:
            found.pop()
    return "".join(reversed(found))


@given(value=roots, indent=st.none() | st.integers(0, 3), ascii_only=st.booleans())
def test_json_is_taken_whole(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    taken, follower = follow(text)
    assert taken == text
    assert follower.depth == 0


@settings(deadline=None, max_examples=200)
@given(opening=st.sampled_from("{["), rest=scraps)
def test_what_is_taken_may_become_json(opening: str, rest: str) -> None:
    taken, follower = follow(opening + rest)
    if follower.depth:
        assert may_become_json(taken)
    else:
        json.loads(taken)


@settings(deadline=None, max_examples=200)
@given(opening=st.sampled_from("{["), rest=scraps)
def test_nothing_that_is_json_is_refused(opening: str, rest: str) -> None:
    text = opening + rest
    try:
        json.loads(text)
    except ValueError:
        return
    assert follow(text)[0] == text.rstrip()


def test_line_breaks_in_strings_are_escaped() -> None:
    assert follow('{"a\tb": "\n"}')[0] == '{"a\\tb": "\\n"}'
    assert follow('["\\\n')[0] == '["\\'


def test_where_it_is() -> None:
    follower = JsonFollower()
    for char in '{"na\\"me"':
        follower.take(char)
    assert (follower.string, follower.ended_key, follower.depth) == ('na\\"me', True, 1)
    for char in ': ["v':
        follower.take(char)
    assert (follower.in_string, follower.ended_key, follower.depth) == (True, False, 2)


def test_depth_is_no_limit() -> None:
    follower = JsonFollower()
    assert all(follower.take("[") for _ in range(100_000))
    assert all(follower.take("]") for _ in range(100_000))
    assert follower.take("]") is None
