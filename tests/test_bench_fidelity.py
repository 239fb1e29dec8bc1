"""The distance from float32: nought from itself, the same from all logits as from the largest."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_models import FOLDER, expected, path_of

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.engines import Minfer
from bench.fidelity import KEPT, REFERENCES, distance, load, measure

from minfer.measure import log_softmax
from minfer.settings import Settings


def test_a_reference_of_all_logits_keeps_the_largest() -> None:
    reference, logits = load(FOLDER / "tiny-qwen2.npz"), expected("qwen2")["logits"]
    best = np.sort(logits, axis=1)[:, ::-1][:, :KEPT]
    np.testing.assert_array_equal(reference["top_values"], best)
    logs = reference["top_values"] - reference["logsumexp"][:, None]
    np.testing.assert_allclose(logs[:, 0], log_softmax(logits).max(1), atol=1e-5)
    none = distance(logits, reference)
    assert abs(none.mean_kl) < 1e-9
    assert none.top1 == 1.0


def test_what_moves_is_seen() -> None:
    logits = expected("qwen2")["logits"]
    noise = np.random.default_rng(0).standard_normal(logits.shape).astype(np.float32)
    reference = load(FOLDER / "tiny-qwen2.npz")
    near, far = (distance(logits + size * noise, reference) for size in (0.01, 0.3))
    assert 0 < near.mean_kl < far.mean_kl
    assert near.mean_kl <= near.p99_kl
    assert far.top1 < 1.0


@pytest.mark.parametrize("single", [False, True], ids=["prefill", "decode"])
def test_an_engine_is_measured_on_both_paths(single: bool) -> None:
    engine = Minfer(path_of("qwen2"), Settings(device="reference", cache_type="f32"), n_ctx=256)
    found = measure(engine, load(FOLDER / "tiny-qwen2.npz"), single)
    engine.close()
    assert found is not None
    assert found.mean_kl < 1e-8


@pytest.mark.parametrize("path", sorted(REFERENCES.glob("*.npz")), ids=lambda p: p.stem)
def test_the_kept_references_are_distributions(path: Path) -> None:
    reference = load(path)
    kept = np.exp(reference["top_values"] - reference["logsumexp"][:, None]).sum(1)
    assert len(reference["ids"]) > len(kept) == 512
    assert (kept <= 1 + 1e-5).all()
