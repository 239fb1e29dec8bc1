"""The table of op cases: graphs of one op (or one fused chain), inputs, and the right answer.

Any backend runs it (`test_backend_ops.py`). A case of a new op is one function and one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import op_reference as ref
from backend_runner import weight
from numpy.typing import NDArray

from minfer.backends import Weight
from minfer.dtypes import BY_NAME, F16, F32, I32, WEIGHT_TYPES, DType
from minfer.gguf import dequantize
from minfer.graph import (
    PENALTY_WINDOW,
    FusedFFNAttrs,
    GatedAttrs,
    Graph,
    GraphBuilder,
    MatMulAttrs,
    Node,
    NormAttrs,
    RopeAttrs,
    RopeSpec,
)

Array = NDArray[Any]


class Kind(Enum):
    """What is computed, as far as it decides how near to float64 a backend has to be."""

    MOVED = "numbers that are only moved"
    SCALED = "numbers of a weight, times a factor"
    FLOAT = "element-wise functions, and sums of a row"
    PLAIN = "products with f32, f16 or bf16 weights"
    SINGLE = "products of single rows with quantized weights"
    MANY = "products of other rows with quantized weights"


HALVES = 1.5e-3
"""Error of a CUDA product, of any type and path: its operands are halves, its sums f32."""

TOLERANCE: dict[Kind, dict[str, float]] = {
    # exact on every backend
    Kind.MOVED: {"reference": 0.0, "cpu": 0.0, "cuda": 0.0},
    # one f32 rounding, on every backend
    Kind.SCALED: {"reference": 1e-6, "cpu": 1e-6, "cuda": 1e-6},
    # f32 in another order; exponentials, sines and roots of a few units in the last place
    Kind.FLOAT: {"reference": 1e-6, "cpu": 1e-5, "cuda": 1e-5},
    # the CPU multiplies and adds in f32
    Kind.PLAIN: {"reference": 1e-6, "cpu": 1e-5, "cuda": HALVES},
    # the CPU rounds activations to 16 bits, by a scale a row, and adds whole numbers
    Kind.SINGLE: {"reference": 1e-6, "cpu": 5e-4, "cuda": HALVES},
    # the CPU rounds them to 8 bits where the processor has VNNI
    Kind.MANY: {"reference": 1e-6, "cpu": 2e-2, "cuda": HALVES},
}
"""Relative error (of norms) that a result may have, by what is computed and where."""


@dataclass(frozen=True)
class Case:
    """One graph and what it must give.

    Attributes:
        name: identity in the test report.
        graph, inputs, weights: what runs.
        expected: values of the output.
        kind: what is computed.
        rows: which rows of the output are real; all by default.
        products: how many products of `kind` are multiplied in an output; their errors add.
    """

    name: str
    graph: Graph
    inputs: Mapping[str, Array]
    weights: Mapping[str, Weight]
    expected: Array
    kind: Kind
    rows: Array | slice = field(default_factory=lambda: slice(None))
    products: int = 1

    def tolerance(self, backend: str) -> float:
        """Relative error of the real rows that `backend` may have."""
        return self.products * TOLERANCE[self.kind][backend]


def relative_error(got: Array, expected: Array) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def rng(*seed: Any) -> np.random.Generator:
    return np.random.default_rng(list("".join(map(str, seed)).encode()))


def normal(source: np.random.Generator, *shape: int) -> Array:
    return source.standard_normal(shape).astype(np.float32)


def kind_of(dtype: DType, places: tuple[int, int]) -> Kind:
    """Of a product with weights of this type; a graph with both sorts of rows gets the larger."""
    return Kind.PLAIN if not dtype.is_quantized else Kind.MANY if places[1] else Kind.SINGLE


def add_counts(
    b: GraphBuilder, inputs: dict[str, Array], real: tuple[int, int], outputs: int = 0
) -> None:
    """The graph-wide input that says how many rows are real, as every model's graph has it."""
    b.input("counts", (3,))
    inputs["counts"] = np.array([*real, outputs])


def specs(weights: Mapping[str, Weight]) -> dict[str, Any]:
    return {name: w.spec for name, w in weights.items()}


def values(w: Weight) -> Array:
    """The numbers of a weight, [n_out, n_in] or [n], in float64."""
    return dequantize(w.data, w.spec.dtype).reshape(w.spec.shape[::-1]).astype(np.float64)


# Products


