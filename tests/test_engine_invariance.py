"""A token does not depend on batch mates, chunks, cached pages or lost ones: bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from backends_fake import Dirty
from numpy.typing import NDArray
from tiny_models import expected, make_engine, run

from minfer.dtypes import F16, F32, Q8_0, DType
from minfer.engine import Engine, SamplingParams
from minfer.engine import Sequence as Run

LENGTHS = (1, 70, 33, 5, 129, 64)


class Watching:
    """A constraint that forbids nothing and keeps the logits of every step."""

    def __init__(self) -> None:
        self.rows: list[NDArray[np.float32]] = []

    def mask(self, logits: NDArray[np.float32]) -> None:
        self.rows.append(logits.copy())

    def accept(self, token: int) -> None:
        pass


def prompts(name: str) -> list[list[int]]:
    ids = expected(name)["ids"].tolist()
    return [ids[i : i + n] for i, n in enumerate(LENGTHS)]


def start(engine: Engine, prompt: Sequence[int], n: int = 6) -> tuple[Run, Watching]:
    watching = Watching()
    params = SamplingParams(temperature=0.0, max_tokens=n)
    return engine.add(prompt, params, constraint=watching), watching


def alone(name: str, backend: str, prompt: Sequence[int], **sizes: object) -> NDArray[np.float32]:
    """Logits of each step of a request that runs by itself, its prompt in one piece."""
    engine = make_engine(name, backend, **({"prefix_cache": False} | sizes))
    _, watching = start(engine, prompt)
    run(engine)
    engine.close()
    return np.stack(watching.rows)


def same(watching: Watching, right: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(np.stack(watching.rows), right)


@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_batch_mates_do_not_matter(name: str, backend_name: str) -> None:
    right = [alone(name, backend_name, p) for p in prompts(name)]
    engine = make_engine(name, backend_name, max_sequences=8, prefix_cache=False)
    watching = []
    for index, prompt in enumerate(prompts(name)):
        watching.append(start(engine, prompt)[1])
        if index % 2:
            engine.step()  # some join while others decode
    run(engine)
    engine.close()
    for seen, expected_rows in zip(watching, right, strict=True):
        same(seen, expected_rows)


@pytest.mark.parametrize("prefill_rows", [1, 7, 64])
def test_chunks_of_a_prompt_do_not_matter(backend_name: str, prefill_rows: int) -> None:
    for prompt in prompts("llama")[:5]:
        engine = make_engine("llama", backend_name, prefill_rows=prefill_rows)
        _, watching = start(engine, prompt)
        run(engine)
        engine.close()
        same(watching, alone("llama", backend_name, prompt))


@pytest.mark.parametrize("cache_type", [F32, F16, Q8_0], ids=str)
def test_a_cached_beginning_does_not_matter(backend_name: str, cache_type: DType) -> None:
    engine = make_engine("qwen3", backend_name, cache_type=cache_type)
    ids = expected("qwen3")["ids"].tolist()
    requests = [
        ids[:129],
        ids[:129],
        ids[:150],
        [*ids[:100], 7, 8, 9],
        ids[:64],
        ids[:65],
        ids[:40],
    ]
    cached = []
    for prompt in requests:
        owner, watching = start(engine, prompt)
        run(engine)
        cached.append(owner.n_cached)
        same(watching, alone("qwen3", backend_name, prompt, cache_type=cache_type))
    assert cached == [0, 128, 129, 100, 63, 64, 39]
    assert engine.counters.cached_tokens == sum(cached)
    engine.clear_cache()
    assert engine.pages == (16, 0, 16)
    engine.close()


def test_a_tail_shared_by_many_is_nobodys_to_change(backend_name: str) -> None:
    ids = expected("llama")["ids"].tolist()
    beginning = ids[:80]
    engine = make_engine("llama", backend_name)
    _, first = start(engine, beginning)
    run(engine)
    watching = [start(engine, beginning + ids[n : n + 3])[1] for n in (90, 100, 110)]
    watching.append(start(engine, beginning)[1])
    run(engine)
    for n, seen in zip((90, 100, 110), watching, strict=False):
        same(seen, alone("llama", backend_name, beginning + ids[n : n + 3]))
    same(watching[-1], np.stack(first.rows))
    engine.close()


def test_lost_pages_do_not_matter(backend_name: str) -> None:
    """Three sequences of up to two pages each in four pages: the youngest start over."""
    ids = expected("qwen2")["ids"].tolist()
    asked = [ids[i : i + 60] for i in (0, 1, 2)]
    engine = make_engine("qwen2", backend_name, n_ctx=128, n_cells=256, prefix_cache=False)
    started = [start(engine, prompt, n=20) for prompt in asked]
    run(engine)
    assert engine.counters.preemptions > 0
    assert {owner.finish_reason for owner, _ in started} == {"length"}
    engine.close()
    for prompt, (_, watching) in zip(asked, started, strict=True):
        roomy = make_engine("qwen2", backend_name, prefix_cache=False)
        _, right = start(roomy, prompt, n=20)
        run(roomy)
        roomy.close()
        same(watching, np.stack(right.rows))


@pytest.mark.parametrize("cache_type", [F32, F16, Q8_0], ids=str)
@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_what_memory_held_before_does_not_matter(
    name: str, cache_type: DType, backend_name: str
) -> None:
    """NaN in every cell not yet stored and in all of the arena: padding and masks let none in."""
    seen = []
    for options in ({}, {"wrap": Dirty}):
        engine = make_engine(name, backend_name, cache_type=cache_type, **options)
        watching = [start(engine, prompt)[1] for prompt in prompts(name)[:4]]
        run(engine)
        greedy = engine.add(prompts(name)[2], SamplingParams(temperature=0.0, max_tokens=70))
        run(engine)  # tokens chosen by the device, over a page's end
        seen.append([*(np.stack(w.rows) for w in watching), np.array(greedy.tokens)])
        engine.close()
    for plain, dirty in zip(*seen, strict=True):
        np.testing.assert_array_equal(dirty, plain)


def test_a_conversation_computes_its_new_turn_only(backend_name: str) -> None:
    ids = expected("llama")["ids"].tolist()
    engine = make_engine("llama", backend_name)
    params = SamplingParams(temperature=0.0, max_tokens=40)
    turn = engine.add(ids[:50], params, reuse_decoded=True)
    run(engine)
    spoken = turn.tokens
    following = engine.add([*spoken, 3, 4], params, reuse_decoded=True)
    run(engine)
    assert following.n_cached == len(spoken) - 1  # the last token had not been computed
    exact = engine.add([*spoken, 3, 4], params)
    run(engine)
    assert exact.n_cached == 0
    engine.close()
