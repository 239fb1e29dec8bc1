"""What a model will take of a GPU, foretold; and with too little of it, the CPU runs the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends_fake import OnPaper, PartialReference, host
from cuda_lowering import H200
from tiny_models import TINY, expected, generate, tiny, tokens
from tiny_models import run as run_all

from minfer.backends import Backend, Split, Weight, create_backend
from minfer.backends.cuda import foresight, ops
from minfer.backends.cuda.device import Facts
from minfer.cli.options import Format
from minfer.cli.rendering import render
from minfer.dtypes import BY_NAME
from minfer.engine import Engine, EngineConfig, SamplingParams
from minfer.llm import file_weights, loading, make_engine
from minfer.models import build_decoder, kv_bytes_a_cell, model_config
from minfer.scheduler import Device, Plan, make_plan
from minfer.settings import Settings

pytest_plugins = ["cuda_fixtures"]

USUAL = Settings()
EARLIER = replace(H200, generic=True)
SIZES = EngineConfig(n_ctx=256, n_cells=4096, max_sequences=4, prefill_rows=128)


def foretold(
    name: str, n_layers: int | None = None, settings: Settings = USUAL, facts: Facts = H200
) -> tuple[int, int]:
    """What a tiny model's first blocks, or all of it, take: the arena, and all else."""
    config, weights = model_config(tiny(name)), file_weights(tiny(name))
    devices = [Device(OnPaper(), n_layers), Device(PartialReference("cpu"))]
    plans = [
        make_plan(build_decoder(config, shape), devices, Settings())
        for shape in SIZES.largest_steps
    ]
    splits = [
        Split(plan.graph, segment.nodes, plan.offsets["cuda"])
        for plan in plans
        for segment in plan.segments
        if segment.backend == "cuda"
    ]
    arena = max(plan.arena_bytes["cuda"] for plan in plans)
    return arena, foresight.footprint(splits, weights, facts, settings)


@pytest.mark.parametrize("name", TINY)
def test_weights_states_and_scratch_are_in_it(name: str) -> None:
    config = model_config(tiny(name))
    _, nbytes = foretold(name)
    cache = kv_bytes_a_cell(config, SIZES.cache_type) * SIZES.n_cells
    in_file = sum(w.data.nbytes for w in file_weights(tiny(name)).values())
    assert cache + in_file < nbytes < cache + 3 * in_file + (16 << 20)


def test_halves_take_two_bytes_a_weight() -> None:
    """Those of the blocks: the head never multiplies rows of prompts."""
    name = "qwen2"
    blocks = sum(
        2 * math.prod(weight.spec.shape)
        for key, weight in file_weights(tiny(name)).items()
        if key.startswith("blk.") and len(weight.spec.shape) == 2
    )
    kept = Settings(cuda_halves=True)
    more = foretold(name, settings=kept, facts=EARLIER)[1] - foretold(name, facts=EARLIER)[1]
    assert 0.5 * blocks < more < 1.5 * blocks  # rows are padded, and nothing expands in scratch
    assert foretold(name, settings=kept) == foretold(name)  # Hopper expands nothing


@pytest.mark.parametrize("name", TINY)
def test_a_table_that_is_the_head_is_counted_once(name: str) -> None:
    plan = planned(name, 1, 64)
    (segment,) = plan.segments
    embed = next(n for n in plan.graph.nodes if n.op == "embed")
    weights = file_weights(tiny(name))
    whole, rest = (
        foresight.footprint([Split(plan.graph, nodes, plan.offsets["cuda"])], weights, H200, USUAL)
        for nodes in (segment.nodes, tuple(i for i in segment.nodes if i != embed.id))
    )
    apart = [
        Split(plan.graph, nodes, plan.offsets["cuda"])
        for nodes in (segment.nodes[:5], segment.nodes[5:])
    ]
    assert foresight.footprint(apart, weights, H200, USUAL) == whole
    tied = model_config(tiny(name)).head == embed.weights[0]
    assert whole - rest == (0 if tied else weights[embed.weights[0]].data.nbytes)
    assert plan.kernels[embed.id] == ("embed_packed" if tied else "embed",)


def test_a_block_more_takes_more() -> None:
    n_layers = len(model_config(tiny("gemma3")).layers)
    taken = [foretold("gemma3", n)[1] for n in range(1, n_layers + 1)]
    block = kv_bytes_a_cell(model_config(tiny("gemma3")), SIZES.cache_type) * SIZES.n_cells
    for fewer, more in pairwise(taken):
        assert more - fewer >= block // n_layers
    assert foretold("gemma3")[1] > taken[-1]  # the embedding and the head


class Foretold(OnPaper):
    """Says as the GPU would which kernels run."""

    when = foresight.WHEN

    def footprint(self, splits: Sequence[Split], weights: Mapping[str, Weight]) -> int:
        return foresight.footprint(splits, weights, H200, Settings())

    def kernels(self, split: Split) -> Mapping[int, tuple[str, ...]]:
        return foresight.kernels(split, H200, Settings())


