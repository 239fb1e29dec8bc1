"""Every switch is read, typed and refused when wrong; nothing else is taken for one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minfer.errors import SettingsError
from minfer.settings import PREFIX, ROWS, Settings

HOME = {"HOME": "/home-of-nobody"}

GOOD = [
    ("DEVICE", "cpu", "cpu"),
    ("THREADS", "4", 4),
    ("CACHE_TYPE", "q8_0", "q8_0"),
    ("NO_CUDA_GRAPH", "1", True),
    ("NO_CUDA_GRAPH", "0", False),
    ("DEBUG", "on", True),
    ("TRACE", "trace.json", Path("trace.json")),
    ("GPU_LAYERS", "12", "12"),
]

BAD = [
    ("DEVICE", "gpu", "expected one of auto, cpu, cuda, reference"),
    ("CACHE_TYPE", "q4_0", "expected one of f32, f16, q8_0"),
    ("THREADS", "-1", "at least 0"),
    ("THREADS", "many", "a whole number of at least 0"),
    ("NO_CUDA_GRAPH", "maybe", "expected 1 or 0"),
    ("TRACE", "", "expected a path"),
]


@pytest.mark.parametrize(("name", "text", "value"), GOOD)
def test_a_switch_is_typed(name: str, text: str, value: object) -> None:
    assert getattr(Settings.load({PREFIX + name: text}), name.lower()) == value


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_a_bad_value_is_refused_with_its_name(name: str, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        Settings.load({PREFIX + name: text})
    assert caught.value.where == PREFIX + name
    assert repr(text) in caught.value.what


def test_an_unknown_switch_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"\[MINFER_NO_CUDAGRAPH\].*MINFER_NO_CUDA_GRAPH\?"):
        Settings.load({"MINFER_NO_CUDAGRAPH": "1"})
    with pytest.raises(SettingsError, match=r"docs/settings\.md"):
        Settings.load({"MINFER_" + "Q" * 20: "1"})


def test_other_variables_are_left_alone() -> None:
    plain = Settings.load(HOME)
    assert Settings.load({**HOME, "PATH": "x", "LLAMA_CACHE": "y", "minfer_device": "z"}) == plain


@pytest.mark.parametrize(
    ("environ", "cache", "hub"),
    [
        ({}, "/home-of-nobody/.cache/minfer", "/home-of-nobody/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/minfer", "/x/huggingface/hub"),
        ({"HF_HOME": "/h"}, "/home-of-nobody/.cache/minfer", "/h/hub"),
        (
            {"HF_HOME": "/h", "HF_HUB_CACHE": "/c", "MINFER_CACHE_DIR": "/m"},
            "/m",
            "/c",
        ),
    ],
)
def test_folders_follow_the_usual_conventions(
    environ: dict[str, str], cache: str, hub: str
) -> None:
    settings = Settings.load({**HOME, **environ})
    assert settings.cache == Path(cache)
    assert settings.hf_hub_cache == Path(hub)


def test_addresses_lose_their_final_slash() -> None:
    settings = Settings.load(
        {"HF_ENDPOINT": "http://h/", "OLLAMA_REGISTRY": "http://o/", "HF_TOKEN": ""}
    )
    assert (settings.hf_endpoint, settings.ollama_registry) == ("http://h", "http://o")
    assert settings.hf_token is None


def test_a_token_is_not_printed() -> None:
    assert "secret" not in repr(Settings.load({"HF_TOKEN": "secret"}))


def test_every_row_has_a_sentence_and_a_default_of_its_kind() -> None:
    for row in ROWS:
        assert row.metadata["doc"].endswith(".")
        text = str(int(row.default)) if isinstance(row.default, bool) else str(row.default)
        assert row.default is None or row.metadata["parse"](text) == row.default


def test_the_process_environment_is_the_default(tmp_path: Path) -> None:
    code = "from minfer.settings import Settings; print(Settings.load().threads)"
    environ = {**os.environ, "MINFER_THREADS": "3"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.stdout.strip() == "3", done.stderr


def test_folders_of_settings_made_by_hand_are_in_the_home_folder() -> None:
    settings = Settings(threads=2)
    for folder in (settings.cache, settings.hf_hub_cache, settings.ollama_models):
        assert folder.is_absolute()
