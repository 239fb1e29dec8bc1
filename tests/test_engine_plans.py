"""Plans are made once a shape, dropped when long unused, and made again when memory moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from backends_fake import Recorder
from tiny_models import tiny

from minfer.dtypes import F16
from minfer.engine import plans
from minfer.engine.plans import PlanCache
from minfer.errors import OutOfMemoryError
from minfer.llm import file_weights
from minfer.models import StepShape, kv_specs, model_config
from minfer.scheduler import Device
from minfer.settings import Settings

SHAPE = StepShape(1, 0, 1, n_slots=1, max_pages=1, n_pages=1, kv_dtype=F16)


@pytest.fixture
def backend() -> Recorder:
    return Recorder()


@pytest.fixture
def cache(backend: Recorder) -> PlanCache:
    config = model_config(tiny("llama"))
    for spec in kv_specs(config, 1, F16).values():
        backend.add_state(spec)
    return PlanCache(config, [Device(backend)], file_weights(tiny("llama")), Settings())


def test_a_shape_is_compiled_once(cache: PlanCache, backend: Recorder) -> None:
    first = cache.get(SHAPE)
    n_compiled = len(backend.compiled)
    assert cache.get(replace(SHAPE)) is first
    assert len(backend.compiled) == n_compiled > 0


def test_a_moved_arena_compiles_the_same_plan_again(cache: PlanCache, backend: Recorder) -> None:
    first = cache.get(SHAPE)
    backend.reserve(1 << 24)
    again = cache.get(SHAPE)
    assert again is not first
    assert again.plan is first.plan
    assert cache.get(SHAPE) is again


def test_the_least_recently_used_is_dropped(
    cache: PlanCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "KEPT", 2)
    a, b, c = (replace(SHAPE, n_slots=n) for n in (1, 2, 3))
    first, _, first_again = cache.get(a), cache.get(b), cache.get(a)
    assert first_again is first
    cache.get(c)  # b goes
    assert cache.get(a) is first


def test_what_does_not_fit_leaves_the_others(
    cache: PlanCache, backend: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cache.get(SHAPE)
    reserve: Callable[[int], int] = backend.reserve

    def full(nbytes: int) -> int:
        if nbytes > 1 << 16:
            raise OutOfMemoryError(f"{nbytes} bytes", where="arena")
        return reserve(nbytes)

    monkeypatch.setattr(backend, "reserve", full)
    with pytest.raises(OutOfMemoryError):
        cache.get(replace(SHAPE, other_rows=512))
    assert cache.get(SHAPE) is first
