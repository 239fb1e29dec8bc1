"""Distance from full-precision arithmetic on the same weights.

    python -m bench.fidelity smollm2=FILE gemma3=FILE [--device cuda] [--rival]
    python -m bench.fidelity tiny-qwen2=FILE --references tests/data/models

`NAME.npz` holds the ids of a text and, for each position, the 256 largest logits of a float32
forward pass on the dequantized weights and their log-sum-exp over the vocabulary; those of the tiny
models hold every logit. What is computed from them is `minfer fidelity`'s; here rivals are measured
too, and the result is kept. Needs no network.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import results
from bench.engines import LlamaCpp, Minfer, Rival
from bench.gpu import device_name
from minfer.measure import divergence, log_softmax
from minfer.settings import Settings

REFERENCES = Path(__file__).parent.parent / "tests" / "data" / "real"
KEPT = 256
"""Logits of a position that are compared, the rest of the distribution as one."""


@dataclass(frozen=True)
class Distance:
    """KL divergence from the reference (mean, 99th percentile) and share of equal best tokens."""

    mean_kl: float
    p99_kl: float
    top1: float


def load(path: Path) -> dict[str, NDArray[Any]]:
    """A reference: ids [n or more], top_ids and top_values [n, KEPT], logsumexp [n]."""
    with np.load(path) as file:
        found = dict(file)
    if "logits" in found:
        logits = found["logits"]
        best = np.argsort(-logits, axis=1, kind="stable")[:, :KEPT]
        values = np.take_along_axis(logits, best, axis=1)
        logsumexp = values[:, 0] - log_softmax(logits).max(1)
        found |= {"top_ids": best, "top_values": values, "logsumexp": logsumexp}
    return found


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


def measure(engine: Rival, reference: dict[str, NDArray[Any]], single: bool) -> Distance | None:
    """The distance of one path of an engine, or None if it shows no logits."""
    ids = reference["ids"][: len(reference["logsumexp"])]
    logits = engine.logits(ids.tolist(), single)
    return None if logits is None else distance(logits, reference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--references", type=Path, default=REFERENCES, metavar="FOLDER")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or reference")
    parser.add_argument("--cache-type", default="f16", help="element type of minfer's KV cache")
    parser.add_argument("--rival", action="store_true", help="measure llama.cpp too")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    settings = replace(Settings.load(), device=args.device, cache_type=args.cache_type)
    rows = results.Rows("fidelity", device_name(args.device))
    for entry in args.models:
        name, _, path = entry.partition("=")
        reference = load(args.references / f"{name}.npz")
        engines: list[Rival] = [Minfer(Path(path), settings, n_ctx=1024)]
        if args.rival:
            engines.append(LlamaCpp(Path(path), args.threads, n_ctx=1024))
        for engine in engines:
            for path_name, single in (("prefill", False), ("decode", True)):
                d = measure(engine, reference, single)
                if d is not None:
                    ran = {"model": name, "engine": engine.name, "path": path_name}
                    rows.add(ran | asdict(d))
            engine.close()
    print(results.table(rows.all))


if __name__ == "__main__":
    main()
