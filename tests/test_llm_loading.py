"""Which backends, how much context, how much cache; and nothing stays open when making fails."""

from __future__ import annotations

import pytest
from backends_fake import PartialReference
from tiny_models import tiny

from minfer.backends import Backend, Budget
from minfer.dtypes import F16, Q8_0
from minfer.engine import EngineConfig
from minfer.errors import BackendError, RequestError
from minfer.llm import loading
from minfer.models import kv_bytes_a_cell, model_config
from minfer.scheduler import Device
from minfer.settings import Settings

CONFIG = model_config(tiny("llama"))


class Sized(PartialReference):
    """A backend with so much memory, which notes that it was closed."""

    def __init__(self, name: str, nbytes: int = 1 << 40) -> None:
        super().__init__(name)
        self.nbytes = nbytes
        self.closed = False

    def budget(self) -> Budget:
        return Budget(self.nbytes, "made up")

    def close(self) -> None:
        self.closed = True
        super().close()


def sizes(nbytes: int = 1 << 40, settings: Settings | None = None, **asked: int) -> EngineConfig:
    asked_for = {"n_ctx": None, "n_cells": None, "max_sequences": 4} | asked
    device = Device(Sized("b", nbytes))
    return loading.engine_config(CONFIG, device, settings or Settings(), **asked_for)


def test_context_and_cells_by_default() -> None:
    n = min(loading.DEFAULT_CTX, CONFIG.n_ctx_train)
    assert (sizes().n_ctx, sizes().n_cells) == (n, 2 * n)
    assert sizes(n_ctx=0).n_ctx == CONFIG.n_ctx_train
    assert sizes(n_ctx=100).n_ctx == 100
    assert sizes(n_ctx=100).n_cells % 64 == 0
    assert sizes(n_ctx=100, n_cells=1000).n_cells == 1024
    assert sizes(settings=Settings(no_prefix_cache=True)).prefix_cache is False
    assert sizes(settings=Settings(cache_type="q8_0")).cache_type is Q8_0


def test_little_memory_gives_fewer_cells_but_the_context() -> None:
    some = int(1.5 * 512 * kv_bytes_a_cell(CONFIG, F16) / loading.CACHE_SHARE)
    assert sizes(some, n_ctx=512).n_cells == 768
    assert sizes(1000, n_ctx=512).n_cells == 512


@pytest.mark.parametrize(
    "asked", [{"n_ctx": -1}, {"n_ctx": 200, "n_cells": 199}, {"max_sequences": 0}], ids=str
)
def test_sizes_out_of_range(asked: dict[str, int]) -> None:
    with pytest.raises(RequestError) as caught:
        sizes(**asked)
    assert caught.value.where in asked


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Sized]:
    """The backends that were made; `cuda` fails while it is in `missing`."""
    found: dict[str, Sized] = {}

    def create(name: str, settings: Settings) -> Backend:
        if settings.gpu_mem == 1 and name == "cuda":
            raise BackendError("no GPU", where="cuda")
        if settings.gpu_mem == 2 and name == "cpu":
            raise BackendError("no CPU", where="cpu")
        found[name] = Sized(name)
        return found[name]

    monkeypatch.setattr(loading, "create_backend", create)
    return found


@pytest.mark.parametrize(
    ("settings", "names", "n_notices"),
    [
        (Settings(device="cpu"), ["cpu"], 0),
        (Settings(device="reference"), ["reference"], 0),
        (Settings(), ["cuda"], 0),
        (Settings(device="cuda"), ["cuda"], 0),
        (Settings(gpu_mem=1), ["cpu"], 1),
        (Settings(gpu_layers="0"), ["cpu"], 0),
        (Settings(gpu_layers="1"), ["cuda", "cpu"], 0),
    ],
    ids=["cpu", "reference", "auto", "cuda", "no gpu", "no layers", "some layers"],
)
def test_which_devices(
    made: dict[str, Sized], settings: Settings, names: list[str], n_notices: int
) -> None:
    devices, notices = loading.open_devices(CONFIG, settings)
    assert [d.backend.name for d in devices] == names
    assert len(notices) == n_notices
    for name, backend in made.items():
        assert backend.closed == (name not in names)  # what is not used is not kept


@pytest.mark.parametrize(
    "asked", [{"device": "cuda"}, {"gpu_layers": "1"}, {"gpu_layers": "all"}], ids=str
)
def test_a_device_that_was_asked_for_must_be_there(
    made: dict[str, Sized], asked: dict[str, str]
) -> None:
    """By its name, or by layers that are to go there: no run is silently a slower one."""
    with pytest.raises(BackendError, match="no GPU"):
        loading.open_devices(CONFIG, Settings(gpu_mem=1, **asked))  # type: ignore[arg-type]


def test_that_there_is_no_gpu_is_usual(made: dict[str, Sized]) -> None:
    _, (notice,) = loading.open_devices(CONFIG, Settings(gpu_mem=1))
    assert notice.usual
    assert "no GPU" in str(notice)


@pytest.mark.parametrize(
    "settings", [Settings(gpu_layers="x"), Settings(gpu_layers="1", gpu_mem=2)]
)
def test_what_was_made_before_a_failure_is_closed(
    made: dict[str, Sized], settings: Settings
) -> None:
    with pytest.raises((RequestError, BackendError)):
        loading.open_devices(CONFIG, settings)
    assert all(backend.closed for backend in made.values())


def test_a_failing_engine_closes_its_backends(made: dict[str, Sized]) -> None:
    with pytest.raises(RequestError):
        loading.make_engine(
            tiny("llama"), Settings(), n_ctx=-5, n_cells=None, max_sequences=1, progress=None
        )
    assert [backend.closed for backend in made.values()] == [True]


def test_a_context_beyond_the_training_is_noted(made: dict[str, Sized]) -> None:
    for n_ctx, n_notices in ((CONFIG.n_ctx_train, 0), (CONFIG.n_ctx_train + 1, 1)):
        engine, _, notices = loading.make_engine(
            tiny("llama"), Settings(), n_ctx=n_ctx, n_cells=None, max_sequences=1, progress=None
        )
        engine.close()
        assert len(notices) == n_notices
