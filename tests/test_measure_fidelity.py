"""Perplexity and divergence against sums written out, and base runs kept in files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_models import make_engine, tiny

from minfer.dtypes import Q8_0
from minfer.engine import Engine
from minfer.errors import FormatError, RequestError
from minfer.measure import (
    Base,
    Chunks,
    Distances,
    compare,
    cut,
    divergence,
    load_base,
    log_softmax,
    perplexity,
    record_base,
    save_base,
    score,
)
from minfer.text import Tokenizer

TEXT = "The quick brown fox jumps over the lazy dog, again and again. " * 12
NAME = "llama"


@pytest.fixture(scope="module")
def chunks() -> Chunks:
    return cut(Tokenizer.from_metadata(tiny(NAME).metadata), TEXT, 32, 3)


@pytest.fixture
def engine(backend_name: str) -> Iterator[Engine]:
    made = make_engine(NAME, backend_name, prefill_rows=8)
    yield made
    made.close()


def base_of(engine: Engine, chunks: Chunks) -> Base:
    *_, base = record_base(engine, chunks, "a base")
    return base


def distances(engine: Engine, base: Base, single: bool = False) -> Distances:
    *_, found = compare(engine, base, single=single)
    return found


def test_chunks_begin_with_bos_and_drop_the_rest(chunks: Chunks) -> None:
    tokenizer = Tokenizer.from_metadata(tiny(NAME).metadata)
    assert chunks.ids.shape == (3, 32)
    assert (chunks.first, chunks.n_scored) == (16, 15)
    if tokenizer.add_bos:
        assert set(chunks.ids[:, 0]) == {tokenizer.bos_id}
    everything = cut(tokenizer, TEXT, 32)
    assert len(everything) == len(tokenizer.encode(TEXT)) // 32
    with pytest.raises(RequestError, match="the text has"):
        cut(tokenizer, "short", 32)
    with pytest.raises(RequestError, match="less than 4"):
        cut(tokenizer, TEXT, 3)


@pytest.mark.parametrize("single", [False, True])
def test_the_second_half_of_each_chunk_is_scored(
    engine: Engine, chunks: Chunks, single: bool, backend_name: str
) -> None:
    nll: list[float] = []
    for part in score(engine, chunks, single=single):
        nll += (-log_softmax(part.logits)[range(len(part.logits)), part.targets]).tolist()
    right = []
    for ids in chunks.ids:
        logits = engine.forward(ids.tolist()).astype(np.float64)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        right += [-np.log(p[i, ids[i + 1]]) for i in range(16, 31)]
    assert len(nll) == len(right) == 45
    # on CUDA the two paths of a product round activations differently
    tolerance = 1e-2 if backend_name == "cuda" else 2e-3
    np.testing.assert_allclose(nll, right, rtol=tolerance, atol=tolerance)
    found = perplexity(nll)
    assert found.value == pytest.approx(np.exp(np.mean(nll)))
    assert found.error == pytest.approx(found.value * np.std(nll, ddof=1) / 45**0.5)


def test_a_run_is_no_distance_from_itself(engine: Engine, chunks: Chunks) -> None:
    found = distances(engine, base_of(engine, chunks))
    assert len(found) == 45
    assert found.kl.max() < 1e-6
    assert found.top1.value == 1
    assert abs(found.log_ratio.value) < 1e-6
    assert found.base_perplexity.value == pytest.approx(found.perplexity.value, rel=1e-5)


def test_a_packed_cache_is_some_distance_away(chunks: Chunks) -> None:
    exact, packed = make_engine(NAME), make_engine(NAME, cache_type=Q8_0)
    found = distances(packed, base_of(exact, chunks), single=True)
    assert 1e-6 < found.mean_kl.value < 0.1
    assert found.percentile(50) <= found.percentile(90) <= found.percentile(100) == found.kl.max()
    exact.close()
    packed.close()


def test_divergence_with_a_rest_is_all_but_the_whole(chunks: Chunks) -> None:
    random = np.random.default_rng(1)
    p_logits = random.normal(0, 4, (20, 1000)).astype(np.float32)
    q_logits = p_logits + random.normal(0, 0.3, p_logits.shape).astype(np.float32)
    log_p, log_q = log_softmax(p_logits), log_softmax(q_logits)
    whole = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    ids = np.argsort(-log_p, axis=1)
    every = divergence(log_q, ids, np.take_along_axis(log_p, ids, axis=1))
    np.testing.assert_allclose(every, whole, atol=1e-9)
    top = ids[:, :256]
    found = divergence(log_q, top, np.take_along_axis(log_p, top, axis=1))
    assert (found <= whole + 1e-9).all()
    np.testing.assert_allclose(found, whole, rtol=0.05)


def test_a_base_comes_back_from_its_file(chunks: Chunks, tmp_path: Path) -> None:
    engine = make_engine(NAME)
    base = base_of(engine, chunks)
    path = tmp_path / "base.logits"
    save_base(base, path)
    again = load_base(path)
    assert (again.about, again.n_chunks, again.chunks.first) == ("a base", 3, 16)
    for field in ("top_ids", "top_log", "next_log"):
        np.testing.assert_array_equal(getattr(again, field), getattr(base, field))
    np.testing.assert_array_equal(again.chunks.ids, chunks.ids)
    assert distances(engine, again).top1.value == 1
    engine.close()


def test_an_interrupted_base_serves_for_the_chunks_it_has(chunks: Chunks) -> None:
    engine = make_engine(NAME)
    first = next(iter(record_base(engine, chunks, "")))
    assert first.n_chunks == 1
    assert len(distances(engine, first)) == 15
    engine.close()


def test_what_is_no_saved_base_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        load_base(path)
    for content in (b"", b"hello", b"PK\x03\x04 cut off"):
        path.write_bytes(content)
        with pytest.raises(FormatError, match="no saved logits"):
            load_base(path)
    with path.open("wb") as file:
        np.savez(file, format=np.array("other 2"))
    with pytest.raises(FormatError, match="holds 'other 2'"):
        load_base(path)