def matmul(
    dtype: DType,
    n_in: int,
    n_out: int,
    places: tuple[int, int],
    *,
    counts: tuple[int, int] | None = None,
    bias: bool = False,
    residual: bool = False,
    norm: bool = False,
) -> Case:
    """x @ W.T; `places` are of single and other rows, of which `counts` are real."""
    name = f"matmul-{dtype}-{n_in}x{n_out}-rows{places[0]}+{places[1]}"
    name += "".join(
        f"-{k}" for k, on in (("bias", bias), ("residual", residual), ("norm", norm)) if on
    )
    name += f"-real{counts[0]}+{counts[1]}" if counts else ""
    r = rng(name)
    rows = sum(places)
    x = normal(r, rows, n_in)
    x[:, ::37] *= 20  # outliers, as activations have them
    weights = {"w": weight("w", normal(r, n_out, n_in), dtype)}
    if bias:
        weights["b"] = weight("b", normal(r, n_out), F32)
    if norm:
        weights["n"] = weight("n", normal(r, n_in), F32)
    b = GraphBuilder(specs(weights), {})
    h = b.input("x", (rows, n_in), F32)
    inputs = {"x": x}
    add_counts(b, inputs, counts or places)
    if norm:
        h = b.rms_norm(h, "n", "norm", 1e-5)
        x = ref.rms_norm(x, values(weights["n"]), 1e-5).astype(np.float32)
    expected = ref.wide(x) @ values(weights["w"]).T
    srcs = [h]
    if residual:
        srcs.append(b.input("r", (rows, n_out), F32))
        inputs["r"] = normal(r, rows, n_out)
        expected += inputs["r"]
    if bias:
        expected += values(weights["b"])
    attrs = MatMulAttrs(places[0], bias, residual)
    y = b.node("matmul", tuple(srcs), attrs, "y", ("w", "b") if bias else ("w",))
    real = np.arange(rows)
    if counts:
        real = np.concatenate([real[: counts[0]], real[places[0] : places[0] + counts[1]]])
    return Case(name, b.build(y), inputs, weights, expected, kind_of(dtype, places), real)


def output_rows(dtype: DType, places: int, real: int) -> Case:
    """Rows picked for their logits, with no single row in the step."""
    name = f"matmul-{dtype}-outputs{places}-real{real}"
    r = rng(name)
    x, index = normal(r, 9, 288), r.integers(0, 9, places).astype(np.int32)
    weights = {"w": weight("w", normal(r, 48, 288), dtype)}
    b = GraphBuilder(specs(weights), {})
    inputs: dict[str, Array] = {"x": x, "index": index}
    h = b.rows(b.input("x", (9, 288), F32), b.input("index", (places,)), "picked")
    add_counts(b, inputs, (0, 9), real)
    y = b.matmul(h, "w", "y", places)
    expected = ref.wide(x[index]) @ values(weights["w"]).T
    kind = kind_of(dtype, (places, 0))
    return Case(name, b.build(y), inputs, weights, expected, kind, np.arange(real))


def fused_ffn(dtype: DType, act: Any, places: tuple[int, int]) -> Case:
    name = f"fused_ffn-{dtype}-{act}-rows{places[0]}+{places[1]}"
    r = rng(name)
    n_in, n_out, rows = 256, 96, sum(places)
    weights = {n: weight(n, normal(r, n_out, n_in) / 16, dtype) for n in ("gate", "up")}
    x = normal(r, rows, n_in)
    b = GraphBuilder(specs(weights), {})
    h = b.input("x", (rows, n_in), F32)
    inputs = {"x": x}
    add_counts(b, inputs, places)
    y = b.node("fused_ffn", (h,), FusedFFNAttrs(act, places[0]), "y", ("gate", "up"))
    gate, up = (ref.wide(x) @ values(weights[n]).T for n in ("gate", "up"))
    expected = ref.gated(gate, up, act)
    kind = kind_of(dtype, places)
    return Case(name, b.build(y), inputs, weights, expected, kind, products=2)


