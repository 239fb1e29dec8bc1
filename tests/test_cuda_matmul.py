"""Matrix products on a GPU, against float64 products of the dequantized weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from minfer.backends.base import Weight
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Launch
from minfer.backends.cuda.ops import matmul, matmul_halves, matmul_pack
from minfer.backends.cuda.ops import matmul_choose as choose
from minfer.backends.cuda.ops.base import Context, Joins, Normed, Store
from minfer.backends.cuda.ops.matmul import GELU, PLAIN, SILU, Product
from minfer.backends.cuda.ops.matmul_pack import Group
from minfer.dtypes import BY_NAME, I32, WEIGHT_TYPES, DType
from minfer.errors import BackendError
from minfer.gguf.quants import dequantize, quantize
from minfer.graph import Attrs, Graph, Node, WeightSpec
from minfer.settings import Settings

pytestmark = pytest.mark.cuda

TOLERANCE = 1.5e-3
"""Relative error of a product: halves of the weights, with halves as scale and minimum."""


SINGLE_ROWS = (1, 3, 8, 9, 17, 64, 65, 100)
GENERIC_TYPES = ("q4_K", "q6_K", "q8_0", "q5_0", "iq4_nl", "f16")
"""Types that are swept over with the kernels of cards before Hopper, too: each kind of layout."""


class Bench:
    """A device, weights on it, and products run on it; `generic` as `Facts` has it."""

    def __init__(self, generic: bool) -> None:
        from minfer.backends.cuda.device import Device

        self.device = Device(Settings(cuda_generic=generic), lambda line: None)
        self.store = Store(self.device)
        self.names = 0
        self.rng = np.random.default_rng(7)
        self.counts = self.device.allocate(12, "counts")
        self.scratch = self.device.allocate(256 << 20, "scratch")
        self.zeros = self.device.allocate(64 << 10, "counters")
        self.device.fill(self.zeros, 0, 64 << 10)
        node = Node(0, "input", (), (), Attrs(), (3,), I32, "counts")
        self.context = Context(
            graph=Graph((node,), ()),
            facts=self.device.facts,
            settings=Settings.load({}),
            base=self.counts,
            offsets={0: 0},
            weights=self.store.address,
            states={},
            joins=Joins(),
            constant=lambda array: 0,
            find=lambda key: 0,
            scratch=lambda nbytes: self.scratch,
            counters=lambda count: self.zeros,
        )

        self.prepare(generic)

    def prepare(self, generic: bool) -> None:
        """Compile what the sweeps over types need, in parallel."""
        launches: list[Launch] = []
        for dtype in [t for t in WEIGHT_TYPES if not generic or t.name in GENERIC_TYPES]:
            for n_cols in widths(dtype):
                group = Group(("w",), (WeightSpec(dtype, (n_cols, 88)),))
                launches += matmul_pack.pack(group, 0, 0, 0)
                for rows in SINGLE_ROWS:
                    product = Product(group, 0, Normed(0), 0, rows, rows)
                    launches += matmul.project(product, self.context)
                product = Product(group, 0, Normed(0), 0, 100, 3)
                launches += matmul.project(product, self.context)
        self.device.prepare(launch.kernel for launch in launches)

    def skip_unless_swept(self, dtype: DType) -> None:
        """Skip a type that is only swept over with a card's own kernels."""
        if self.device.facts.generic and dtype.name not in GENERIC_TYPES:
            pytest.skip("its layout is that of another type")

    def group(
        self, dtypes: list[DType], n_cols: int, n_rows: list[int], paired: bool = False
    ) -> tuple[Group, list[Any]]:
        """Random weights on the device, and their dequantized values."""
        names, weights, values = [], {}, []
        for dtype, n in zip(dtypes, n_rows, strict=True):
            name = f"w{self.names}"
            self.names += 1
            w = self.rng.standard_normal((n, n_cols)).astype(np.float32) * 0.02
            w *= np.exp(self.rng.standard_normal((n, 1))).astype(np.float32)
            data = quantize(w, dtype)
            weights[name] = Weight(name, WeightSpec(dtype, (n_cols, n)), data.reshape(-1))
            values.append(dequantize(data, dtype).astype(np.float64))
            names.append(name)
        group = Group(tuple(names), tuple(w.spec for w in weights.values()), paired)
        matmul_pack.load(group, MappingProxyType(weights), self.store)
        return group, values

    def run(
        self,
        group: Group,
        x: Any,
        single_rows: int,
        epilogue: int = PLAIN,
        bias: Any = None,
        residual: Any = None,
        norm: Any = None,
    ) -> Any:
        """The product, through `project`; what it does not write is NaN."""
        device = self.device
        rows = len(x)
        shape = (rows, group.n_outputs)
        blocks = [device.allocate(4 * rows * group.n_cols, "x")]
        device.upload(blocks[0], x.astype(np.float32))
        blocks.append(device.allocate(4 * rows * group.n_outputs, "out"))
        device.upload(blocks[1], np.full(shape, np.nan, np.float32))
        for array in (bias, residual, norm):
            blocks.append(0 if array is None else device.allocate(array.nbytes, "extra"))
            if array is not None:
                device.upload(blocks[-1], array)
        device.upload(self.counts, np.array([single_rows, rows - single_rows, 0], np.int32))
        product = Product(
            group,
            self.store.address(group.key),
            Normed(blocks[0], blocks[4], 1e-5),
            blocks[1],
            rows,
            single_rows,
            epilogue,
            blocks[2],
            blocks[3],
        )
        device.run(matmul.project(product, self.context))
        out = device.download(blocks[1], 4 * shape[0] * shape[1]).view(np.float32).reshape(shape)
        for block in blocks:
            if block:
                device.free(block)
        return out

    def activations(self, rows: int, n_cols: int) -> Any:
        """Normal values with a few large features, as models have."""
        x = self.rng.standard_normal((rows, n_cols)).astype(np.float32)
        x[:, self.rng.integers(0, n_cols, 3)] *= 30
        return x


