"""`minfer list` and `minfer pull` over a cache made for the test."""

import json
from pathlib import Path

import pytest

from minfer.cli.app import call


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, folder in (("MINFER_CACHE_DIR", "m"), ("HF_HUB_CACHE", "h"), ("OLLAMA_MODELS", "o")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("MINFER_OFFLINE", "1")
    return tmp_path / "m"


def test_an_empty_cache_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["list"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "minfer pull NAME" in err
    assert call(["list", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_a_cached_model_is_listed_and_pulled(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cache / "models" / "pypi" / "x==1" / "x.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(2048))
    assert call(["list"]) == 0
    assert capsys.readouterr().out == f"pypi:x==1  2.0 KiB  {path}\n"
    assert call(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "pypi:x==1", "path": str(path), "bytes": 2048, "source": "pypi"}
    ]
    assert call(["pull", "x"]) == 0
    assert capsys.readouterr().out == f"{path}\n"


def test_a_mistyped_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["pull", "smolm2"]) == 1
    assert capsys.readouterr().err == (
        "error: [smolm2] is no file, no short name and not in the cache. Did you mean smollm2?\n"
    )
