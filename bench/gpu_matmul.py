"""Times the CUDA matmul kernels on shapes of the synthetic 7B and 0.5B, checked in the same run.

    python -m bench.gpu_matmul [--rows 1,8,64,2048] [--shapes 7b] [--sweep] [--chain]

Each figure is a wall-clock mean over graph replays of a chain of launches on distinct copies of the
weights, larger together than the L2 cache, so gaps between kernels count as they do in a step. GB/s
counts the bytes of the GGUF weights; the floor is those bytes at `READ_GBS`, or the operations at
`TENSOR_TFLOPS`, whichever is longer. `--chain` times the products of a whole token.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from bench import results
from minfer.backends.base import Weight
from minfer.backends.cuda.device import Device
from minfer.backends.cuda.launch import Launch
from minfer.backends.cuda.ops import matmul, matmul_halves, matmul_pack
from minfer.backends.cuda.ops import matmul_choose as choose
from minfer.backends.cuda.ops.base import Context, Joins, Normed, Store
from minfer.backends.cuda.ops.matmul_pack import Group
from minfer.dtypes import BY_NAME, I32
from minfer.gguf.quants import dequantize, quantize
from minfer.graph import Attrs, Graph, Node, WeightSpec
from minfer.settings import Settings

READ_GBS = 4530.0
TENSOR_TFLOPS = 990.0
SLAB = 64
"""Distinct rows of a weight; the rest repeats them."""
COLD_BYTES = 400 << 20
"""Copies of a weight are made until they exceed this."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A product of a model: types and rows of its weights, width of its input."""

    name: str
    types: tuple[str, ...]
    n_rows: tuple[int, ...]
    n_cols: int
    paired: bool = False
    copies: int = 1  # times a token


def _qkv(width: int, kv: int, types: str) -> Shape:
    return Shape("qkv", tuple(types.split()), (width, kv, kv), width)


SHAPES: dict[str, tuple[Shape, ...]] = {
    "7b": (
        Shape("qkv", ("q4_K", "q4_K", "q4_K"), (3584, 512, 512), 3584, copies=14),
        Shape("qkv6", ("q4_K", "q4_K", "q6_K"), (3584, 512, 512), 3584, copies=14),
        Shape("o", ("q4_K",), (3584,), 3584, copies=28),
        Shape("gate+up", ("q4_K", "q4_K"), (18944, 18944), 3584, True, copies=28),
        Shape("down", ("q4_K",), (3584,), 18944, copies=14),
        Shape("down6", ("q6_K",), (3584,), 18944, copies=14),
        Shape("head", ("q6_K",), (152064,), 3584),
    ),
    "0.5b": (
        Shape("qkv", ("q5_0", "q5_0", "q8_0"), (896, 128, 128), 896, copies=24),
        Shape("o", ("q5_0",), (896,), 896, copies=24),
        Shape("gate+up", ("q5_0", "q5_0"), (4864, 4864), 896, True, copies=24),
        Shape("down", ("q4_K",), (896,), 4864, copies=12),
        Shape("down6", ("q6_K",), (896,), 4864, copies=12),
        Shape("head", ("q8_0",), (151936,), 896),
    ),
    "qwen3-8b": (
        Shape("qkv", ("q4_K", "q4_K", "q6_K"), (4096, 1024, 1024), 4096, copies=36),
        Shape("o", ("q4_K",), (4096,), 4096, copies=36),
        Shape("gate+up", ("q4_K", "q4_K"), (12288, 12288), 4096, True, copies=36),
        Shape("down", ("q4_K",), (4096,), 12288, copies=18),
        Shape("down6", ("q6_K",), (4096,), 12288, copies=18),
        Shape("head", ("q6_K",), (151936,), 4096),
    ),
    "gemma3-4b": (
        Shape("qkv", ("q4_K", "q4_K", "q6_K"), (2048, 1024, 1024), 2560, copies=34),
        Shape("o", ("q4_K",), (2560,), 2048, copies=34),
        Shape("gate+up", ("q4_K", "q4_K"), (10240, 10240), 2560, True, copies=34),
        Shape("down", ("q4_K",), (2560,), 10240, copies=17),
        Shape("down6", ("q6_K",), (2560,), 10240, copies=17),
        Shape("head", ("q6_K",), (262144,), 2560),
    ),
    "types": tuple(
        Shape(name, (name, name), (18944, 18944), 3584, True)
        for name in matmul_pack.FORMATS
        if name != "f32"
    ),
}


