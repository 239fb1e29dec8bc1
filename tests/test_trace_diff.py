"""Two traces: equal ones are equal, rounding is not a parting, a wrong kernel is found by name."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import expected, generate, make_engine, tiny

from minfer.backends import Backend, create_backend
from minfer.backends.reference import ReferenceBackend
from minfer.cli.app import call
from minfer.engine import Engine, EngineConfig
from minfer.errors import BackendError, FormatError
from minfer.llm import file_weights
from minfer.models import model_config
from minfer.scheduler import Device
from minfer.settings import Settings
from minfer.trace import Trace, diff, open_sink, read_trace, record
from minfer.trace.diff import distance

PROMPT = expected("qwen3")["ids"].tolist()[:12]


def trace_of(path: Path, backend: Backend, settings: Settings, name: str = "qwen3") -> Trace:
    file = tiny(name)
    config = EngineConfig(n_ctx=64, n_cells=128, max_sequences=2)
    engine = Engine(model_config(file), file_weights(file), [Device(backend)], config, settings)
    recorder = record(engine, open_sink(path, "json"), model=name, text=str)
    generate(engine, PROMPT)
    recorder.close()
    engine.close()
    return read_trace(path)


class WrongNorm(ReferenceBackend):
    """Adds to one norm what a wrong epsilon would."""

    def _bind(self, node, split):  # type: ignore[no-untyped-def]
        run = super()._bind(node, split)
        if node.name != "blk.1.ffn_norm":
            return run

        def wrong() -> None:
            run()
            self._view(node, split)[...] *= np.float32(1.5)

        return wrong


def test_two_runs_are_equal(tmp_path: Path) -> None:
    a = trace_of(tmp_path / "a", ReferenceBackend(), Settings())
    b = trace_of(tmp_path / "b", ReferenceBackend(), Settings())
    found = diff(a, b)
    assert found.n_nodes == found.n_equal > 100
    assert found.first is found.parting is found.tokens is None


def test_the_wrong_kernel_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = trace_of(tmp_path / "a", ReferenceBackend(), Settings())
    b = trace_of(tmp_path / "b", WrongNorm(), Settings())
    found = diff(a, b)
    assert found.first is found.parting
    assert found.parting is not None
    assert (found.parting.step, found.parting.planned_a.name) == (0, "blk.1.ffn_norm")
    assert found.parting.distance == pytest.approx(1 / 3, rel=0.01)
    assert call(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    out = capsys.readouterr().out
    assert "They part at step 0, blk.1.ffn_norm (rms_norm)" in out


def test_a_distance_is_relative_to_the_size_of_the_whole_value(tmp_path: Path) -> None:
    """Samples that happen to be small are rounded like their large neighbours."""
    recorded = trace_of(tmp_path / "a", ReferenceBackend(), Settings()).steps[0].nodes[-1]
    node = replace(recorded, rms=1.0, sample=(0.01, -0.02, 0.03, 0.0))
    rounded = replace(node, sample=(0.015, -0.012, 0.03, 0.01))
    assert distance(node, node) == 0.0
    assert distance(node, rounded) == distance(rounded, node) < 0.01
    wrong = replace(node, sample=(1.0, -1.0, 1.0, 1.0))
    assert distance(node, wrong) == pytest.approx(1.0, abs=0.02)
    assert distance(node, replace(node, rms=2.0)) == pytest.approx(0.5)
    large = replace(node, sample=(10.0, 10.0, 10.0, 10.0))  # samples may be the larger ones, too
    assert distance(large, replace(large, sample=(5.0, 5.0, 5.0, 5.0))) == pytest.approx(0.5)
    assert distance(node, replace(node, nans=1)) == math.inf
    assert distance(replace(node, rms=None), replace(node, rms=None)) == 0.0


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])  # products, and norms, that add a residual
def test_fused_and_unfused_nodes_are_matched(tmp_path: Path, name: str) -> None:
    try:
        fused = create_backend("cpu", Settings(threads=2))
    except (BackendError, ImportError) as error:
        pytest.skip(f"no cpu backend: {error}")
    a = trace_of(tmp_path / "a", fused, Settings(threads=2), name)
    b = trace_of(tmp_path / "b", ReferenceBackend(), Settings(), name)
    for found, fused_side in ((diff(a, b), a), (diff(b, a), a)):
        assert found.parting is None
        ops_fused = {n.op for p in fused_side.plans.values() for n in p.nodes}
        assert "fused_qkv" in ops_fused
        n_values = sum(n.rows > 0 for s in a.steps for n in s.nodes)
        assert found.n_nodes == n_values  # every value of the fused side has its partner


def test_different_tokens_end_the_comparison(tmp_path: Path) -> None:
    a = trace_of(tmp_path / "a", ReferenceBackend(), Settings())
    lines = (tmp_path / "a").read_text().splitlines()
    steps = [i for i, line in enumerate(lines) if '"type":"step"' in line]
    step = json.loads(lines[steps[2]])
    step["runs"][0]["tokens"] = [1]
    lines[steps[2]] = json.dumps(step)
    (tmp_path / "b").write_text("\n".join(lines) + "\n")
    found = diff(a, read_trace(tmp_path / "b"))
    assert found.n_steps == 2
    assert found.tokens is not None
    assert found.tokens[0] == 2


@pytest.fixture
def good(tmp_path: Path) -> list[str]:
    trace_of(tmp_path / "good", ReferenceBackend(), Settings(), "qwen3")
    return (tmp_path / "good").read_text().splitlines(keepends=True)


def test_bad_files_are_told_apart(
    tmp_path: Path, good: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad"
    newer = good[0].replace('"version":1', '"version":9')
    bad: dict[str, tuple[bytes, str]] = {
        "missing": (b"", "cannot be read: No such file"),
        "empty": (b"", "is empty"),
        "binary": (b"\xff\xfe\x00GGUF", "is no minfer trace"),
        "text": (b"hello\n", "is no minfer trace"),
        "json": (b'{"a": 1}\n', "is no minfer trace"),
        "array": (b"[1]\n", "is no minfer trace"),
        "version": ("".join([newer, *good[1:]]).encode(), "version 9; this minfer reads version 1"),
        "damaged": ("".join([*good[:2], "{oops\n", *good[2:]]).encode(), "line 3] is damaged"),
        "no plan": ("".join([good[0], *good[2:]]).encode(), "which is not there"),
        "malformed": ("".join([*good[:2], '{"type":"step"}\n']).encode(), "line 3] a step record"),
        "unknown": ("".join([*good[:2], '{"type":"x"}\n']).encode(), "unknown type 'x'"),
    }
    for name, (content, message) in bad.items():
        path.unlink(missing_ok=True)
        if name != "missing":
            path.write_bytes(content)
        with pytest.raises(FormatError) as caught:
            read_trace(path)
        assert message in str(caught.value), name
    assert call(["diff", str(path), str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: [")


def test_a_trace_cut_off_is_read_to_its_last_whole_step(
    tmp_path: Path, good: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = read_trace(tmp_path / "good")
    path = tmp_path / "cut"
    text = "".join(good[:-1])
    path.write_text(text[:-40])
    trace = read_trace(path)
    assert trace.steps == whole.steps[: len(trace.steps)]
    assert len(trace.steps) == len(whole.steps) - 1
    assert "was cut off" in trace.notice
    assert call(["diff", str(path), str(tmp_path / "good")]) == 0
    assert "note: " in capsys.readouterr().err


def test_a_trace_without_a_step_is_refused(
    tmp_path: Path, good: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").write_text(good[0])
    assert call(["diff", str(tmp_path / "none"), str(tmp_path / "good")]) == 1
    assert "none] holds no step" in capsys.readouterr().err


def test_perfetto_events_are_json_even_without_their_end(tmp_path: Path) -> None:
    engine = make_engine("qwen3", "reference")
    path = tmp_path / "p.json"
    recorder = record(engine, open_sink(path, "perfetto"), model="m", text=str)
    generate(engine, PROMPT)
    cut = path.read_text()
    recorder.close()
    engine.close()
    events = json.loads(path.read_text())
    assert json.loads(cut.rstrip(",\n") + "]") == events[:-1]
    slices = [e for e in events if e["ph"] == "X" and e["name"].startswith("blk.")]
    steps = [e for e in events if e["ph"] == "X" and e["name"].startswith("step ")]
    assert len(steps) == 8
    assert all(e["dur"] > 0 and "GB/s" in e["args"] for e in slices)
    inside = [s for s in steps for e in slices if s["ts"] <= e["ts"] <= s["ts"] + s["dur"]]
    assert len(inside) == len(slices)


def test_an_unwritable_place_is_refused_before_loading(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be written here"):
        open_sink(tmp_path / "no" / "folder", "json")
