"""`minfer plan`: costs, the picture of the arena, what fits; on a tiny model."""

from __future__ import annotations

import pytest
from tiny_models import TINY, make_engine, path_of

from minfer.cli.app import call
from minfer.cli.picture import BORN, memory_picture
from minfer.scheduler import Plan, residents

MODEL = str(path_of("qwen2"))


@pytest.fixture(params=TINY)
def plan(request: pytest.FixtureRequest) -> Plan:
    engine = make_engine(request.param)
    made = engine.plan(2, 16)
    engine.close()
    return made


def test_residents_are_the_allocation(plan: Plan) -> None:
    """Every value has its buffer, and no two that live at the same time overlap."""
    found = residents(plan, "reference")
    held = {node: buffer for buffer in found for node in buffer.nodes}
    offsets = plan.offsets["reference"]
    assert {n: b.offset for n, b in held.items()} == dict(offsets)
    assert max(b.offset + b.nbytes for b in found) <= plan.arena_bytes["reference"]
    for i, a in enumerate(found):
        assert a.start <= a.nodes[0] or plan.graph.nodes[a.nodes[0]].op == "input"
        for b in found[:i]:
            if a.start <= b.end and b.start <= a.end:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_the_picture_shows_every_node_writing(plan: Plan) -> None:
    text = memory_picture(plan, "reference")
    lines = text.split("\n\n")[0].splitlines()[1:]
    stores = sum("kv_store" in line for line in lines)
    assert all(BORN in line for line in lines if "kv_store" not in line)
    assert len(lines) - stores <= sum(n.op != "input" for n in plan.graph.nodes)
    assert "logits" in lines[-1]


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_costs_by_op(capsys: pytest.CaptureFixture[str], device: str) -> None:
    arguments = ("--device", device, "--ops", "--floor", "-d", "100", "--decode-rows", "2")
    assert call(["plan", MODEL, *arguments]) == 0
    out = capsys.readouterr().out
    assert "matmul f16" in out
    assert "a step of 2 decode and 0 prompt rows at depth 100: 1 call" in out
    assert "limits measured: " in out


def test_pictures_and_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["plan", MODEL, "--device", "reference", "--memory", "--budget", "1GB"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("arena of reference: ")
    assert "All 2 blocks fit" in out
    assert call(["plan", MODEL, "--device", "reference", "--budget", "1MB"]) == 0
    assert "0 of 2 blocks fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--budget", "lots"], "value 'lots' is no size"), (["-d", "-1"], "--depth: value -1")],
)
def test_misuse(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert call(["plan", MODEL, *options]) in (1, 2)
    assert message in capsys.readouterr().err
