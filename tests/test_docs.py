"""The documentation tells the truth: names exist, links lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def defined(path: Path) -> set[str]:
    """Names a module defines, and `Class.name` for what its classes define."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names |= {t.id for t in targets if isinstance(t, ast.Name)}
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_path_and_name_exists(page: Path) -> None:
    found = re.findall(r"`([\w/]+\.py)::([\w.]+)`", page.read_text())
    for file, name in found:
        source = ROOT / "src" / "minfer" / file
        assert source.exists(), f"{page.name} names {file}, which does not exist"
        assert name in defined(source), f"{page.name} names {file}::{name}, which does not exist"
    if page.name == "life_of_a_token.md":
        assert len(found) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
