"""Names that are no source's: paths, cached names and mistakes."""

from pathlib import Path

import pytest

from minfer.errors import HubError
from minfer.hub import list_models, pull, resolve
from minfer.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        cache_dir=tmp_path / "minfer",
        hf_hub_cache=tmp_path / "hub",
        ollama_models=tmp_path / "ollama",
        offline=True,
    )


def test_a_path_is_itself(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    assert resolve(str(path), settings) == path
    assert pull(str(path), settings) == path


def test_an_empty_cache_lists_nothing(settings: Settings) -> None:
    assert list_models(settings) == []
    assert not settings.cache.exists()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("smolm2", "Did you mean smollm2?"),
        ("gemma3-270", "Did you mean gemma3-270m?"),
        ("missing/file.gguf", "Check the path"),
        ("Qwen/Qwen3-0.6B-GGUF", "For a repository of Hugging Face write hf:Qwen/Qwen3-0.6B-GGUF"),
        ("entirely different", "Name a .gguf file, smollm2"),
    ],
)
def test_a_mistyped_name_is_told_what_to_write(settings: Settings, name: str, remedy: str) -> None:
    with pytest.raises(HubError, match="is no file, no short name and not in the cache") as caught:
        resolve(name, settings)
    assert caught.value.where == name
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith(remedy)


def test_cached_files_are_suggested_too(settings: Settings) -> None:
    folder = settings.cache / "models" / "pypi" / "x==1"
    folder.mkdir(parents=True)
    (folder / "Particular-Model.Q4_0.gguf").write_bytes(b"GGUF")
    assert resolve("particular-model.q4_0", settings).parent == folder
    with pytest.raises(HubError, match=r"Did you mean particular-model\.q4_0"):
        resolve("particular-mdel.q4_0", settings)