def embed(dtype: DType, scale: float, width: int = 256, *, tied: bool = False) -> Case:
    """Rows of a table; `tied`: which is multiplied, too, and may be kept as products read it."""
    name = f"embed-{dtype}-x{scale:g}" + (f"-tied-{width}" if tied else "")
    r = rng(name)
    weights = {"table": weight("table", normal(r, 50, width), dtype)}
    ids = r.integers(0, 50, 9).astype(np.int32)
    ids[:2] = 0, 49
    b = GraphBuilder(specs(weights), {})
    y = b.embed(b.input("ids", (9,)), "table", "y", scale)
    expected = values(weights["table"])[ids] * scale
    inputs: dict[str, Array] = {"ids": ids}
    if tied:
        add_counts(b, inputs, (9, 0))
        b.matmul(y, "table", "logits", 9)
    return Case(name, b.build(y), inputs, weights, expected, Kind.SCALED)


# Element-wise ops, rows, norms, rotation


def unary(
    name: str,
    width: int,
    build: Callable[[GraphBuilder, Node], Node],
    expect: Callable[[Array], Array],
    size: float = 3.0,
) -> Case:
    r = rng(name, width)
    x = normal(r, 5, width) * np.float32(size)
    b = GraphBuilder({}, {})
    y = build(b, b.input("x", (5, width), F32))
    return Case(f"{name}-{width}", b.build(y), {"x": x}, {}, expect(x), Kind.FLOAT)


def binary(
    name: str,
    width: int,
    build: Callable[[GraphBuilder, Node, Node], Node],
    expect: Callable[[Array, Array], Array],
) -> Case:
    r = rng(name, width)
    x, z = normal(r, 5, width) * np.float32(4), normal(r, 5, width)
    b = GraphBuilder({}, {})
    y = build(b, b.input("a", (5, width), F32), b.input("b", (5, width), F32))
    return Case(f"{name}-{width}", b.build(y), {"a": x, "b": z}, {}, expect(x, z), Kind.FLOAT)


def rows(width: int) -> Case:
    r = rng("rows", width)
    x, index = normal(r, 7, width), np.array([6, 0, 3], np.int32)
    b = GraphBuilder({}, {})
    y = b.rows(b.input("x", (7, width), F32), b.input("index", (3,)), "y")
    return Case(f"rows-{width}", b.build(y), {"x": x, "index": index}, {}, x[index], Kind.MOVED)


def penalize(n_vocab: int) -> Case:
    """Windows with repeats, places without a token, a newest token that is there already."""
    r = rng("penalize", n_vocab)
    logits = normal(r, 5, n_vocab) * 4
    penalties = np.float32([[1.3, 0, 0], [1, 0.5, 0.25], [0.7, -0.3, 1], [1, 0, 0], [2, 1, 1]])
    recent = r.integers(0, min(n_vocab, 90), (5, PENALTY_WINDOW)).astype(np.int32)
    recent[0, 3:] = -1
    recent[1, 100:] = n_vocab + 7
    recent[4] = -1
    ids, index = np.array([5, n_vocab - 1, 0, 11], np.int32), np.array([0, 1, 2, 3, 1], np.int32)
    ids[0] = recent[0, 0]
    inputs = {"logits": logits, "penalties": penalties, "recent": recent}
    inputs |= {"ids": ids, "index": index}
    b = GraphBuilder({}, {})
    types = {name: F32 if x.dtype == np.float32 else I32 for name, x in inputs.items()}
    sources = [b.input(name, x.shape, types[name]) for name, x in inputs.items()]
    y = b.penalize(*sources, "y")
    expected = ref.penalize(*inputs.values())
    return Case(f"penalize-{n_vocab}", b.build(y), inputs, {}, expected, Kind.MOVED)


def rms_norm(features: int, width: int, size: float = 1.0, residual: bool = False) -> Case:
    name = f"rms_norm-{features}-by{width}-x{size:g}{'-residual' * residual}"
    r = rng(name)
    x = normal(r, 5, features) * np.float32(size)
    weights = {"n": weight("n", normal(r, width), F32)}
    b = GraphBuilder(specs(weights), {})
    inputs = {"x": x}
    if residual:
        inputs["z"] = normal(r, 5, features) * np.float32(size)
    sources = tuple(b.input(key, (5, features), F32) for key in inputs)
    y = b.node("rms_norm", sources, NormAttrs(1e-5, width, residual), "y", ("n",))
    expected = ref.rms_norm(x, values(weights["n"]), 1e-5) + inputs.get("z", 0)
    return Case(name, b.build(y), inputs, weights, expected, Kind.FLOAT)


def rope_spec(style: Any, n_pairs: int, magnitude: float = 1.0) -> RopeSpec:
    return RopeSpec(style, tuple(1e4 ** (-i / n_pairs) for i in range(n_pairs)), magnitude)