class Bench:
    """A device, weights on it, and chains of launches timed on it."""

    def __init__(self) -> None:
        self.device = Device(Settings.load(), lambda line: None)
        self.rng = np.random.default_rng(1)
        self.counts = self.device.allocate(12, "counts")
        self.scratch: dict[str, tuple[int, int]] = {}  # name -> address, bytes
        self.zeros = self.device.allocate(64 << 10, "counters")
        self.device.fill(self.zeros, 0, 64 << 10)
        node = Node(0, "input", (), (), Attrs(), (3,), I32, "counts")
        self.context = Context(
            graph=Graph((node,), ()),
            facts=self.device.facts,
            settings=Settings.load({}),
            base=self.counts,
            offsets={0: 0},
            weights=lambda key: 0,
            states={},
            joins=Joins(),
            constant=lambda array: 0,
            find=lambda key: 0,
            scratch=self._scratch,
            counters=lambda count: self.zeros,
        )

    def _scratch(self, nbytes: int, name: str = "work") -> int:
        if nbytes > self.scratch.get(name, (0, 0))[1]:
            self.scratch[name] = (self.device.allocate(nbytes, "scratch"), nbytes)
        return self.scratch[name][0]

    def weights(self, shape: Shape, copies: int) -> tuple[Group, list[int], list[Any]]:
        """Addresses of packed copies of random weights, and the values of their first rows."""
        weights, values = {}, []
        for index, (name, n) in enumerate(zip(shape.types, shape.n_rows, strict=True)):
            slab = self.rng.standard_normal((min(SLAB, n), shape.n_cols)).astype(np.float32) * 0.02
            data = quantize(slab, BY_NAME[name])
            values.append(dequantize(data, BY_NAME[name]).astype(np.float64))
            data = np.tile(data, (-(-n // SLAB), 1))[:n]
            spec = WeightSpec(BY_NAME[name], (shape.n_cols, n))
            weights[f"{shape.name}.{index}"] = Weight(f"{shape.name}.{index}", spec, data.ravel())
        specs = tuple(w.spec for w in weights.values())
        group = Group(tuple(weights), specs, shape.paired)
        first = matmul_pack.load(group, MappingProxyType(weights), Store(self.device))
        addresses = [first]
        for _ in range(copies - 1):
            addresses.append(self.device.allocate(group.nbytes, "a copy"))
            self.device.copy(addresses[-1], first, group.nbytes)
        return group, addresses, values

    def seconds(self, launches: Sequence[Launch], replays: int) -> float:
        """Time of one pass over `launches`, replayed as a graph."""
        graph = self.device.capture(self.device.freeze(launches))
        for _ in range(3):
            self.device.replay(graph)
        self.device.synchronize()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(replays):
                self.device.replay(graph)
            self.device.synchronize()
            times.append((time.perf_counter() - start) / replays)
        return sorted(times)[2]


def gguf_bytes(shape: Shape) -> int:
    """Bytes of the weights as the file has them."""
    return sum(
        BY_NAME[t].nbytes(n * shape.n_cols) for t, n in zip(shape.types, shape.n_rows, strict=True)
    )


def expected(shape: Shape, x: Any, values: list[Any]) -> list[tuple[int, Any]]:
    """Column and values of the outputs that can be known: of the first rows of each weight."""
    if shape.paired:
        g = x @ values[0].T
        return [(0, g / (1 + np.exp(-g)) * (x @ values[1].T))]
    at, found = 0, []
    for n, w in zip(shape.n_rows, values, strict=True):
        found.append((at, x @ w.T))
        at += n
    return found


Make = Callable[[matmul.Product, Context], list[Launch]]


def measure(
    bench: Bench, shape: Shape, rows: int, made: Any, single: bool, make: Make | None = None
) -> dict[str, object]:
    """One shape at a number of rows: checked, then timed."""
    group, addresses, values = made
    device = bench.device
    x = bench.rng.standard_normal((rows, shape.n_cols)).astype(np.float32)
    device.upload(bench.counts, np.full(3, rows, np.int32))
    source, out = device.allocate(x.nbytes, "x"), device.allocate(4 * rows * group.n_outputs, "out")
    device.upload(source, x)
    device.fill(out, 0xFF, 4 * rows * group.n_outputs)
    epilogue = matmul.SILU if shape.paired else matmul.PLAIN
    launches: list[Launch] = []
    n = len(addresses)
    for address in addresses:
        product = matmul.Product(
            group, address, Normed(source), out, rows, rows if single else 0, epilogue
        )
        launches += make(product, bench.context) if make else matmul.project(product, bench.context)
    device.run(launches[: len(launches) // n])
    found = device.download(out, 4 * rows * group.n_outputs).view(np.float32)
    found = found.reshape(rows, group.n_outputs)
    errors = []
    for at, values_of in expected(shape, x.astype(np.float64), values):
        part = found[:, at : at + values_of.shape[1]]
        errors.append(np.linalg.norm(part - values_of) / np.linalg.norm(values_of))
    finite = bool(np.isfinite(found).all())
    seconds = bench.seconds(launches, max(2, min(50, int(0.03 / (2e-5 * n))))) / n
    each = len(launches) // n  # launches of a product
    apart = (
        [bench.seconds(launches[i::each], 10) / n * 1e6 for i in range(each)] if each > 1 else []
    )
    device.free(source)
    device.free(out)
    nbytes = gguf_bytes(shape)
    flops = 2.0 * rows * sum(shape.n_rows) * shape.n_cols
    floor = max(nbytes / READ_GBS / 1e9, flops / TENSOR_TFLOPS / 1e12)
    row = {
        "shape": shape.name,
        "types": " ".join(dict.fromkeys(shape.types)),
        "rows": rows,
        "path": "single" if single else "many",
        "kernels": " ".join(_short(launch) for launch in launches[:each]),
        "us": seconds * 1e6,
        "us_apart": " ".join(f"{us:.1f}" for us in apart),
        "gbs": nbytes / seconds / 1e9,
        "tflops": flops / seconds / 1e12,
        "floor_share": floor / seconds,
        "error": float(max(errors)) if finite else float("nan"),
    }
    print(*(f"{v:.4g}" if isinstance(v, float) else v for v in row.values()), flush=True)
    return row


SHORT = {
    "ROWS": "r",
    "PARTS": "p",
    "GROUPS": "g",
    "COLUMNS": "c",
    "WARPS": "w",
    "TILES": "t",
    "TILE_N": "n",
    "RANKS": "k",
    "STAGES": "s",
    "X_STAGES": "x",
}
"""Macros that say what a geometry is -> the letters that stand for them."""


def _short(launch: Launch) -> str:
    d = dict(launch.kernel.defines)
    name = launch.kernel.name.removeprefix("matmul_")
    return name + "".join(f"/{letter}{d[key]}" for key, letter in SHORT.items() if key in d)


def chain(bench: Bench, shapes: Sequence[Shape], rows: int) -> dict[str, object]:
    """All products of a token, every weight distinct, in the order of a model."""
    device = bench.device
    width = max(max(s.n_cols, sum(s.n_rows)) for s in shapes)
    a = device.allocate(4 * rows * width, "x")
    b = device.allocate(4 * rows * width, "out")
    device.upload(a, bench.rng.standard_normal((rows, width)).astype(np.float32))
    device.upload(bench.counts, np.full(3, rows, np.int32))
    per_layer: list[list[matmul.Product]] = []
    tail: list[matmul.Product] = []
    for shape in shapes:
        group, addresses, _ = bench.weights(shape, shape.copies)
        epilogue = matmul.SILU if shape.paired else matmul.PLAIN
        products = [matmul.Product(group, w, Normed(a), b, rows, rows, epilogue) for w in addresses]
        if shape.copies > 1:
            per_layer.append(products)
        else:
            tail += products
    launches: list[Launch] = []
    layers = max(len(p) for p in per_layer)
    for layer in range(layers):
        for products in per_layer:
            step = layers // len(products)
            # shapes that share the layers (`down`, `down6`) take turns
            offset = 1 if step > 1 and "6" in products[0].group.names[0] else 0
            if layer % step == offset % step:
                launches += matmul.project(products[layer // step], bench.context)
    for product in tail:
        launches += matmul.project(product, bench.context)
    seconds = bench.seconds(launches, 10)
    nbytes = sum(gguf_bytes(s) * s.copies for s in shapes)
    return {
        "shape": "chain",
        "rows": rows,
        "path": "single",
        "kernels": f"{len(launches)} launches",
        "us": seconds * 1e6,
        "us_apart": "",
        "gbs": nbytes / seconds / 1e9,
        "tflops": 0.0,
        "floor_share": nbytes / READ_GBS / 1e9 / seconds,
        "error": 0.0,
    }


def sweep(
    bench: Bench, shape: Shape, rows: int, made: Any, single: bool
) -> list[dict[str, object]]:
    """One shape in every sensible geometry of the kernels that take so many rows."""
    makes = _geometries(bench, made[0], rows) if single else _tiles(bench, made[0], rows)
    return [measure(bench, shape, rows, made, single, make) for make in makes]


SWEPT = 16
"""Geometries of a kernel that are tried: those that should be fastest."""


def _geometries(bench: Bench, group: Group, rows: int) -> list[Make]:
    facts = bench.device.facts
    kernel = choose.single_rows_kernel(group, rows, facts)
    if kernel == "matmul_many_sm90":
        return _tiles(bench, group, rows)
    if kernel == "matmul_vec":
        few = [choose.vec_geometry(group, stages, facts.n_sms) for stages in (2, 3, 4, 6)]
        return [_vec(v) for v in few if v.shared <= facts.shared_limit]
    columns = next((c for c in (8, 16, 32) if c >= rows), 64)
    some = [v for ranks in range(1, 9) for v in choose.batches(group, columns, ranks, facts)]
    some.sort(key=lambda v: choose.batch_cost(group, v, facts))
    makes = [_batch(v, rows) for v in some[:SWEPT]]
    if facts.hopper:
        columns = choose.hopper_batch(group, rows, facts).columns
        many = list(choose.hopper_batches(group, columns, facts))
        many.sort(key=lambda v: choose.hopper_cost(group, v, facts))
        makes += [_hopper_batch(v) for v in many[:SWEPT]]
    return makes


def _tiles(bench: Bench, group: Group, rows: int) -> list[Make]:
    """By every tile for many rows, where weights expand in registers, and some ranks."""
    facts = bench.device.facts
    if not facts.hopper:
        return []
    usual = choose.many(group, rows, facts).ranks
    return [
        _many(v, rows)
        for ranks in sorted({1, usual, 2 * usual})
        for v in choose.manys(group, rows, ranks, facts)
    ]


def _many(variant: choose.Many, rows: int) -> Make:
    def make(product: matmul.Product, ctx: Context) -> list[Launch]:
        chunks = choose.many_rows_chunks(rows, ctx.facts)
        x_bytes = matmul_halves.halves_bytes(chunks.columns, product.group)
        x = ctx.scratch(x_bytes + (256 << 20))
        act = matmul_halves.act_launch(product.x, 0, x, rows, chunks, product.group)
        single = product.single_rows > 0
        return [act, matmul.many_launch(product, single, x, x + x_bytes, variant, ctx)]

    return make


def _vec(variant: choose.Vec) -> Make:
    return lambda product, ctx: [matmul.vec_launch(product, variant)]


def _batch(variant: choose.Batch, rows: int) -> Make:
    return lambda product, ctx: matmul.batch_launches(product, 0, rows, variant, ctx)


def _hopper_batch(variant: choose.HopperBatch) -> Make:
    return lambda product, ctx: matmul.hopper_batch_launches(product, variant, ctx)


def prepare(
    bench: Bench, shapes: Sequence[Shape], single: list[int], many: list[int], swept: bool
) -> None:
    """Compile everything in parallel."""
    launches: list[Launch] = []
    for shape in shapes:
        specs = tuple(
            WeightSpec(BY_NAME[t], (shape.n_cols, n))
            for t, n in zip(shape.types, shape.n_rows, strict=True)
        )
        group = Group(shape.types, specs, shape.paired)
        epilogue = matmul.SILU if shape.paired else matmul.PLAIN
        for index in range(len(specs)):
            launches += matmul_pack.pack(group, index, 0, 0)
        for rows, singles in [(n, n) for n in single] + [(n, 0) for n in many]:
            product = matmul.Product(group, 0, Normed(0), 0, rows, singles, epilogue)
            if swept:
                find = _geometries if singles else _tiles
                for make in find(bench, group, rows):
                    launches += make(product, bench.context)
            else:
                launches += matmul.project(product, bench.context)
    bench.device.prepare(launch.kernel for launch in launches)


def main() -> None:
    """Measure, print, append to `results/gpu_matmul.csv`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,2,4,8,16,32,64")
    parser.add_argument("--many", default="512,2048")
    parser.add_argument("--shapes", default="7b")
    parser.add_argument("--only", default="")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--chain", action="store_true")
    args = parser.parse_args()
    bench = Bench()
    rows = results.Rows("gpu_matmul", bench.device.facts.name)
    single = [int(r) for r in args.rows.split(",") if r]
    many = [int(r) for r in args.many.split(",") if r]
    shapes = [s for s in SHAPES[args.shapes] if not args.only or s.name in args.only.split(",")]
    prepare(bench, shapes, single, many, args.sweep)
    for shape in shapes:
        copies = max(3, min(24, COLD_BYTES // gguf_bytes(shape) + 1))
        made = bench.weights(shape, copies)
        for n in single:
            if args.sweep:
                rows.add(*sweep(bench, shape, n, made, True))
            else:
                rows.add(measure(bench, shape, n, made, True))
        for n in many if shape.name != "head" else ():
            if args.sweep:
                rows.add(*sweep(bench, shape, n, made, False))
            else:
                rows.add(measure(bench, shape, n, made, False))
        for address in made[1]:
            bench.device.free(address)
    if args.chain:
        rows.add(*(chain(bench, shapes, n) for n in single))
    print(results.table(rows.all))


if __name__ == "__main__":
    main()
