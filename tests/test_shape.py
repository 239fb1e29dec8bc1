"""The house rules: which room may import which, one door a room, who reads the environment, sizes.

`ROOMS` is the table of `docs/design.md`. A new room needs a row here and there.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "minfer"

_CORE = ("errors", "settings", "dtypes", "gguf", "graph", "models", "backends", "scheduler")
_FACE = (*_CORE, "hub", "convert", "text", "engine", "trace", "llm")

ROOMS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "settings": ("errors",),
    "dtypes": ("errors",),
    "gguf": ("errors", "dtypes"),
    "hub": ("errors", "settings"),
    "convert": ("errors", "dtypes", "gguf"),
    "graph": ("errors", "dtypes"),
    "text": ("errors",),
    "models": ("errors", "dtypes", "gguf", "graph"),
    "backends": ("errors", "settings", "dtypes", "gguf", "graph"),
    "scheduler": ("errors", "settings", "dtypes", "graph", "backends"),
    "engine": _CORE,
    "trace": (*_CORE, "engine"),
    "llm": (*_CORE, "hub", "text", "engine", "trace"),
    "measure": _FACE,
    "viz": (*_FACE, "measure"),
    "server": _FACE,
    "deploy": (*_FACE, "server"),
    "cli": (*_FACE, "measure", "viz", "server"),
    # The package itself hands out the names of the public face; running it is the command line.
    "__init__": ("errors", "engine", "llm"),
    "__main__": ("cli",),
}
"""Room -> the rooms it may import."""

DOORS = ("backends.cpu", "backends.cuda", "backends.reference")
"""Folders inside a room that have a door of their own."""

LINES = 500  # of a source file; it is split before it is a tenth longer
COLUMNS = 100
SOURCES = {".py", ".cpp", ".h", ".cu", ".cuh"}
PLACES = re.compile(r"(?<![\w.~}>*-])/(home|root|work|tmp|Users)/\w")  # paths of one machine


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def source_files() -> list[Path]:
    roots = [PACKAGE, ROOT / "tests", ROOT / "bench"]
    return sorted(path for root in roots for path in root.rglob("*") if path.suffix in SOURCES)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def door(room: str) -> frozenset[str]:
    """The names a room offers: `__all__` of a folder; of a single file, everything."""
    for node in tree(PACKAGE.joinpath(*room.split("."), "__init__.py")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign)
            return frozenset(ast.literal_eval(node.value))
    raise AssertionError(f"{room}/__init__.py has no __all__")


def imports(path: Path) -> Iterator[tuple[int, str, str | None]]:
    """Line, module below the package and name of everything imported from the package."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "minfer":
                    yield node.lineno, alias.name.partition(".")[2], None
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno} is a relative import"
            if node.module == "minfer":
                for alias in node.names:
                    if alias.name in ROOMS:
                        yield node.lineno, alias.name, None
                    elif not alias.name.startswith("__"):
                        yield node.lineno, "llm", alias.name
            elif (node.module or "").startswith("minfer."):
                for alias in node.names:
                    yield node.lineno, str(node.module).removeprefix("minfer."), alias.name


def foreign_imports(path: Path) -> Iterator[tuple[int, str, str | None]]:
    for line, module, imported in imports(path):
        if module.split(".")[0] != room_of(path):
            yield line, module, imported


def test_every_room_has_a_row() -> None:
    assert {room_of(path) for path in python_files()} <= set(ROOMS)


def test_the_table_has_no_cycle() -> None:
    seen: set[str] = set()
    for room, allowed in ROOMS.items():
        assert set(allowed) <= seen, f"{room} may import a room below it"
        seen.add(room)


@pytest.mark.parametrize("path", python_files(), ids=name)
def test_imports_point_one_way(path: Path) -> None:
    allowed = ROOMS[room_of(path)]
    wrong = [
        f"{name(path)}:{line} imports {module}"
        for line, module, _ in foreign_imports(path)
        if module.split(".")[0] not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("path", python_files(), ids=name)
def test_a_room_is_entered_by_its_door(path: Path) -> None:
    wrong = []
    for line, module, imported in foreign_imports(path):
        room = module if module in DOORS else module.split(".")[0]
        folder = PACKAGE.joinpath(*room.split(".")).is_dir()
        hidden = folder and imported is not None and imported not in door(room)
        if module != room or hidden:
            wrong.append(f"{name(path)}:{line} takes {imported or module} from inside {room}")
    assert not wrong


@pytest.mark.parametrize("path", python_files(), ids=name)
def test_only_settings_reads_the_environment(path: Path) -> None:
    if room_of(path) == "settings":
        return
    readers = {"environ", "environb", "getenv", "getenvb", "putenv"}
    wrong = [
        f"{name(path)}:{node.lineno}"
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Attribute) and node.attr in readers)
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and readers & {alias.name for alias in node.names}
        )
    ]
    assert not wrong


def test_native_code_does_not_read_the_environment() -> None:
    for path in source_files():
        if path.suffix != ".py":
            assert "getenv" not in path.read_text(encoding="utf-8"), name(path)


@pytest.mark.parametrize("path", source_files(), ids=name)
def test_a_file_is_short_and_opens_with_what_it_is_for(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES * 1.1, f"{name(path)} has {len(lines)} lines: split it"
    if path.suffix == ".py":
        assert ast.get_docstring(tree(path)), f"{name(path)} has no docstring"
    else:
        assert lines[0].startswith(("//", "/*")), f"{name(path)} opens with no comment"
        wide = [number for number, line in enumerate(lines, 1) if len(line) > COLUMNS]
        assert not wide, f"{name(path)} has lines of over {COLUMNS} columns: {wide}"


def test_nothing_names_a_place_on_one_machine() -> None:
    texts = SOURCES | {".md", ".toml", ".txt", ".yml", ".csv", ".json"}
    roots = ["src", "tests", "bench", "docs", "."]
    paths = {
        path
        for root in roots
        for path in (ROOT / root).glob("*" if root == "." else "**/*")
        if path.suffix in texts and path.is_file()
    }
    wrong = [
        f"{name(path)}: {match.group()}"
        for path in sorted(paths)
        for match in PLACES.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not wrong
