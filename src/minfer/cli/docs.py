"""Writes `docs/cli.md`, `docs/settings.md` and `docs/support.md` from the tables they describe.

`python -m minfer.cli.docs` in a checkout brings them up to date; a test fails while they are not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import EnumType
from pathlib import Path
from typing import Any, get_args

from typer.models import OptionInfo

from minfer.cli import report, support
from minfer.cli.app import VERBS
from minfer.cli.bundles import flat
from minfer.cli.options import names_of
from minfer.hub import ALIASES
from minfer.settings import PREFIX, ROWS, Settings

NOTICE = "<!-- Written by `python -m minfer.cli.docs`. Change the source instead. -->"


def pages() -> dict[str, str]:
    """File name below `docs` -> content."""
    return {"cli.md": _cli(), "settings.md": _settings(), "support.md": support.page(NOTICE)}


def _cli() -> str:
    parts = [
        "# The command line",
        NOTICE,
        "`minfer MODEL [PROMPT]` is short for `minfer run MODEL [PROMPT]`. Names and defaults of "
        "options are llama.cpp's where it has them. A value out of range is refused, never "
        "clamped.",
        "Short names of models: " + ", ".join(f"`{name}`" for name in ALIASES) + ".",
        "## Exit codes",
        (report.__doc__ or "").partition("\n\n")[2].strip(),
    ]
    for name, verb in VERBS.items():
        parts += [f"## minfer {name}", *_verb(name, verb)]
    return "\n\n".join(parts) + "\n"


def _verb(name: str, verb: Callable[..., None]) -> Iterator[str]:
    parameters = list(inspect.signature(flat(verb)).parameters.values())
    described = [(parameter, get_args(parameter.annotation)[1]) for parameter in parameters]
    arguments = [row for row in described if not isinstance(row[1], OptionInfo)]
    usage = " ".join(
        info.metavar if parameter.default is parameter.empty else f"[{info.metavar}]"
        for parameter, info in arguments
    )
    yield f"```\nminfer {name} [OPTIONS] {usage}".rstrip() + "\n```"
    yield inspect.getdoc(verb) or ""
    if arguments:
        rows = [f"| `{info.metavar}` | {info.help} |" for _, info in arguments]
        yield "\n".join(["| argument | |", "|---|---|", *rows])
    options = [row for row in described if isinstance(row[1], OptionInfo)]
    for panel in dict.fromkeys(info.rich_help_panel for _, info in options):
        rows = [
            _option(parameter, info) for parameter, info in options if info.rich_help_panel == panel
        ]
        yield "\n".join([f"| {(panel or 'Options').lower()} | | default |", "|---|---|---|", *rows])


def _option(parameter: inspect.Parameter, info: Any) -> str:
    kind = get_args(parameter.annotation)[0]
    value = info.metavar or ""
    for choice in (kind, *get_args(kind)):
        if isinstance(choice, EnumType):
            value = r"\|".join(choice.__members__)
    names = ", ".join(f"`{name}`" for name in names_of(info))
    default = parameter.default
    shown = "" if default is None or isinstance(default, bool) else f"`{default}`"
    return f"| {names} {value}".rstrip() + f" | {info.help} | {shown} |".replace("  ", " ")


def _settings() -> str:
    parts = [
        "# Settings",
        NOTICE,
        "Every switch is an environment variable, read once when a model is loaded. An unknown "
        f"`{PREFIX}*` name or an unusable value is refused. A command-line option wins over its "
        "variable.",
    ]
    rows = [
        f"| `{PREFIX}{row.name.upper()}` | {row.metadata['doc']} | {_default(row.default)} |"
        for row in ROWS
    ]
    parts.append("\n".join(["| variable | | default |", "|---|---|---|", *rows]))
    parts.append("Read as well, as other programs define them (`HF_HOME` counts too):")
    others = [
        f"| `{row.metadata['env']}` | {_default(row.default)} |"
        for row in Settings.__dataclass_fields__.values()
        if "env" in row.metadata
    ]
    parts.append("\n".join(["| variable | default |", "|---|---|", *others]))
    return "\n\n".join(parts) + "\n"


def _default(value: object) -> str:
    if value is None or value is False:
        return ""
    return f"`{value}`"


def main() -> None:
    """Write the pages into the `docs` folder of the checkout this file is in."""
    folder = Path(__file__).resolve().parents[3] / "docs"
    for name, content in pages().items():
        (folder / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
