"""Times the CUDA attention kernels on a 7B's shape, without torch or any library.

    python -m bench.cuda_attention [--kv f16|q8_0|f32] [--heads 28 --kv-heads 4 --head-dim 128]
    python -m bench.cuda_attention --prompts 2048 16384 32768 [--rows 2048]

The second times the last rows of prompts alone, over keys and values that are not zeros, and
compares some rows with float64 first.

Each figure is the median over graph replays of a chain of launches, so gaps between kernels count
as they do in a step. GB/s counts the keys and values once; TFLOP/s the causal half of the scores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cuda_harness import Runner, error

from minfer.backends import Split, create_backend
from minfer.dtypes import BY_NAME, F32
from minfer.graph import PAGE, AttentionAttrs, GraphBuilder, KVSpec
from minfer.settings import Settings

LAYERS = 28
WRONG = 2e-3
"""What no row of a prompt may be off by, relative to its norm: probabilities are halves."""


def build(
    backend: Any,
    args: argparse.Namespace,
    single: int,
    chunk: int,
    depth: int,
    layers: int = LAYERS,
    stored: dict[str, Any] | None = None,
) -> Runner:
    """Attention nodes over as many states, rows at the end of `depth` keys.

    `stored`, the q of the rows and the k and v of all keys, is run once; without it the states hold
    whatever their memory does.
    """
    rows, pages = single + chunk, -(-depth // PAGE)
    slots = max(single, 1)
    specs = {
        f"kv{single}.{chunk}.{depth}.{i}": KVSpec(
            f"kv{single}.{chunk}.{depth}.{i}",
            args.kv_heads,
            args.head_dim,
            BY_NAME[args.kv],
            pages * slots,
        )
        for i in range(layers)
    }
    builder = GraphBuilder({}, specs)
    q = builder.input("q", (rows, args.heads * args.head_dim), F32)
    keys = depth if stored else 1
    k, v = (builder.input(x, (keys, args.kv_heads * args.head_dim), F32) for x in "kv")
    cells = builder.input("cells", (keys,))
    positions, seqs = builder.input("positions", (rows,)), builder.input("seqs", (rows,))
    table = builder.input("page_table", (slots, pages))
    node = q
    for i, name in enumerate(specs):
        store = builder.kv_store(k, v, cells, name, f"store{i}")
        attrs = AttentionAttrs(
            name, args.heads, args.kv_heads, args.head_dim, args.head_dim**-0.5, single
        )
        node = builder.attention(node, positions, seqs, table, store, attrs, f"attention{i}")
    for spec in specs.values():
        backend.add_state(spec)
    runner = Runner(backend, builder.build(node))
    at = [depth - 1] * single + list(range(depth - chunk, depth))
    runner.upload(
        q=np.random.default_rng(0).standard_normal((rows, args.heads * args.head_dim)),
        positions=at,
        seqs=[*range(single), *[0] * chunk],
        page_table=np.arange(slots * pages).reshape(slots, pages),
    )
    if stored:
        runner.upload(cells=np.arange(depth), **stored)
        runner.program()
    # only attention is timed: the stores are dropped from the program
    nodes = tuple(n.id for n in runner.graph.nodes if n.op == "attention")
    runner.program = backend.compile(Split(runner.graph, nodes, runner.offsets))
    return runner


def numbers(args: argparse.Namespace, chunk: int, depth: int) -> dict[str, Any]:
    """q of a prompt's last rows, k and v of all of it."""
    source = np.random.default_rng(1)
    shapes = {"q": (chunk, args.heads), "k": (depth, args.kv_heads), "v": (depth, args.kv_heads)}
    return {
        name: source.standard_normal((rows, heads * args.head_dim), np.float32)
        for name, (rows, heads) in shapes.items()
    }


def wrong_by(out: Any, args: argparse.Namespace, given: dict[str, Any], depth: int) -> float:
    """How far some rows are from float64 over rounded q, k and v, relative to their norm."""
    q, k, v = (
        x.astype(np.float16).astype(np.float64).reshape(len(x), -1, args.head_dim)
        for x in given.values()
    )
    group, chunk = args.heads // args.kv_heads, len(q)
    worst = 0.0
    for row in (0, 1, chunk // 3, chunk // 2, chunk - 2, chunk - 1):
        keys = depth - chunk + row + 1
        for head in range(args.heads):
            scores = k[:keys, head // group] @ q[row, head] * args.head_dim**-0.5
            p = np.exp(scores - scores.max())
            expected = p @ v[:keys, head // group] / p.sum()
            found = out[row, head * args.head_dim : (head + 1) * args.head_dim]
            worst = max(worst, error(found, expected))
    return worst


def prompts(args: argparse.Namespace) -> None:
    """Print a line for each length."""
    folder = Path(tempfile.gettempdir()) / "minfer-bench"
    for depth in args.prompts:
        chunk = min(args.rows, depth)
        given = numbers(args, chunk, depth)
        backend = create_backend("cuda", Settings(cache_dir=folder))
        off = wrong_by(build(backend, args, 0, chunk, depth, 1, given).result(), args, given, depth)
        backend.close()
        backend = create_backend("cuda", Settings(cache_dir=folder))
        us = measure(build(backend, args, 0, chunk, depth, stored=given), 5)
        backend.close()
        rate = 4 * args.head_dim * args.heads * (chunk * depth - chunk * (chunk - 1) / 2) / us / 1e6
        print(
            f"prefill rows {chunk:4} depth {depth:6}: {us:8.1f} us  {rate:7.0f} TFLOP/s, "
            f"off by {off:.1e}",
            flush=True,
        )
        if off > WRONG:
            sys.exit(f"wrong: off by more than {WRONG:.0e}")


def measure(runner: Runner, repeats: int = 15) -> float:
    """Microseconds a layer."""
    for _ in range(4):
        runner.program()
    runner.backend.synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(5):
            runner.program()
        runner.backend.synchronize()
        times.append((time.perf_counter() - start) / 5 / LAYERS * 1e6)
    return statistics.median(times)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--heads", type=int, default=28)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--prompts", type=int, nargs="+", help="lengths; nothing else is timed")
    parser.add_argument("--rows", type=int, default=2048, help="of a prompt, in one launch")
    args = parser.parse_args()
    if args.prompts:
        return prompts(args)
    row_bytes = 2 * BY_NAME[args.kv].nbytes(args.kv_heads * args.head_dim)
    folder = Path(tempfile.gettempdir()) / "minfer-bench"
    for single, depth in (
        (1, 64),
        (1, 512),
        (1, 2048),
        (1, 8192),
        (1, 32768),
        (16, 512),
        (64, 512),
    ):
        backend = create_backend("cuda", Settings(cache_dir=folder))
        us = measure(build(backend, args, single, 0, depth))
        rate = single * depth * row_bytes / us / 1e3
        print(
            f"decode  rows {single:3} depth {depth:6}: {us:8.1f} us  {rate:7.0f} GB/s", flush=True
        )
        backend.close()
    for chunk, depth in ((512, 512), (2048, 2048), (512, 8192)):
        backend = create_backend("cuda", Settings(cache_dir=folder))
        us = measure(build(backend, args, 0, chunk, depth), 5)
        pairs = chunk * depth - chunk * (chunk - 1) / 2
        rate = 4 * args.head_dim * args.heads * pairs / us / 1e6
        print(
            f"prefill rows {chunk:3} depth {depth:6}: {us:8.1f} us  {rate:7.0f} TFLOP/s", flush=True
        )
        backend.close()


if __name__ == "__main__":
    main()
