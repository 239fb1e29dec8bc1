"""How long a start takes: the first, which compiles kernels, and later ones, which find them.

    python -m bench.gpu_start [--models NAME ...] [--folder DIR] [--starts 3]

Each start is a process of its own over one folder of compiled kernels, empty before the first. It
loads the model, whose file is in the page cache, computes a prompt and generates a few tokens, so
the kernels of both are needed. Models are written to DIR when they are not there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from time import perf_counter

import numpy as np

from bench import results, synthetic
from bench.gpu import WORKS, device_name
from minfer.gguf import open_gguf

ROOT = Path(__file__).parent.parent
MODELS = ("qwen2-0.5b-mix", "qwen2-7b-q4_k_m")
PROMPT, TOKENS = 200, 4
"""Rows that take the kernels of prompts; steps that are eager, captured and replayed."""
N_CTX = 1024


def child(path: Path, device: str, cache: Path) -> dict[str, float]:
    """One start in this process: seconds of its parts.

    `driver_seconds` is the driver's own start and its context's, whatever is run on it.
    """
    from bench.engines import Minfer
    from minfer.backends import create_backend
    from minfer.settings import Settings

    settings = replace(Settings.load(), device=device, cache_dir=cache)
    times = [perf_counter()]
    create_backend(device, settings).close()
    times.append(perf_counter())
    engine = Minfer(path, settings, n_ctx=N_CTX, batch=1)
    times.append(perf_counter())
    engine.prefill(np.random.default_rng(1).integers(0, 255, PROMPT).tolist())
    engine.decode(TOKENS)
    times.append(perf_counter())
    engine.close()
    parts = ("driver_seconds", "load_seconds", "tokens_seconds")
    return dict(zip(parts, np.diff(times).tolist(), strict=True))


def started(path: Path, device: str, cache: Path) -> dict[str, object]:
    """The row of one start: from the process's beginning to its last token, and how many kernels
    it compiled."""
    before = n_kernels(cache)
    command = [sys.executable, "-m", "bench.gpu_start", "--child", str(path), "--device", device]
    began = perf_counter()
    done = subprocess.run(
        [*command, "--cache", str(cache)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return {
        "kernels_compiled": n_kernels(cache) - before,
        "start_seconds": perf_counter() - began,
        **json.loads(done.stdout.splitlines()[-1]),
    }


def n_kernels(cache: Path) -> int:
    """Compiled units in a cache folder."""
    return len(list((cache / "cubin").glob("*.cubin")))


def measured(path: Path, device: str, starts: int) -> Iterator[dict[str, object]]:
    """Rows of the first start and of later ones."""
    with open_gguf(path) as file:  # bring it into the page cache
        file_bytes = sum(t.nbytes for t in file.tensors.values() if t.data[::4096].sum() >= 0)
    with TemporaryDirectory() as folder:
        for n in range(starts):
            row = started(path, device, Path(folder))
            yield {"start": "later" if n else "first", "file_bytes": file_bytes, **row}


def main() -> None:
    """Measure, print, append to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="*", choices=WORKS, default=MODELS)
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()))
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(child(args.child, args.device, args.cache)))
        return
    rows = results.Rows("gpu_start", device_name(args.device))
    for name in args.models:
        path = synthetic.find(name, args.folder)
        for row in measured(path, args.device, args.starts):
            rows.add({"model": name, **row})
    print(results.table(rows.all))


if __name__ == "__main__":
    main()
