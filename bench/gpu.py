"""minfer on one GPU: synthetic models with real shapes, correctness first, then speed.

    python -m bench.gpu [--models qwen2-7b-q4_k_m ...] [--folder DIR]

Models are written to DIR when they are not there. Rivals' figures are those measured on one H200
(llama.cpp of October 2026, `-ngl 99 -fa 1`); the ratio to them counts on that card only.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from time import perf_counter

import numpy as np

from bench import results, synthetic
from bench.engines import Minfer
from minfer.errors import MinferError
from minfer.gguf import open_gguf
from minfer.settings import Settings

TINY = Path(__file__).parent.parent / "tests" / "data" / "models"


@dataclass(frozen=True)
class Row:
    """A work and what is known of it: llama.cpp's tokens a second, and the floor's."""

    test: str
    prompt: int = 0
    generate: int = 0
    depth: int = 0
    batch: int = 1
    rival: float | None = None
    floor: float | None = None


WORKS: dict[str, list[Row]] = {
    "qwen2-7b-q4_k_m": [
        Row("pp512", prompt=512, rival=9507, floor=55000),
        Row("pp2048", prompt=2048, rival=9931, floor=57900),
        Row("tg128", generate=128, rival=280, floor=1030),
        Row("tg64 @ d8192", generate=64, depth=8192, rival=246, floor=870),
        Row("tg64 x4", generate=64, batch=4, rival=707),
        Row("tg64 x16", generate=64, batch=16, rival=2206),
        Row("tg64 x32", generate=64, batch=32, rival=3409),
        Row("tg64 x64", generate=64, batch=64, rival=4904, floor=30000),
    ],
    "qwen2-7b-q8_0": [
        Row("pp2048", prompt=2048, rival=11626),
        Row("tg128", generate=128, rival=257, floor=590),
    ],
    "qwen2-0.5b-mix": [
        Row("pp2048", prompt=2048, rival=47542, floor=600000),
        Row("tg128", generate=128, rival=882, floor=12000),
    ],
}


def check_tiny(settings: Settings) -> list[dict[str, object]]:
    """Relative error of the logits of each tiny model, in both paths, against its reference."""
    rows: list[dict[str, object]] = []
    for path in sorted(TINY.glob("*.gguf")):
        with np.load(path.with_suffix(".npz")) as file:
            ids, expected = file["ids"].tolist(), file["logits"]
        engine = Minfer(path, settings, n_ctx=512, batch=1)
        for name, single in (("prefill", False), ("decode", True)):
            got = engine.logits(ids, single)
            error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
            rows.append({"model": path.stem, "test": f"logits {name}", "relative_error": error})
        engine.close()
    return rows


def check_paths(engine: Minfer) -> dict[str, object]:
    """Distance between the many-rows and the one-row path on random tokens."""
    ids = np.random.default_rng(3).integers(0, 255, 96).tolist()
    many, one = engine.logits(ids, False), engine.logits(ids, True)
    error = float(np.linalg.norm(many - one) / np.linalg.norm(one))
    return {"test": "prefill against decode", "relative_error": error}


def measure(engine: Minfer, row: Row, runs: int) -> dict[str, object]:
    """Tokens a second: median, least, most."""
    random = np.random.default_rng(5)
    speeds = []
    for round_ in range(runs + 2):  # eager, capture, then replay
        if row.prompt:
            seconds = engine.prefill(random.integers(0, 255, row.prompt).tolist())
            tokens = row.prompt
        else:
            seconds = engine.decode(row.generate, row.depth, row.batch)
            tokens = row.generate * row.batch
        if round_ >= 2:
            speeds.append(tokens / seconds)
    found: dict[str, object] = {
        "test": row.test,
        "tokens_per_second": median(speeds),
        "least": min(speeds),
        "most": max(speeds),
    }
    if row.rival:
        found["x_llama_cpp"] = median(speeds) / row.rival
    if row.floor:
        found["share_of_floor"] = median(speeds) / row.floor
    return found


COLUMNS = (
    "model test relative_error tokens_per_second least most x_llama_cpp share_of_floor "
    "load_seconds device_bytes file_bytes error"
).split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=WORKS, default=list(WORKS))
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    settings = replace(Settings.load(), device=args.device)
    rows = check_tiny(settings)
    print(results.table(rows), flush=True)
    for name in args.models:
        path = args.folder / f"{name}.gguf"
        if not path.exists():
            synthetic.write(name, path)
        with open_gguf(path) as file:  # bring it into the page cache
            file_bytes = sum(t.nbytes for t in file.tensors.values() if t.data[::4096].sum() >= 0)
        began = perf_counter()
        batch = max(r.batch for r in WORKS[name])
        engine = Minfer(path, settings, n_ctx=8448, batch=batch, prefill_rows=2048)
        loaded = perf_counter() - began
        mine: list[dict[str, object]] = [
            {
                "test": "load",
                "load_seconds": loaded,
                "device_bytes": sum(engine.engine.weight_bytes.values()),
                "file_bytes": file_bytes,
            },
            check_paths(engine),
        ]
        for row in WORKS[name]:
            try:
                mine.append(measure(engine, row, args.runs))
            except MinferError as error:  # a failure is a result too, and CUDA's last all others
                mine.append({"test": row.test, "error": str(error)})
            print(name, mine[-1], flush=True)
        engine.close()
        rows += [{"model": name, **row} for row in mine]
    print(results.table(rows))
    filled = [{c: row.get(c, "") for c in COLUMNS} for row in rows]
    results.append("gpu", filled, device=device_name(args.device))


def device_name(device: str) -> str:
    """Name of the GPU, or of the processor."""
    if device != "cuda":
        return results.cpu_name()
    from cuda.core import Device

    return str(Device(0).name)


if __name__ == "__main__":
    main()