def rope(style: Any, head_dim: int, n_pairs: int, magnitude: float = 1.0) -> Case:
    name = f"rope-{style}-{head_dim}-{n_pairs}-m{magnitude:g}"
    r = rng(name)
    heads, positions = 3, np.array([0, 1, 100, 9000, 131071], np.int32)
    x = normal(r, 5, heads * head_dim)
    spec = rope_spec(style, n_pairs, magnitude)
    b = GraphBuilder({}, {})
    source, at = b.input("x", (5, heads * head_dim), F32), b.input("at", (5,))
    y = b.rope(source, at, RopeAttrs(heads, head_dim, spec), "y")
    expected = ref.rope(x, positions, head_dim, spec)
    return Case(name, b.build(y), {"x": x, "at": positions}, {}, expected, Kind.FLOAT)


def cases() -> Iterator[Case]:
    """The table."""
    for dtype in WEIGHT_TYPES:
        yield matmul(dtype, 512, 80, (1, 0))
        yield matmul(dtype, 512, 80, (3, 0), bias=True, residual=True)
        yield matmul(dtype, 512, 80, (0, 37))
        yield matmul(dtype, 256, 48, (4, 16), counts=(2, 13), norm=True)
        yield fused_ffn(dtype, "silu", (2, 0))
        yield fused_ffn(dtype, "silu", (0, 21))
        yield embed(dtype, 1.0)
    for dtype in (F32, F16, BY_NAME["q8_0"]):
        yield embed(dtype, 11.3, 96, tied=True)
    for dtype in (F16, BY_NAME["q4_1"], BY_NAME["q8_0"]):
        yield matmul(dtype, 96, 16, (1, 0))
        yield matmul(dtype, 576, 1000, (0, 130), bias=True, residual=True)
        for n_out in (33, 34):
            for n in (2, 5, 8, 9, 17, 67):
                yield matmul(dtype, 288, n_out, (n, 0))
            for n in (1, 2, 7):
                yield matmul(dtype, 288, n_out, (0, n))
        yield matmul(dtype, 288, 80, (100, 20), counts=(70, 11), bias=True, residual=True)
        yield output_rows(dtype, 100, 83)
    yield matmul(BY_NAME["q8_0"], 7168, 33, (9, 0))  # more of K than blocks have slots for
    yield matmul(F32, 40, 7, (2, 3))
    yield fused_ffn(BY_NAME["q4_0"], "gelu", (1, 0))
    yield fused_ffn(BY_NAME["q4_0"], "gelu", (0, 9))
    yield embed(BY_NAME["q6_K"], 22.6)
    for width in (64, 100):
        yield binary("add", width, lambda b, x, z: b.add(x, z, "y"), lambda x, z: ref.wide(x) + z)
        yield binary("mul", width, lambda b, x, z: b.mul(x, z, "y"), lambda x, z: ref.wide(x) * z)
        for act in ("silu", "gelu"):
            yield binary(
                f"gated-{act}",
                width,
                lambda b, x, z, act=act: b.gated(x, z, GatedAttrs(act), "y"),  # type: ignore[misc]
                lambda x, z, act=act: ref.gated(x, z, act),  # type: ignore[misc]
            )
        yield unary("scale", width, lambda b, x: b.scale(x, 0.3, "y"), lambda x: ref.wide(x) * 0.3)
        yield unary(
            "softcap", width, lambda b, x: b.softcap(x, 30.0, "y"), lambda x: ref.softcap(x, 30.0)
        )
        yield rows(width)
        yield penalize(width)
    yield penalize(20_001)
    yield unary(
        "softcap-large",
        64,
        lambda b, x: b.softcap(x, 5.0, "y"),
        lambda x: ref.softcap(x, 5.0),
        size=1e4,
    )
    yield rms_norm(576, 576)
    yield rms_norm(100, 100)
    yield rms_norm(384, 128)
    yield rms_norm(96, 96, size=1e-4)
    yield rms_norm(96, 96, size=1e4)
    yield rms_norm(576, 576, residual=True)
    yield rms_norm(384, 128, residual=True)
    for style in ("neox", "interleaved"):
        yield rope(style, 64, 32)
        yield rope(style, 80, 40)
        yield rope(style, 128, 32, 1.2)
        yield rope(style, 16, 8)
