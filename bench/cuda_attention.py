"""Times the CUDA attention kernels on a 7B's shape, without torch or any library.

    python -m bench.cuda_attention [--kv f16|q8_0|f32] [--heads 28 --kv-heads 4 --head-dim 128]

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

from cuda_harness import Runner

from minfer.backends import Split, create_backend
from minfer.dtypes import BY_NAME, F32
from minfer.graph import PAGE, AttentionAttrs, GraphBuilder, KVSpec
from minfer.settings import Settings

LAYERS = 28


def build(backend: Any, args: argparse.Namespace, single: int, chunk: int, depth: int) -> Runner:
    """LAYERS attention nodes over as many states, rows at the end of `depth` keys."""
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
        for i in range(LAYERS)
    }
    builder = GraphBuilder({}, specs)
    q = builder.input("q", (rows, args.heads * args.head_dim), F32)
    k = builder.input("k", (1, args.kv_heads * args.head_dim), F32)
    cells = builder.input("cells", (1,))
    positions, seqs = builder.input("positions", (rows,)), builder.input("seqs", (rows,))
    table = builder.input("page_table", (slots, pages))
    node = q
    for i, name in enumerate(specs):
        store = builder.kv_store(k, k, cells, name, f"store{i}")
        attrs = AttentionAttrs(
            name, args.heads, args.kv_heads, args.head_dim, args.head_dim**-0.5, single
        )
        node = builder.attention(node, positions, seqs, table, store, attrs, f"attention{i}")
    for spec in specs.values():
        backend.add_state(spec)
    runner = Runner(backend, builder.build(node))
    # only attention is timed: the stores are dropped from the program
    nodes = tuple(n.id for n in runner.graph.nodes if n.op == "attention")
    runner.program = backend.compile(Split(runner.graph, nodes, runner.offsets))
    at = [depth - 1] * single + list(range(depth - chunk, depth))
    runner.upload(
        q=np.random.default_rng(0).standard_normal((rows, args.heads * args.head_dim)),
        positions=at,
        seqs=[*range(single), *[0] * chunk],
        page_table=np.arange(slots * pages).reshape(slots, pages),
    )
    return runner


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
    args = parser.parse_args()
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
