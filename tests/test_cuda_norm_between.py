"""A norm between two products of single rows, whose work they share, on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend_runner import weight
from cuda_harness import Runner, error

from minfer.backends import Split
from minfer.dtypes import BY_NAME, F32
from minfer.gguf.quants import dequantize
from minfer.graph import FusedFFNAttrs, GraphBuilder, MatMulAttrs, Node

pytest_plugins = ["cuda_fixtures"]
pytestmark = pytest.mark.cuda

N_IN, N, N_OUT, EPS = 256, 512, 384, 1e-6
TOLERANCE = 1.5e-3
"""Of the result's norm: x * norm is rounded to half once, as normed values are where they pass."""


def matrices(rng: np.random.Generator, dtype: str) -> dict[str, Any]:
    """Of both products; the norm's weights reach from 0.02 to 30."""
    shapes = {"w": (N, N_IN), "gate": (N_OUT, N), "up": (N_OUT, N)}
    made = {n: rng.standard_normal(s) * 0.05 for n, s in shapes.items()}
    weights = {n: weight(n, values, BY_NAME[dtype]) for n, values in made.items()}
    weights["b"] = weight("b", rng.standard_normal(N), F32)
    weights["norm"] = weight("norm", np.exp(rng.uniform(-4, 3.4, N)), F32)
    return weights


def exact(weight: Any) -> Any:
    """Its numbers, as matrices are: [n_out, n_in]."""
    values = dequantize(weight.data, weight.spec.dtype).astype(np.float64)
    return values.reshape(weight.spec.shape[::-1])


def layer(
    weights: dict[str, Any], rows: int, single_rows: int, gated: bool, bias: bool, shown: bool
) -> tuple[GraphBuilder, list[Node]]:
    """A product with its residual, a norm and another product; answers the last two and the first.

    Where the norm is `shown`, an output of the graph, it is an op of its own.
    """
    builder = GraphBuilder({n: w.spec for n, w in weights.items()}, {})
    x, r = builder.input("x", (rows, N_IN), F32), builder.input("r", (rows, N), F32)
    builder.input("counts", (3,))
    attrs = MatMulAttrs(single_rows, bias, residual=True)
    first = builder.node("matmul", (x, r), attrs, "first", ("w", "b") if bias else ("w",))
    normed = builder.rms_norm(first, "norm", "normed", EPS)
    if gated:
        attrs_after = FusedFFNAttrs("silu", single_rows)
        y = builder.node("fused_ffn", (normed,), attrs_after, "y", ("gate", "up"))
    else:
        y = builder.matmul(normed, "up", "y", single_rows)
    return builder, [y, first, *([normed] if shown else [])]


def data(rng: np.random.Generator, rows: int, scale: float) -> dict[str, Any]:
    """Rows that differ a thousandfold; the last is no real one."""
    by = scale * 10.0 ** rng.uniform(-1.5, 1.5, (rows, 1))
    values = {"x": rng.standard_normal((rows, N_IN)) * by, "r": rng.standard_normal((rows, N)) * by}
    for of in values.values():
        of[-1:] = np.nan
    return values


def run(gpu: Any, made: tuple[GraphBuilder, list[Node]], inputs: dict[str, Any]) -> Any:
    """Both products, and how often a kernel norms rows."""
    builder, outputs = made
    weights = inputs.pop("weights")
    runner = Runner(gpu, builder.build(*outputs), weights)
    runner.poison()
    y = runner(**inputs)
    nodes = tuple(n.id for n in runner.graph.nodes if n.op != "input")
    kernels = gpu.kernels(Split(runner.graph, nodes, runner.offsets))
    passes = [k for of in kernels.values() for k in of if k in ("matmul_act_normed", "rms_norm")]
    return y, runner.result(1), len(passes)


@pytest.mark.parametrize(
    ("rows", "dtype", "gated", "bias"),
    [
        (2, "q4_K", True, False),
        (3, "q8_0", False, True),
        (9, "q4_K", True, True),
        (16, "f16", False, False),
        (17, "q6_K", False, True),
        (33, "f16", True, False),
        (48, "q4_K", True, True),
        (64, "q5_0", False, False),
    ],
)
def test_it_is_that_of_a_pass(gpu: Any, rows: int, dtype: str, gated: bool, bias: bool) -> None:
    """As far as halves go, alone and beside rows of prompts; on Hopper without a pass."""
    rng = np.random.default_rng(rows)
    weights = matrices(rng, dtype)
    gate, up, norm = (exact(weights[n]) for n in ("gate", "up", "norm"))
    saved = gpu.device.facts.hopper
    for others in (0, 5):
        values = data(rng, rows + others, 1.0)
        real = rows + others - 1
        counts = [min(rows, real), max(0, others - 1), 0]
        found = []
        for shown in (False, True):
            made = layer(weights, rows + others, rows, gated, bias, shown)
            found.append(run(gpu, made, values | {"counts": counts, "weights": weights}))
        (y, first, passes), (apart, first_apart, passes_apart) = found
        np.testing.assert_array_equal(first[:real], first_apart[:real])
        assert passes_apart == 1
        assert passes == (0 if saved else 1) + (others > 0)
        x = first[:real].astype(np.float64)
        x = x / np.sqrt((x * x).mean(1, keepdims=True) + EPS) * norm
        expected = x @ up.T
        if gated:
            pre = x @ gate.T
            expected = pre / (1 + np.exp(-pre)) * expected
        for row in range(real):
            assert error(y[row], expected[row]) < TOLERANCE * (2 if gated else 1)
            assert error(apart[row], expected[row]) < TOLERANCE * (2 if gated else 1)


@pytest.mark.parametrize("few_and_many", [(3, 16), (18, 64)])
def test_a_row_has_the_same_bits_among_others(gpu: Any, few_and_many: tuple[int, int]) -> None:
    few, many = few_and_many
    rng = np.random.default_rng(few)
    weights = matrices(rng, "q4_K")
    values = data(rng, many + 1, 1.0)
    outs = []
    for rows in few_and_many:
        some = {name: of[:rows] for name, of in values.items()}
        made = layer(weights, rows, rows, True, True, False)
        outs.append(run(gpu, made, some | {"counts": [rows, 0, 0], "weights": weights}))
    np.testing.assert_array_equal(outs[0][0], outs[1][0][:few])


@pytest.mark.parametrize("scale", [1e-2, 1e4])
def test_small_and_large_rows(gpu: Any, scale: float) -> None:
    """Halves of x * norm, which nothing has made small: below 2^-8 they lose bits."""
    rng = np.random.default_rng(5)
    weights = matrices(rng, "q8_0")
    values = {"x": rng.standard_normal((5, N_IN)) * scale, "r": rng.standard_normal((5, N)) * scale}
    made = layer(weights, 5, 5, False, False, False)
    y, first, _ = run(gpu, made, values | {"counts": [5, 0, 0], "weights": weights})
    x = first.astype(np.float64)
    norm, up = exact(weights["norm"]), exact(weights["up"])
    expected = x / np.sqrt((x * x).mean(1, keepdims=True) + EPS) * norm @ up.T
    assert error(y, expected) < TOLERANCE