@pytest.fixture(scope="module", params=[False, True], ids=["own", "generic"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """On Hopper, both its own kernels and those of the cards before it."""
    try:
        made = Bench(request.param)
    except BackendError as error:
        pytest.skip(str(error))
    yield made
    made.device.close()


def error(found: Any, expected: Any) -> float:
    """Relative error over all; NaN where anything was not written."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def gated(x: Any, gate: Any, up: Any, epilogue: int) -> Any:
    """act(x gate^T) * (x up^T), in float64."""
    g = x.astype(np.float64) @ gate.T
    if epilogue == SILU:
        act = g / (1 + np.exp(-g))
    else:
        act = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    return act * (x @ up.T)


def widths(dtype: DType) -> tuple[int, ...]:
    """Input widths: one section, several."""
    return (1536, 5376) if dtype.block_items == 256 else (416, 5216)


@pytest.mark.parametrize("dtype", WEIGHT_TYPES, ids=str)
def test_single_rows(bench: Bench, dtype: DType) -> None:
    bench.skip_unless_swept(dtype)
    for n_cols in widths(dtype):
        group, (w,) = bench.group([dtype], n_cols, [88])
        x = bench.activations(100, n_cols)
        alone: dict[str, list[Any]] = {}  # by kernel: rows 0, 5 and 99 among copies of themselves
        for n in (1, 3, 17, 65):
            runs = [bench.run(group, np.repeat(x[i : i + 1], n, 0), n)[0] for i in (0, 5, 99)]
            alone.setdefault(choose.single_rows_kernel(group, n, bench.device.facts), runs)
        for rows in SINGLE_ROWS:
            found = bench.run(group, x[:rows], rows)
            assert error(found, x[:rows] @ w.T) < TOLERANCE, (n_cols, rows)
            same = alone[choose.single_rows_kernel(group, rows, bench.device.facts)]
            for row, expected in zip((0, 5, 99), same, strict=True):
                if row < rows:
                    assert np.array_equal(found[row], expected), (n_cols, rows, row)


@pytest.mark.parametrize("dtype", WEIGHT_TYPES, ids=str)
def test_many_rows(bench: Bench, dtype: DType) -> None:
    bench.skip_unless_swept(dtype)
    for n_cols in widths(dtype):
        group, (w,) = bench.group([dtype], n_cols, [328])
        for rows, single in ((17, 0), (100, 3), (513, 0)):
            x = bench.activations(rows, n_cols)
            found = bench.run(group, x, single)
            assert error(found, x @ w.T) < TOLERANCE, (n_cols, rows)


@pytest.mark.parametrize("name", ["q4_K", "q5_0"])
def test_many_outputs(bench: Bench, name: str) -> None:
    """More tiles than are kept at a time, and than one wave of blocks takes."""
    n_cols = 1280
    group, (w,) = bench.group([BY_NAME[name]], n_cols, [16400])
    x = bench.activations(90, n_cols)
    expected = x @ w.T
    before: dict[str, Any] = {}
    for rows in (1, 5, 12, 20, 40, 66, 90):
        found = bench.run(group, x[:rows], rows)
        assert error(found, expected[:rows]) < TOLERANCE
        kernel = choose.single_rows_kernel(group, rows, bench.device.facts)
        assert np.array_equal(found[0], before.setdefault(kernel, found[0]))


def test_padded_rows_are_left_alone(bench: Bench) -> None:
    group, (w,) = bench.group([BY_NAME["q4_K"]], 512, [64])
    x = bench.activations(300, 512)
    x[200:] = np.nan
    found = bench.run(group, x, 0)
    assert error(found[:200], x[:200] @ w.T) < TOLERANCE


@pytest.mark.parametrize("rows", [1, 8, 40, 80, 200])
def test_bias_and_residual(bench: Bench, rows: int) -> None:
    group, (w,) = bench.group([BY_NAME["q4_K"]], 1536, [208])
    x = bench.activations(rows, 1536)
    bias = bench.rng.standard_normal(208).astype(np.float32)
    residual = bench.rng.standard_normal((rows, 208)).astype(np.float32)
    single = rows if rows < 100 else 5
    found = bench.run(group, x, single, bias=bias, residual=residual)
    assert error(found, x @ w.T + bias + residual) < TOLERANCE


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 20, 90, 150])
@pytest.mark.parametrize("name, n_cols", [("q4_K", 1536), ("f16", 4104), ("q4_K", 8192)])
def test_normed(bench: Bench, name: str, n_cols: int, rows: int) -> None:
    """The norm of x, taken in by every path; its wide rows are more than a vector a thread."""
    group, (w,) = bench.group([BY_NAME[name]], n_cols, [208])
    x = bench.activations(rows, n_cols)
    weight = bench.rng.standard_normal(n_cols).astype(np.float32)
    normed = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, 1, keepdims=True) + 1e-5) * weight
    found = bench.run(group, x, rows if rows < 100 else 3, norm=weight)
    assert error(found, normed @ w.T) < TOLERANCE


@pytest.mark.parametrize(
    ("mix", "n_cols", "n_rows"),
    [
        ("q4_K q4_K q6_K", 1280, [144, 48, 33]),  # eight warps of three types, and columns to spare
        ("q5_0", 928, [300]),
        ("f16", 672, [88]),  # fewer row tiles than warps; an odd number of strips
    ],
)
def test_every_tile_gives_the_same_bits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, mix: str, n_cols: int, n_rows: list[int]
) -> None:
    """By each tile of Hopper's kernel for prompts, from one after another to each a block.

    So do different numbers of blocks that share the K of a tile, each for itself.
    """
    if not bench.device.facts.hopper:
        pytest.skip("weights expand apart")
    group, values = bench.group([BY_NAME[n] for n in mix.split()], n_cols, n_rows)
    x = bench.activations(290, n_cols)
    bias = bench.rng.standard_normal(group.n_outputs).astype(np.float32)
    residual = bench.rng.standard_normal((290, group.n_outputs)).astype(np.float32)
    right = x @ np.concatenate(values).T + bias + residual
    for ranks in (1, 2, 3):
        seen: list[Any] = []
        for variant in choose.manys(group, 288, ranks, bench.device.facts):
            for grid in {1, min(4, variant.grid), variant.grid}:
                made = replace(variant, grid=grid)
                monkeypatch.setattr(choose, "many", lambda *args, made=made: made)
                seen.append(bench.run(group, x, 2, bias=bias, residual=residual))
                assert error(seen[-1], right) < TOLERANCE, made
                np.testing.assert_array_equal(seen[-1][2:], seen[0][2:], repr(made))


def test_kept_halves_give_the_same_bits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Hopper, too, where a product leaves them aside: it expands in registers."""
    group, _ = bench.group([BY_NAME["q4_K"], BY_NAME["q6_K"]], 1024, [208, 48])
    x = bench.activations(40, 1024)
    expected = bench.run(group, x, 0)
    strips = group.n_cols // 128
    kept = bench.device.allocate(group.n_rows * strips * 256, "halves")
    bench.device.run(matmul_halves.expand_launches(group, bench.store.address(group.key), kept))
    monkeypatch.setattr(bench, "context", replace(bench.context, find=lambda key: kept))
    product = Product(group, 0, Normed(0), 0, 40, 0)
    names = [launch.kernel.name for launch in matmul.project(product, bench.context)]
    assert "matmul_expand" not in names
    assert np.array_equal(bench.run(group, x, 0), expected)
    bench.device.free(kept)


@pytest.mark.parametrize("rows", [1, 7, 33, 90, 300])
@pytest.mark.parametrize("mix", ["q4_K q4_K q6_K", "q8_0 q5_0 f16", "q4_K q5_K q4_K"])
def test_side_by_side(bench: Bench, rows: int, mix: str) -> None:
    group, values = bench.group([BY_NAME[n] for n in mix.split()], 1792, [448, 64, 64])
    x = bench.activations(rows, 1792)
    found = bench.run(group, x, rows if rows < 100 else 2)
    assert error(found, x @ np.concatenate(values).T) < TOLERANCE


@pytest.mark.parametrize("rows", [1, 8, 20, 90, 260])
@pytest.mark.parametrize("epilogue", [SILU, GELU])
def test_gated(bench: Bench, rows: int, epilogue: int) -> None:
    types = [BY_NAME["q4_K"]] * 2
    group, (gate, up) = bench.group(types, 1024, [280, 280], paired=True)
    x = bench.activations(rows, 1024)
    found = bench.run(group, x, rows if rows < 100 else 0, epilogue)
    assert error(found, gated(x, gate, up, epilogue)) < 2 * TOLERANCE


@pytest.mark.parametrize("name", ["iq4_nl", "iq4_xs", "mxfp4", "q8_0"])
def test_every_code(bench: Bench, name: str) -> None:
    """Codes that no quantizer writes, as the zero below zero of mxfp4, have their value too."""
    dtype = BY_NAME[name]
    n_cols, n_rows = 512, 32
    data = bench.rng.integers(0, 256, (n_rows, dtype.nbytes(n_cols)), np.uint8)
    blocks = data.reshape(-1, dtype.nbytes(dtype.block_items))
    one = np.ones(1, np.float16).view(np.uint8)
    blocks[:, : 1 if name == "mxfp4" else 2] = 127 if name == "mxfp4" else one
    weight = Weight("codes-" + name, WeightSpec(dtype, (n_cols, n_rows)), data.reshape(-1))
    group = Group((weight.name,), (weight.spec,))
    matmul_pack.load(group, {weight.name: weight}, bench.store)
    w = dequantize(data, dtype).astype(np.float64)
    for rows, single in ((1, 1), (9, 9), (20, 20), (70, 0)):
        x = bench.rng.standard_normal((rows, n_cols)).astype(np.float32)
        assert error(bench.run(group, x, single), x @ w.T) < TOLERANCE, rows


def test_rows_of_any_magnitude(bench: Bench) -> None:
    """A row's power of two keeps halves in range, from tiny weights to huge ones."""
    for name in ("bf16", "f32", "q4_K", "q8_0"):
        dtype = BY_NAME[name]
        group, (w,) = bench.group([dtype], 512, [64])
        assert group.specs[0].dtype is dtype
        scales = (0.0, 1e-7, 1.0, 3e4) if dtype.block_items > 1 else (0.0, 1e-30, 1.0, 1e20)
        rows = np.repeat(np.array(scales), 16)[:, None] * bench.rng.standard_normal((64, 512))
        data = quantize(rows.astype(np.float32) / (50 if dtype.block_items > 1 else 1), dtype)
        weight = Weight("magnitude-" + name, WeightSpec(dtype, (512, 64)), data.reshape(-1))
        group = Group((weight.name,), (weight.spec,))
        matmul_pack.load(group, {weight.name: weight}, bench.store)
        w = dequantize(data, dtype).astype(np.float64)
        x = bench.activations(2, 512)
        found, expected = bench.run(group, x, 2), x @ w.T
        assert np.isfinite(found).all()
        for i in range(0, 64, 16):
            if np.any(expected[:, i : i + 16]):
                assert error(found[:, i : i + 16], expected[:, i : i + 16]) < 2 * TOLERANCE, i
            else:
                assert not found[:, i : i + 16].any()


Make = Callable[[Product, Context], list[Launch]]


def geometries(group: Group, rows: int, facts: Facts) -> list[Make]:
    """Some of those in which so many single rows are computed, all adding in the same order."""
    kernel = choose.single_rows_kernel(group, rows, facts)
    if kernel == "matmul_vec":
        cards = ((3, 132), (2, 7), (2, 1), (4, 60))
        some = [choose.vec_geometry(group, stages, n_sms) for stages, n_sms in cards]
        return [lambda p, ctx, v=v: [matmul.vec_launch(p, v)] for v in some]
    if kernel == "matmul_batch_sm90":
        chosen = choose.hopper_batch(group, rows, facts)
        every = choose.hopper_batches(group, chosen.columns, facts)
        wide = [v for v in every if v.ranks == chosen.ranks]
        return [
            lambda p, ctx, v=v: matmul.hopper_batch_launches(p, v, ctx)
            for v in wide[:: len(wide) // 5 + 1]
        ]
    if kernel == "matmul_many_sm90":
        ranks = choose.many_singles(group, rows, facts).ranks
        tiles = choose.manys(group, rows, ranks, facts)
        return [lambda p, ctx, v=v: matmul.single_many_launches(p, v, ctx) for v in tiles]
    if rows > choose.MAX_BATCH_ROWS:
        pytest.skip("several launches")
    usual = choose.batch(group, rows, facts)
    some = list(choose.batches(group, usual.columns, usual.ranks, facts))
    return [
        lambda p, ctx, v=v: matmul.batch_launches(p, 0, rows, v, ctx)
        for v in some[:: len(some) // 5 + 1]
    ]


@pytest.mark.parametrize("rows", [1, 5, 20, 96])
def test_every_geometry_gives_the_same_bits(bench: Bench, rows: int) -> None:
    group, _ = bench.group([BY_NAME["q4_K"]], 9472, [176])
    x = bench.activations(rows, 9472)
    expected = bench.run(group, x, rows)
    device = bench.device
    address = device.allocate(x.nbytes, "x")
    out = device.allocate(expected.nbytes, "out")
    device.upload(address, x.astype(np.float32))
    product = Product(group, bench.store.address(group.key), Normed(address), out, rows, rows)
    for make in geometries(group, rows, device.facts):
        device.fill(out, 0xFF, expected.nbytes)
        launches = make(product, bench.context)
        device.run(launches)
        found = device.download(out, expected.nbytes).view(np.float32)
        assert np.array_equal(found, expected.reshape(-1)), launches[-1].kernel
    for block in (address, out):
        device.free(block)
