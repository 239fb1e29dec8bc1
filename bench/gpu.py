"""minfer on one GPU: synthetic models with real shapes, correctness first, then speed.

    python -m bench.gpu [--models NAME ...] [--tests tg128,pp512,...] [--folder DIR]
    python -m bench.gpu --switches

Models are written to DIR when they are not there. Rivals' figures are those measured on one H200
(llama.cpp of October 2026, `-ngl 99 -fa 1`); the ratio to them counts on that card only. Switches
of the environment apply, and every row names those that were on. `--switches` measures each A/B
switch alone against all of them off. Where the time goes is `bench.gpu_timeline`'s business.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from time import perf_counter
from typing import Any

import numpy as np

from bench import results, synthetic
from bench.engines import Minfer, switches
from minfer.errors import MinferError
from minfer.gguf import open_gguf
from minfer.graph import PAGE
from minfer.measure import cpu_name
from minfer.settings import Settings

TINY = Path(__file__).parent.parent / "tests" / "data" / "models"
N_CTX = 8448
"""Context of an engine, unless a work needs more."""
PREFILL_ROWS = 2048
WARM_UP = 2
"""Unmeasured runs: CUDA launches a plan eagerly twice, the first time to count, then captures."""
NAME = re.compile(r"(pp|tg)([1-9]\d*)(?: @ d(\d+))?(?: x([1-9]\d*))?")


@dataclass(frozen=True)
class Work:
    """A prompt or a generation, and what is known of it.

    Attributes:
        test: its name, as llama-bench writes it: `pp512`, `tg64 @ d8192 x4`.
        prompt: tokens of the prompt; 0 for a generation.
        generate: tokens generated in each sequence.
        depth: tokens before them.
        batch: sequences.
        rival, floor: tokens a second of llama.cpp, and what the device allows.
    """

    test: str
    prompt: int
    generate: int
    depth: int
    batch: int
    rival: float | None = None
    floor: float | None = None

    @property
    def n_ctx(self) -> int:
        """Tokens a sequence must have room for, and two pages to spare."""
        return self.prompt + self.depth + self.generate + 2 * PAGE

    @property
    def tokens(self) -> int:
        """Tokens that are timed."""
        return self.prompt or self.generate * self.batch


def work(test: str, rival: float | None = None, floor: float | None = None) -> Work:
    """The work of a name.

    Raises:
        ValueError: for what is no name of a work.
    """
    match = NAME.fullmatch(test)
    if match is None or (match[1] == "pp" and (match[3] or match[4])):
        raise ValueError(f"{test!r} is no work; write pp512, tg128, tg64 x16 or tg64 @ d8192 x4")
    n, depth, batch = int(match[2]), int(match[3] or 0), int(match[4] or 1)
    prompt, generate = (n, 0) if match[1] == "pp" else (0, n)
    return Work(test, prompt, generate, depth, batch, rival, floor)


def _unrivalled() -> list[Work]:
    return [work(test) for test in ("pp512", "pp2048", "tg128", "tg64 x16")]


WORKS: dict[str, list[Work]] = {
    "qwen2-7b-q4_k_m": [
        work("pp128"),
        work("pp512", rival=9507, floor=55000),
        work("pp2048", rival=9931, floor=57900),
        work("tg128", rival=280, floor=1030),
        work("tg64 @ d8192", rival=246, floor=870),
        work("tg64 x2"),
        work("tg64 x4", rival=707),
        work("tg64 x8"),
        work("tg64 x16", rival=2206),
        work("tg64 x32", rival=3409),
        work("tg64 x64", rival=4904, floor=30000),
        work("tg64 x96"),
        work("pp16384"),
        work("pp32768"),
    ],
    "qwen2-7b-q8_0": [
        work("pp2048", rival=11626),
        work("tg128", rival=257, floor=590),
    ],
    "qwen2-0.5b-mix": [
        work("pp2048", rival=47542, floor=600000),
        work("tg128", rival=882, floor=12000),
    ],
    "llama3-8b-q4_k_m": _unrivalled(),
    "qwen3-8b-q4_k_m": _unrivalled(),
    "gemma3-4b-q4_k_m": _unrivalled(),
}
RIVALLED = [name for name, works in WORKS.items() if any(w.rival for w in works)]

SWITCHES = ("no_cuda_graph", "no_fuse_qkv", "no_fuse_ffn", "no_fa_prefill")
SWITCHED_MODEL = "qwen2-7b-q4_k_m"
SWITCHED_TESTS = "tg128,pp512"


def chosen(model: str, tests: str | None) -> list[Work]:
    """The works of a model: its own, or those named, with what is known of them."""
    own = WORKS[model]
    if tests is None:
        return own
    known = {w.test: w for w in own}
    return [known.get(name) or work(name) for name in map(str.strip, tests.split(","))]


def by_context(works: list[Work]) -> dict[int, list[Work]]:
    """Works by the context their engine has: it is in the shapes of kernels, so none has more."""
    groups: dict[int, list[Work]] = {}
    for w in works:
        groups.setdefault(max(N_CTX, w.n_ctx), []).append(w)
    return groups


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
    return {"relative_error": error}


def memory(engine: Minfer, file_bytes: int) -> dict[str, object]:
    """What the device holds after all works, and how that without the KV cache is to the file.

    On other backends than CUDA only weights and KV cache are known.
    """
    weights = sum(engine.engine.weight_bytes.values())
    cache = engine.engine.cache_bytes
    held = engine.statistics().get("allocated_bytes", weights + cache)
    return {
        "device_bytes": held,
        "kv_bytes": cache,
        "file_bytes": file_bytes,
        "x_file": (held - cache) / file_bytes,
    }


def measure(engine: Minfer, work: Work, runs: int) -> dict[str, object]:
    """Tokens a second, median, least, most; and the launches of a step."""
    random = np.random.default_rng(5)

    def run() -> float:
        if work.prompt:
            return engine.prefill(random.integers(0, 255, work.prompt).tolist())
        return engine.decode(work.generate, work.depth, work.batch)

    launches = engine.launches_a_step(run)
    for _ in range(WARM_UP):
        run()
    speeds = [work.tokens / run() for _ in range(runs)]
    found: dict[str, object] = {
        "tokens_per_second": median(speeds),
        "least": min(speeds),
        "most": max(speeds),
    }
    if launches is not None:
        found["launches_a_step"] = launches
    if work.rival:
        found["x_llama_cpp"] = median(speeds) / work.rival
    if work.floor:
        found["share_of_floor"] = median(speeds) / work.floor
    return found


def measured(
    path: Path, settings: Settings, n_ctx: int, works: list[Work], runs: int
) -> Iterator[dict[str, object]]:
    """Rows of one engine: loading, correctness, works, memory."""
    with open_gguf(path) as file:  # bring it into the page cache
        file_bytes = sum(t.nbytes for t in file.tensors.values() if t.data[::4096].sum() >= 0)
    began = perf_counter()
    try:
        engine = Minfer(
            path,
            settings,
            n_ctx=n_ctx,
            batch=max(w.batch for w in works),
            prefill_rows=PREFILL_ROWS,
            n_cells=max(w.n_ctx * w.batch for w in works),
        )
    except MinferError as error:
        yield {"test": "load", "error": str(error)}
        return
    try:
        yield {
            "test": "load",
            "load_seconds": perf_counter() - began,
            "device_bytes": sum(engine.engine.weight_bytes.values()),
            "file_bytes": file_bytes,
        }
        yield tried("prefill against decode", partial(check_paths, engine))
        for w in works:
            yield tried(w.test, partial(measure, engine, w, runs))
        yield tried("memory", partial(memory, engine, file_bytes))
    finally:
        engine.close()


def tried(test: str, measurement: Callable[[], dict[str, object]]) -> dict[str, object]:
    """A row; a failure is a result too (and after one of CUDA's, all others are the same)."""
    try:
        return {"test": test, **measurement()}
    except MinferError as error:
        return {"test": test, "error": str(error)}


def variants(settings: Settings, each_switch: bool) -> list[Settings]:
    """The settings to measure under: as they are, then with one switch more at a time."""
    if not each_switch:
        return [settings]
    changes: list[dict[str, Any]] = [{name: True} for name in SWITCHES]
    added = [replace(settings, **change) for change in changes]
    return [settings, *(s for s in added if s != settings)]


COLUMNS = (
    "model test relative_error tokens_per_second least most x_llama_cpp share_of_floor "
    "load_seconds device_bytes file_bytes error switches n_ctx launches_a_step x_unswitched "
    "kv_bytes x_file"
).split()


def main() -> None:
    """Measure, print, append to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="*", choices=WORKS)
    parser.add_argument("--tests", help="works by name, separated by commas")
    parser.add_argument("--switches", action="store_true", help="each A/B switch alone")
    parser.add_argument("--folder", type=Path, default=Path(gettempdir()))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    models = args.models or ([SWITCHED_MODEL] if args.switches else RIVALLED)
    tests = args.tests or (SWITCHED_TESTS if args.switches else None)
    try:
        works = {name: chosen(name, tests) for name in models}
    except ValueError as error:
        parser.error(str(error))
    settings = replace(Settings.load(), device=args.device)
    rows = results.Rows("gpu", device_name(args.device), COLUMNS)
    rows.add(*({**row, "switches": switches(settings)} for row in check_tiny(settings)))
    for name in models:
        path = synthetic.find(name, args.folder)
        usual: dict[object, float] = {}  # test -> tokens a second without one switch more
        for variant in variants(settings, args.switches):
            for n_ctx, group in by_context(works[name]).items():
                for row in measured(path, variant, n_ctx, group, args.runs):
                    speed = row.get("tokens_per_second")
                    if isinstance(speed, float) and variant is settings:
                        usual[row["test"]] = speed
                    elif isinstance(speed, float) and row["test"] in usual:
                        row["x_unswitched"] = speed / usual[row["test"]]
                    stamp = {"model": name, "switches": switches(variant), "n_ctx": n_ctx}
                    rows.add(stamp | row)
    print(results.table(rows.all))


def device_name(device: str) -> str:
    """Name of the GPU, or of the processor."""
    if device != "cuda":
        return cpu_name()
    from cuda.core import Device

    return str(Device(0).name)


if __name__ == "__main__":
    main()
