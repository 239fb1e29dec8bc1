"""Times the small CUDA ops on a 7B's shape, and choosing tokens beside the host's way of it.

    python -m bench.cuda_small [--rows 1,64,512]

Each figure is the median over graph replays of a chain of launches, so gaps between kernels count
as they do in a step; `floor_us` is what the op's bytes take at 4.5 TB/s. Sampling is timed beside
the host's path: a copy of the logits, a wait, NumPy. Rows are kept in `results/cuda_small.csv`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from backend_runner import weight
from cuda_harness import Runner

from bench import results
from bench.gpu import device_name
from minfer.backends import Weight, create_backend
from minfer.dtypes import BY_NAME, F32, I32
from minfer.engine import Sampler, SamplingParams
from minfer.graph import (
    PENALTY_COLUMNS,
    PENALTY_WINDOW,
    SAMPLING_COLUMNS,
    GatedAttrs,
    GraphBuilder,
    Node,
)
from minfer.settings import Settings

WIDTH, HIDDEN, N_VOCAB = 3584, 18944, 152_064
CHAIN = 16
"""Launches in a replay."""
BYTES_A_US = 4.5e6
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "top-k 40, top-p 0.95": SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1),
    "top-p 0.95 alone": SamplingParams(temperature=0.8, top_k=0, top_p=0.95, seed=1),
}

Op = Callable[[GraphBuilder, dict[str, Node], str], Node]


def timed(run: Callable[[], object], wait: Callable[[], object], repeats: int = 15) -> float:
    """Median microseconds of a run, of five without a wait between them."""
    times = []
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        for _ in range(5):
            run()
        wait()
        if repeat:  # the first captures
            times.append((time.perf_counter() - began) / 5 * 1e6)
    return statistics.median(times)


def chain(backend: Any, op: Op, inputs: dict[str, Any], weights: dict[str, Weight]) -> float:
    """Microseconds of an op, in a chain of its own kind."""
    builder = GraphBuilder({name: w.spec for name, w in weights.items()}, {})
    nodes = {
        name: builder.input(name, x.shape, F32 if x.dtype == np.float32 else I32)
        for name, x in inputs.items()
    }
    last = [op(builder, nodes, f"y{i}") for i in range(CHAIN)]
    runner = Runner(backend, builder.build(*last), weights)
    runner.upload(**inputs)
    return timed(runner.program, backend.synchronize) / CHAIN


def on_host(logits: Any, params: SamplingParams, backend: Any) -> float:
    """Microseconds of the host's path for all rows: from logits on the device to tokens."""
    backend.reserve(logits.nbytes)
    backend.upload(0, logits)

    def run() -> None:
        rows = np.array(backend.download(0, logits.shape, logits.dtype))
        for row in rows:
            Sampler(params).choose(row, [])

    return timed(run, backend.synchronize, repeats=3)


def cases(rows: int) -> dict[str, tuple[Op, dict[str, Any], int]]:
    """Op -> what makes it, its inputs, the bytes it moves at least."""
    random = np.random.default_rng(0)
    x, hidden = (random.standard_normal((rows, n)).astype(np.float32) for n in (WIDTH, HIDDEN))
    ids = random.integers(0, 1000, rows).astype(np.int32)
    table_row = BY_NAME["q4_K"].nbytes(WIDTH)
    return {
        "rms_norm": (lambda b, n, y: b.rms_norm(n["x"], "norm", y, 1e-6), {"x": x}, 8 * x.size),
        "add": (lambda b, n, y: b.add(n["x"], n["x"], y), {"x": x}, 8 * x.size),
        "gated": (
            lambda b, n, y: b.gated(n["x"], n["x"], GatedAttrs("silu"), y),
            {"x": hidden},
            8 * hidden.size,
        ),
        "embed": (
            lambda b, n, y: b.embed(n["ids"], "table", y),
            {"ids": ids},
            rows * (4 * WIDTH + table_row),
        ),
        "rows": (
            lambda b, n, y: b.rows(n["x"], n["ids"], y),
            {"x": x, "ids": ids % rows},
            8 * x.size,
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,64,512")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    random = np.random.default_rng(1)
    weights = {
        "norm": weight("norm", np.ones(WIDTH), F32),
        "table": weight("table", random.standard_normal((1000, WIDTH)), BY_NAME["q4_K"]),
    }
    measured = results.Rows("cuda_small", device_name(args.device))

    def note(op: str, rows: int, us: float, nbytes: int, host_us: float | None = None) -> None:
        row: dict[str, object] = {"op": op, "rows": rows, "us": us}
        row |= {"floor_us": nbytes / BYTES_A_US, "host_us": "" if host_us is None else host_us}
        measured.add(row)

    for rows in map(int, args.rows.split(",")):
        backend: Any = create_backend(args.device, Settings.load())
        for name, (op, inputs, nbytes) in cases(rows).items():
            note(name, rows, chain(backend, op, inputs, weights), nbytes)
        if rows <= 64:
            logits = (3 * random.standard_normal((rows, N_VOCAB))).astype(np.float32)
            window = random.integers(0, N_VOCAB, (rows, PENALTY_WINDOW)).astype(np.int32)
            costs = np.full((rows, PENALTY_COLUMNS), 1.1, np.float32)
            at = np.arange(rows, dtype=np.int32)
            us = chain(
                backend,
                lambda b, n, y: b.penalize(n["x"], n["costs"], n["recent"], n["at"], n["at"], y),
                {"x": logits, "costs": costs, "recent": window, "at": at},
                {},
            )
            note("penalize", rows, us, 8 * logits.size)
            for name, params in SAMPLINGS.items():
                row = (0.0, 1.0, 1.0, 0.0, 0.0)
                if params.temperature > 0:
                    row = (params.temperature, params.top_k, params.top_p, params.min_p, 0.5)
                sampling = np.tile(np.array(row, np.float32), (rows, 1))
                assert sampling.shape[1] == SAMPLING_COLUMNS
                us = chain(
                    backend,
                    lambda b, n, y: b.sample(n["x"], n["sampling"], y),
                    {"x": logits, "sampling": sampling},
                    {},
                )
                host_us = on_host(logits, params, backend)
                note(f"sample, {name}", rows, us, 4 * logits.size, host_us)
        backend.close()
    print(results.table(measured.all))


if __name__ == "__main__":
    main()