def planned(name: str, single: int, other: int, cache_type: str = "f16") -> Plan:
    sizes = replace(SIZES, cache_type=BY_NAME[cache_type])
    graph = build_decoder(model_config(tiny(name)), sizes.step_shape(single, other, 1))
    return make_plan(graph, [Device(Foretold()), Device(PartialReference("cpu"))], Settings())


def test_a_plan_names_the_kernels_and_which_rows_take_them() -> None:
    plan = planned("qwen2-hd128", 1, 64)
    by_op = {n.op: plan.describe(n) for n in plan.graph.nodes if n.layer == 0}
    assert by_op["attention"] == "@cuda attention_decode + attention_prefill_sm90"
    assert by_op["rms_norm"] == "@cuda within its readers"
    assert "matmul_many_sm90" in by_op["matmul"]
    text = render(plan, Format.txt)
    for kernel, when in foresight.WHEN.items():
        assert (f"{kernel} " in text.split("backend")[1]) == (kernel in plan.choices)
        assert plan.choices.get(kernel, when) == when
    prompts = planned("qwen2-hd128", 0, 64, "q8_0").choices
    assert {"attention_expand", "attention_prefill_sm90"} <= set(prompts)
    assert "attention_decode" not in prompts
    decode = planned("qwen2-hd128", 4, 0).choices
    assert "attention_decode" in decode
    assert not {name for name in decode if "gemm" in name or "prefill" in name}


@pytest.mark.parametrize(
    ("single", "other", "apart"),
    [(1, 0, False), (64, 0, False), (128, 0, True), (1, 64, True), (0, 64, True)],
)
def test_what_follows_projections_is_in_attention_of_single_rows(
    single: int, other: int, apart: bool
) -> None:
    plan = planned("qwen2", single, other)
    kernels = [plan.describe(n) for n in plan.graph.nodes if n.op == "fused_qkv"]
    assert len(kernels) == len(model_config(tiny("qwen2")).layers)
    assert {made.endswith(" + qkv") for made in kernels} == {apart}


def test_every_kernel_made_for_hopper_is_a_choice() -> None:
    there = {path.stem for path in Path(ops.__file__).parent.glob("*.cu")}
    assert {name for name in there if name.endswith("_sm90")} <= set(foresight.WHEN)


def busy(engine: Engine, name: str) -> list[list[int]]:
    """Prompts and batches of every size there is room for: all plans, all scratch."""
    ids = expected(name)["ids"].tolist()
    params = SamplingParams(temperature=0.0, max_tokens=12)
    owners = [engine.add(ids[i : i + n], params) for i, n in enumerate((150, 1, 70, 20))]
    events = run_all(engine)
    return [tokens(events[owner]) for owner in owners]


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["qwen2", "llama3-rope", "gemma3"])
def test_a_gpu_gives_no_more_than_was_foretold(make_gpu: Any, name: str) -> None:
    backend = make_gpu()
    config, weights = model_config(tiny(name)), file_weights(tiny(name))
    engine = Engine(config, weights, [Device(backend)], SIZES, Settings())
    busy(engine, name)
    arena, nbytes = foretold(name)
    allocated = backend.device.allocated
    assert arena + nbytes // 2 < allocated <= arena + nbytes
    engine.close()


@pytest.mark.cuda
@pytest.mark.parametrize("n_blocks", [1, 3, 5])
def test_auto_leaves_to_the_cpu_what_does_not_fit(
    make_gpu: Any, monkeypatch: pytest.MonkeyPatch, n_blocks: int
) -> None:
    def create(name: str, settings: Settings) -> Backend:
        return host() if name == "cpu" else create_backend(name, settings)

    monkeypatch.setattr(loading, "create_backend", create)
    make_gpu()  # or skip
    file, right = tiny("gemma3"), expected("gemma3")
    config = model_config(file)
    n_cells = (16 << 20) // (kv_bytes_a_cell(config, SIZES.cache_type) // len(config.layers))
    n_cells = n_cells // 64 * 64  # 16 MiB a block
    sizes: dict[str, Any] = {"n_ctx": 256, "n_cells": n_cells, "max_sequences": 4}
    sizes |= {"prefill_rows": 128, "progress": None}
    answers = []
    for settings in (
        Settings(device="cpu", threads=2),
        Settings(device="cuda", gpu_mem=16 * n_blocks + 12, threads=2),
    ):
        engine, _, notices = make_engine(file, settings, **sizes)
        placed = set(engine.weight_bytes)
        logits = engine.forward(right["ids"].tolist())
        error = np.abs(logits - right["logits"]).max() / np.abs(right["logits"]).max()
        assert error < 5e-3
        greedy = generate(
            engine,
            right["greedy_prompt"].tolist(),
            SamplingParams(temperature=0.0, max_tokens=right["greedy"].size),
        )
        answers.append((greedy, busy(engine, "gemma3")))
        engine.close()
    assert "cuda" in placed
    assert len(placed) == 2
    assert f"{n_blocks} of {len(config.layers)} blocks fit" in notices[0].text
    certain = int((right["greedy_margin"] >= 0.05).cumprod().sum())
    (on_cpu, _), (on_both, _) = answers
    assert on_both[:certain] == on_cpu[:certain] == right["greedy"][:certain].tolist()
