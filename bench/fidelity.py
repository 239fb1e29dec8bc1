"""Distance from full-precision arithmetic on the same weights.

    python -m bench.fidelity smollm2=FILE gemma3=FILE [--rival llama.cpp]

`tests/data/real/NAME.npz` holds, for 512 positions, the 256 largest logits of a float32 forward
pass on the dequantized weights, and their log-sum-exp over the vocabulary. With p the reference's
probabilities of those tokens, and q the engine's:

    KL = sum p (log p - log q) + p_rest log(p_rest / q_rest)
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import results
from bench.engines import LlamaCpp, Minfer, Rival
from minfer.settings import Settings

REFERENCE = Path(__file__).parent.parent / "tests" / "data" / "real"


@dataclass(frozen=True)
class Distance:
    """KL divergence from the reference (mean, 99th percentile) and share of equal best tokens."""

    mean_kl: float
    p99_kl: float
    top1: float


def load(name: str) -> dict[str, NDArray[np.generic]]:
    """The reference of a model: ids [513], top_ids and top_values [512, 256], logsumexp [512]."""
    with np.load(REFERENCE / f"{name}.npz") as file:
        return dict(file)


def distance(logits: NDArray[np.float32], reference: dict[str, NDArray[np.generic]]) -> Distance:
    """Compare logits [n, n_vocab] of the first n positions."""
    n = len(logits)
    top_ids = reference["top_ids"][:n].astype(np.int64)
    log_p = reference["top_values"][:n].astype(np.float64)
    log_p -= reference["logsumexp"][:n].astype(np.float64)[:, None]
    wide = logits.astype(np.float64)
    best = wide.max(axis=1, keepdims=True)
    log_sum = best[:, 0] + np.log(np.exp(wide - best).sum(axis=1))
    log_q = np.take_along_axis(wide, top_ids, axis=1) - log_sum[:, None]
    p, q = np.exp(log_p), np.exp(log_q)
    p_rest = np.maximum(1.0 - p.sum(axis=1), 1e-12)
    q_rest = np.maximum(1.0 - q.sum(axis=1), 1e-12)
    kl = (p * (log_p - log_q)).sum(axis=1) + p_rest * np.log(p_rest / q_rest)
    return Distance(
        float(kl.mean()),
        float(np.quantile(kl, 0.99)),
        float((wide.argmax(1) == top_ids[:, 0]).mean()),
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
