"""Choosing tokens on the GPU against the reference, over filters, ties and broken rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_harness import Runner

from minfer.backends.reference import ops
from minfer.dtypes import F32
from minfer.graph import SAMPLING_COLUMNS, Graph, GraphBuilder

pytest_plugins = ["cuda_fixtures"]
pytestmark = pytest.mark.cuda


def graph(rows: int, n_vocab: int) -> Graph:
    builder = GraphBuilder({}, {})
    logits = builder.input("logits", (rows, n_vocab), F32)
    sampling = builder.input("sampling", (rows, SAMPLING_COLUMNS), F32)
    return builder.build(builder.sample(logits, sampling, "sample"))


def choose(gpu: Any, logits: np.ndarray, sampling: np.ndarray) -> np.ndarray:
    runner = Runner(gpu, graph(*logits.shape))
    runner.upload(logits=logits, sampling=sampling)
    runner.program()
    node = runner.graph.nodes[runner.graph.outputs[0]]
    return gpu.download(runner.offsets[node.id], node.shape, np.dtype(np.int32))


def mixed(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Rows of sampling of all kinds."""
    return np.stack(
        [
            rng.choice([0.0, 0.3, 1.0, 1.7], rows),
            rng.choice([0, 1, 2, 40, 2048, 3000, 10**6], rows),
            rng.choice([0.0, 0.1, 0.9, 0.95, 1.0], rows),
            rng.choice([0.0, 0.05, 0.5, 1.0], rows),
            rng.random(rows),
        ],
        axis=1,
    ).astype(np.float32)


@pytest.mark.parametrize("n_vocab", [1, 7, 500, 4096, 4097, 152_064])
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0, 60.0])
def test_filters_and_draws(gpu: Any, n_vocab: int, scale: float) -> None:
    """From all tokens about as likely to most of no weight at all."""
    rng = np.random.default_rng(n_vocab)
    rows = 48
    logits = (rng.standard_normal((rows, n_vocab)) * scale).astype(np.float32)
    sampling = mixed(rng, rows)
    found, expected = choose(gpu, logits, sampling), ops.sample(logits, sampling)
    # a draw on the border between two tokens may fall on either side
    assert (found == expected).mean() >= 1 - 1 / rows
    assert ((found >= 0) & (found < n_vocab)).all()


def test_equal_logits_rank_by_rising_id(gpu: Any) -> None:
    rows, n_vocab = 16, 9000
    logits = np.zeros((rows, n_vocab), np.float32)
    logits[:, 5000:] = 1.0
    sampling = np.tile(np.float32([1.0, 7, 1.0, 0.0, 0.0]), (rows, 1))
    sampling[:, 4] = np.linspace(0, 0.999, rows)
    found = choose(gpu, logits, sampling)
    np.testing.assert_array_equal(found, 5000 + (7 * sampling[:, 4]).astype(int))
    sampling[:, 0] = 0.0
    assert (choose(gpu, logits, sampling) == 5000).all()


def test_broken_rows_are_told(gpu: Any) -> None:
    logits = np.random.default_rng(0).standard_normal((6, 1000)).astype(np.float32)
    logits[0, 500] = np.nan
    logits[1, 3] = np.inf
    logits[2] = -np.inf
    logits[3, :999] = -np.inf
    sampling = np.tile(np.float32([0.8, 0, 1.0, 0.0, 0.5]), (6, 1))
    sampling[4, 0] = 0.0
    found = choose(gpu, logits, sampling)
    assert found[:4].tolist() == [-1, -1, -1, 999]
    assert found[4] == logits[4].argmax()
    np.testing.assert_array_equal(found[4:], ops.sample(logits, sampling)[4:])


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_a_token_does_not_depend_on_other_rows(gpu: Any, scale: float) -> None:
    """Nor on how many blocks share a row."""
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal((12, 40_000)) * scale).astype(np.float32)
    sampling = mixed(rng, 12)
    alone = [choose(gpu, logits[i : i + 1], sampling[i : i + 1])[0] for i in range(12)]
    np.testing.assert_array_equal(choose(gpu, logits, sampling), alone)


def test_what_many_tokens_share_is_narrowed_down(gpu: Any) -> None:
    """More equal logits than are sorted at once: k, p and the draw count by rising id."""
    rows, n_vocab = 9, 30_000
    logits = np.full((rows, n_vocab), -2.5, np.float32)
    logits[:, ::3] = 4.0
    uniform = np.linspace(0, 0.999, rows).astype(np.float32)
    sampling = np.zeros((rows, SAMPLING_COLUMNS), np.float32)
    sampling[:, 0], sampling[:, 2], sampling[:, 4] = 2.0, 1.0, uniform
    sampling[:, 1] = 5000
    places = (5000 * uniform).astype(int)
    np.testing.assert_array_equal(choose(gpu, logits, sampling), 3 * places)
    sampling[:, 2] = 0.5  # of 5,000
    np.testing.assert_array_equal(choose(gpu, logits, sampling), 3 * (2500 * uniform).astype(int))
    sampling[:, 1:4] = 0, 1.0, 0.9  # ten thousand, by min-p
    np.testing.assert_array_equal(choose(gpu, logits, sampling), 3 * (10_000 * uniform).astype(int))


def test_the_same_logits_give_the_same_token(gpu: Any) -> None:
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((8, 150_000)).astype(np.float32)
    sampling = np.tile(np.float32([1.5, 0, 0.99, 0.0, 0.0]), (8, 1))
    sampling[:, 4] = rng.random(8)
    runs = [choose(gpu, logits, sampling) for _ in range(5)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])
