"""Tracing changes nothing, sees every node, and what it says is what was computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import expected, generate, make_engine, path_of

from minfer import LLM, SamplingParams
from minfer.engine import Engine
from minfer.settings import Settings
from minfer.trace import Header, PlanRecord, Record, StepRecord, read_trace, record

PROMPT = expected("qwen2")["ids"].tolist()[:20]


class Kept:
    """A sink in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed = False

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed = True

    @property
    def steps(self) -> list[StepRecord]:
        return [r for r in self.records if isinstance(r, StepRecord)]

    @property
    def plans(self) -> dict[int, PlanRecord]:
        return {r.id: r for r in self.records if isinstance(r, PlanRecord)}


def traced(engine: Engine) -> Kept:
    sink = Kept()
    record(engine, sink, model="tiny", text=lambda token: f"<{token}>")
    return sink


def test_a_traced_run_gives_the_same_tokens_and_its_likeliest_are_them(backend_name: str) -> None:
    engine = make_engine("qwen2", backend_name)
    plain = generate(engine, PROMPT)
    engine.clear_cache()
    sink = traced(engine)
    assert generate(engine, PROMPT) == plain
    assert isinstance(sink.records[0], Header)
    assert [row[0].token for step in sink.steps for row in step.top] == plain
    assert sum(len(r.tokens) for s in sink.steps for r in s.runs) == len(PROMPT) + len(plain) - 1
    for step in sink.steps:
        names = [n.name for n in sink.plans[step.plan].nodes if n.op != "input"]
        assert [sink.plans[step.plan].nodes[n.node].name for n in step.nodes] == names
        assert all(n.us > 0 for n in step.nodes)
        assert 0 < sum(c.probability for c in step.top[0]) <= 1.0001
    engine.close()


def test_figures_are_those_of_the_real_rows(backend_name: str) -> None:
    """Three of four places are filled: padding must not be looked at."""
    engine = make_engine("qwen2", backend_name)
    logits = engine.forward(PROMPT[:3])
    sink = traced(engine)
    engine.forward(PROMPT[:3])
    (step,) = sink.steps
    last = step.nodes[-1]
    assert sink.plans[step.plan].nodes[last.node].shape[0] == 4
    assert (last.rows, last.nans, last.infs) == (3, 0, 0)
    assert (last.low, last.high) == (logits.min(), logits.max())
    assert last.rms == pytest.approx(np.sqrt(np.mean(np.square(logits, dtype=np.float64))))
    flat = logits.reshape(-1)
    sampled = flat[np.linspace(0, flat.size - 1, 8).astype(int)]
    np.testing.assert_array_equal(np.float32(last.sample), sampled)
    engine.close()


def test_a_batch_of_sequences_is_told_apart() -> None:
    engine = make_engine("llama", "reference")
    sink = traced(engine)
    for start in (0, 5):
        engine.add(PROMPT[start : start + 5], SamplingParams(temperature=0.0, max_tokens=3))
    while engine.has_work:
        engine.step()
    assert {r.seq for s in sink.steps for r in s.runs} == {0, 1}
    assert any(len(s.top) == 2 for s in sink.steps)
    assert all(sum(s.pages[:2]) <= s.pages[2] for s in sink.steps)
    engine.close()


def test_without_a_trace_a_step_is_one_call(backend_name: str) -> None:
    engine = make_engine("llama", backend_name)
    generate(engine, PROMPT[:4])
    (compiled, *_) = engine._plans._compiled.values()
    assert len(compiled.steps()) == 1
    recorder = record(engine, Kept(), model="", text=str)
    generate(engine, PROMPT[:4])
    (compiled, *_) = engine._plans._compiled.values()
    assert len(compiled.steps()) > 1
    recorder.close()
    generate(engine, PROMPT[:4])
    (compiled, *_) = engine._plans._compiled.values()
    assert len(compiled.steps()) == 1
    engine.close()


def test_a_model_traces_to_the_file_of_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    greedy = SamplingParams(temperature=0.0, max_tokens=5)
    with LLM(path_of("qwen2"), device="reference") as llm:
        plain = llm.generate(PROMPT, greedy)
    settings = Settings(trace=path, threads=2)
    with LLM(path_of("qwen2"), device="reference", settings=settings) as llm:
        assert llm.generate(PROMPT, greedy).token_ids == plain.token_ids
        during = read_trace(path)
        assert "cut off after 5 whole steps" in during.notice
    trace = read_trace(path)
    assert trace.notice == ""
    assert trace.steps == during.steps
    assert trace.header.model == llm.info.name
    assert [row[0].token for s in trace.steps for row in s.top] == list(plain.token_ids)
    n_nodes = sum(len(s.nodes) for s in trace.steps)
    assert path.stat().st_size / n_nodes < 300  # 1,000 steps of 600 nodes stay below 200 MB
