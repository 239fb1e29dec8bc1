"""minfer and its peers on the CPU, alternating in one process, fidelity in the same run.

    python -m bench.cpu_peers smollm2=FILE gemma3=FILE qwen2-0.5b-mix=FILE [--runs 5]

Each engine runs each work once a round, in turn, so that a change of the machine's speed meets
all of them; a ratio is the median over rounds of minfer's speed to the rival's in that round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

from bench import fidelity, results
from bench.engines import LlamaCpp, Minfer, OpenVINO, Rival
from minfer.settings import Settings


@dataclass(frozen=True)
class Work:
    """Something to time: `run` answers (tokens, seconds)."""

    name: str
    run: Callable[[Rival, np.random.Generator], tuple[int, float]]


def prompt(n: int) -> Work:
    """Processing of n new prompt tokens."""

    def run(engine: Rival, random: np.random.Generator) -> tuple[int, float]:
        return n, engine.prefill(random.integers(300, 40000, n).tolist())

    return Work(f"pp{n}", run)


def generation(n: int, depth: int = 0, batch: int = 1) -> Work:
    """Generation of n tokens a sequence."""

    def run(engine: Rival, random: np.random.Generator) -> tuple[int, float]:
        return n * batch, engine.decode(n, depth, batch)

    suffix = (f" @ d{depth}" if depth else "") + (f" x{batch}" if batch > 1 else "")
    return Work(f"tg{n}{suffix}", run)


WORKS = {
    "basic": [prompt(512), generation(128)],
    "long": [prompt(2030), generation(32, depth=4096)],
    "batch": [generation(32, batch=4), generation(32, batch=8)],
}


@contextmanager
def opened(path: Path, threads: int, wanted: list[str]) -> Iterator[list[Rival]]:
    """minfer and those of the wanted peers that are installed."""
    engines: list[Rival] = [Minfer(path, replace(Settings.load(), threads=threads))]
    if "llama.cpp" in wanted and find_spec("llama_cpp"):
        engines.append(LlamaCpp(path, threads))
    if "openvino" in wanted and find_spec("openvino_genai"):
        engines.append(OpenVINO(path, threads))
    try:
        yield engines
    finally:
        for engine in engines:
            engine.close()


def compare(engines: list[Rival], works: list[Work], runs: int) -> list[dict[str, object]]:
    """Rows of tokens a second: median, least and most over the rounds, and ratios to minfer."""
    random = np.random.default_rng(7)
    speeds: dict[tuple[str, str], list[float]] = {}
    for round_ in range(runs + 1):
        for work in works:
            for engine in engines:
                if " x" in work.name and engine.name == "openvino":
                    continue
                tokens, seconds = work.run(engine, random)
                if round_:  # the first warms up
                    speeds.setdefault((work.name, engine.name), []).append(tokens / seconds)
    rows = []
    for (work_name, engine_name), measured in speeds.items():
        ours = speeds[work_name, "minfer"]
        ratio = median(a / b for a, b in zip(ours, measured, strict=True))
        rows.append(
            {
                "test": work_name,
                "engine": engine_name,
                "tokens_per_second": median(measured),
                "least": min(measured),
                "most": max(measured),
                "minfer_ratio": ratio,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=["basic"])
    parser.add_argument("--rivals", nargs="*", default=["llama.cpp", "openvino"])
    args = parser.parse_args()
    works = [w for group in args.works for w in WORKS[group]]
    rows = results.Rows("cpu", columns=("kl_prefill", "kl_decode"))
    for entry in args.models:
        name, _, path = entry.partition("=")
        with opened(Path(path), args.threads, args.rivals) as engines:
            ran = {"model": name, "threads": args.threads, "runs": args.runs}
            mine = [ran | row for row in compare(engines, works, args.runs)]
            if (kept := fidelity.REFERENCES / f"{name}.npz").exists():
                reference = fidelity.load(kept)
                for path_name, single in (("prefill", False), ("decode", True)):
                    d = fidelity.measure(engines[0], reference, single)
                    assert d is not None
                    for row in mine:
                        if row["engine"] == "minfer":
                            row[f"kl_{path_name}"] = d.mean_kl
        rows.add(*mine)


if __name__ == "__main__":
    main()
