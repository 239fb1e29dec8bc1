"""Distance from full-precision arithmetic on the same weights.

    python -m bench.fidelity smollm2=FILE gemma3=FILE [--rival llama.cpp]

`tests/data/real/NAME.npz` holds, for 512 positions, the 256 largest logits of a float32 forward
pass on the dequantized weights, and their log-sum-exp over the vocabulary. What is computed from
them is `minfer fidelity`'s; here rivals are measured too, and the result is kept.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import results
from bench.engines import LlamaCpp, Minfer, Rival
from minfer.measure import divergence, log_softmax
from minfer.settings import Settings

REFERENCE = Path(__file__).parent.parent / "tests" / "data" / "real"


@dataclass(frozen=True)
class Distance:
    """KL divergence from the reference (mean, 99th percentile) and share of equal best tokens."""

    mean_kl: float
    p99_kl: float
    top1: float


def load(name: str) -> dict[str, NDArray[Any]]:
    """The reference of a model: ids [513], top_ids and top_values [512, 256], logsumexp [512]."""
    with np.load(REFERENCE / f"{name}.npz") as file:
        return dict(file)


def distance(logits: NDArray[np.float32], reference: dict[str, NDArray[Any]]) -> Distance:
    """Compare logits [n, n_vocab] of the first n positions."""
    n = len(logits)
    top_ids = reference["top_ids"][:n]
    top_log = reference["top_values"][:n] - reference["logsumexp"][:n, None]
    logs = log_softmax(logits)
    kl = divergence(logs, top_ids, top_log)
    return Distance(
        float(kl.mean()),
        float(np.quantile(kl, 0.99)),
        float((logs.argmax(1) == top_ids[:, 0]).mean()),
    )


def measure(engine: Rival, name: str, single: bool, n: int = 512) -> Distance | None:
    """The distance of one path of an engine, or None if it shows no logits."""
    reference = load(name)
    logits = engine.logits(reference["ids"][:n].tolist(), single)
    return None if logits is None else distance(logits, reference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--rival", action="store_true", help="measure llama.cpp too")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    rows = []
    for entry in args.models:
        name, _, path = entry.partition("=")
        settings = Settings.load()
        engines: list[Rival] = [Minfer(Path(path), settings, n_ctx=1024)]
        if args.rival:
            engines.append(LlamaCpp(Path(path), args.threads, n_ctx=1024))
        for engine in engines:
            for path_name, single in (("prefill", False), ("decode", True)):
                d = measure(engine, name, single)
                if d is not None:
                    rows.append(
                        {
                            "model": name,
                            "engine": engine.name,
                            "path": path_name,
                            "mean_kl": d.mean_kl,
                            "p99_kl": d.p99_kl,
                            "top1": d.top1,
                        }
                    )
            engine.close()
    print(results.table(rows))
    results.append("fidelity", rows)


if __name__ == "__main__":
    main()
