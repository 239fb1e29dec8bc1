"""The Jinja environment chat templates are written for: that of Hugging Face transformers, fenced.

Templates come with model files, so they are other people's programs: they run in Jinja's immutable
sandbox, see plain data only, and may spend a bounded number of loop steps and characters. Rendering
is byte for byte what transformers renders (`trim_blocks`, `lstrip_blocks`, loop controls,
`{% generation %}`, its `tojson`, `raise_exception` and `strftime_now`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any, cast

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 200_000
MAX_CHARACTERS = 64 << 20

_steps_left: ContextVar[int] = ContextVar("steps_left", default=MAX_STEPS)


class Refusal(Exception):
    """The template itself called `raise_exception`."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's part for training; its body renders as it is."""

    tags = {"generation"}  # noqa: RUF012  # the base class declares it as an instance set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Steps(jinja2.ext.Extension):
    """Counts loop steps; templates cannot name it, so they cannot replace it."""

    def statement(self, line: int) -> nodes.Node:
        return nodes.ExprStmt(self.call_method("step")).set_lineno(line)

    def step(self) -> None:
        left = _steps_left.get()
        if left == 0:
            raise SecurityError(f"its loops take more than {MAX_STEPS} steps")
        _steps_left.set(left - 1)


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with every loop counted and every repetition measured."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, _Steps, jinja2.ext.loopcontrols],
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        steps = cast(_Steps, self.extensions[_Steps.identifier])
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, steps.statement(loop.lineno))
        return tree

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        if operator == "**" and abs(right) > 64:
            raise SecurityError(f"a power of {right} is more than a chat template needs")
        for value, times in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(times, int):
                _check_size(len(value) * times)
        return super().call_binop(context, operator, left, right)


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render a compiled template within the limits.

    Raises:
        SecurityError: it loops or writes more than `MAX_STEPS` or `MAX_CHARACTERS`, or reaches for
            what the sandbox keeps from it.
        Exception: whatever the template's own expressions raise.
    """
    token = _steps_left.set(MAX_STEPS)
    try:
        pieces, size = [], 0
        for piece in template.generate(variables):
            size += len(piece)
            _check_size(size)
            pieces.append(piece)
        return "".join(pieces)
    finally:
        _steps_left.reset(token)


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise SecurityError(f"it writes more than {MAX_CHARACTERS} characters")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML; models are trained on plain JSON.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise Refusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def compiler() -> Callable[[str], jinja2.Template]:
    """Return the function that compiles template sources."""
    return Environment().from_string
