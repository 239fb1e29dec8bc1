"""`minfer info` on a file made for the test."""

import json
from pathlib import Path

import numpy as np
import pytest

from minfer.cli.app import call
from minfer.dtypes import F16, F32
from minfer.gguf import TensorData, write_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    metadata = {
        "general.architecture": "llama",
        "general.name": "Two\nlines",
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.tokens": [f"t{number}" for number in range(100)],
        "tokenizer.chat_template": "x" * 500,
        "llama.head_counts": np.arange(3, dtype=np.uint32),
    }
    tensors = [
        TensorData("a.weight", F16, (64, 32), np.ones(2048, np.float16).tobytes()),
        TensorData("a.norm", F32, (64,), np.ones(64, np.float32).tobytes()),
    ]
    return write_gguf(tmp_path / "x.gguf", metadata, tensors)[0]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert call(["info", *arguments]) == 0
    return [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]


def test_every_value_is_on_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = dict(row for row in shown(capsys, str(path)) if len(row) == 2)
    assert rows["file"] == str(path)
    assert rows["parameters"] == "2.1 K (2,112), 16.48 bits each"
    assert rows["general.name"] == r"Two\nlines"
    assert rows["llama.rope.freq_base"] == "10000"
    assert rows["tokenizer.ggml.add_bos_token"] == "true"
    assert rows["tokenizer.ggml.tokens"].startswith('["t0", "t1"')
    assert rows["tokenizer.ggml.tokens"].endswith("… 100 in all]")
    assert rows["tokenizer.chat_template"].endswith("xx… 500 characters")
    assert rows["llama.head_counts"] == "[0, 1, 2]"
    assert rows["f16"].split() == ["1", "2.0", "K", "4.0", "KiB"]
    assert "a.weight" not in rows


def test_tensors_are_listed_on_request(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = dict(row for row in shown(capsys, str(path), "--tensors") if len(row) == 2)
    assert rows["a.weight"].split() == ["f16", "64", "x", "32"]
    assert rows["a.norm"].split() == ["f32", "64"]


def test_json_has_every_value_in_full(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["info", str(path), "--json", "--tensors"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["parameters"] == 2112
    assert described["bytes"] == path.stat().st_size
    assert described["metadata"]["tokenizer.chat_template"] == "x" * 500
    assert described["metadata"]["llama.head_counts"] == [0, 1, 2]
    assert len(described["metadata"]["tokenizer.ggml.tokens"]) == 100
    assert described["types"] == {
        "f16": {"tensors": 1, "parameters": 2048, "bytes": 4096},
        "f32": {"tensors": 1, "parameters": 64, "bytes": 256},
    }
    assert described["tensors"][0] == {
        "name": "a.weight",
        "type": "f16",
        "shape": [64, 32],
        "bytes": 4096,
    }


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, but long enough" * 9])
def test_a_malformed_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    assert call(["info", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: [")
    assert str(path) in err
    assert err.count("\n") == 1
