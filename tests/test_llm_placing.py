"""How many blocks go to the GPU: as asked, as fit, and what is computed stays the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from backends_fake import PartialReference, Supports
from tiny_models import expected, tiny

from minfer.backends import Backend, Budget, Split, Weight
from minfer.errors import OutOfMemoryError, RequestError, UnsupportedError
from minfer.graph import Node
from minfer.llm import file_weights, loading, placing
from minfer.models import model_config
from minfer.scheduler import Device
from minfer.settings import Settings

FILE = tiny("gemma3")
CONFIG = model_config(FILE)
WEIGHTS = file_weights(FILE)
N_LAYERS = len(CONFIG.layers)


class Small(PartialReference):
    """A backend of so much memory, which counts weights as the file has them, and KV states."""

    def __init__(self, name: str, nbytes: int, supports: Supports = lambda node: None) -> None:
        super().__init__(name, supports)
        self.nbytes = nbytes
        self.closed = False

    def budget(self) -> Budget:
        return Budget(self.nbytes, "made up")

    @property
    def when(self) -> Mapping[str, str]:
        return {}

    def kernels(self, split: Split) -> Mapping[int, tuple[str, ...]]:
        return {}

    def footprint(self, splits: Sequence[Split], weights: Mapping[str, Weight]) -> int:
        nodes = [split.graph.nodes[i] for split in splits for i in split.nodes]
        states = {state for n in nodes if (state := getattr(n.attrs, "state", ""))}
        names = {name for node in nodes for name in node.weights}
        specs = splits[0].graph.states if splits else {}
        return sum(weights[n].data.nbytes for n in names) + sum(specs[s].nbytes for s in states)

    def close(self) -> None:
        self.closed = True
        super().close()


@pytest.mark.parametrize(
    ("text", "n"), [("auto", None), ("all", None), ("0", 0), ("3", 3), ("4", 4), ("5", None)]
)
def test_layers_on_the_gpu(text: str, n: int | None) -> None:
    assert placing.gpu_layers(text, 4) == n


@pytest.mark.parametrize("text", ["-1", "many", "", "1.5"])
def test_layers_that_are_no_number(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        placing.gpu_layers(text, 4)
    assert caught.value.where == "gpu_layers"


def sizes(nbytes: int = 1 << 40) -> loading.EngineConfig:
    device = Device(Small("cuda", nbytes))
    return loading.engine_config(
        CONFIG, device, Settings(), n_ctx=128, n_cells=256, max_sequences=2
    )


def needed(n: int | None) -> int:
    """Bytes that the first `n` blocks, or everything, takes."""
    devices = [Device(Small("cuda", 0), n), Device(PartialReference("cpu"))]
    low, high = 0, 1 << 40
    while low < high:
        middle = (low + high) // 2
        devices[0].backend.nbytes = middle  # type: ignore[attr-defined]
        if placing.fits(devices, CONFIG, WEIGHTS, sizes(), Settings()):
            high = middle
        else:
            low = middle + 1
    return low


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Small]:
    """The backends that were made; the GPU has as many bytes as `gpu_mem` says."""
    found: dict[str, Small] = {}

    def create(name: str, settings: Settings) -> Backend:
        found[name] = Small(name, settings.gpu_mem if name == "cuda" else 1 << 40)
        return found[name]

    monkeypatch.setattr(loading, "create_backend", create)
    return found


def place(nbytes: int, **settings: str) -> tuple[list[tuple[str, int | None]], list[str]]:
    chosen = Settings(gpu_mem=nbytes, **settings)  # type: ignore[arg-type]
    devices, _ = loading.open_devices(CONFIG, chosen)
    notices = loading.place_blocks(devices, CONFIG, WEIGHTS, sizes(), chosen)
    return [(d.backend.name, d.n_layers) for d in devices], [str(notice) for notice in notices]


def test_auto_takes_what_fits_and_not_a_block_more(made: dict[str, Small]) -> None:
    everything = needed(None)
    assert place(everything) == ([("cuda", None)], [])
    for n in range(1, N_LAYERS + 1):
        least = needed(n)
        assert least < everything
        found, (notice,) = place(least)
        assert found == [("cuda", n), ("cpu", None)]
        assert f"{n} of {N_LAYERS} blocks" in notice
        if n > 1:
            assert place(least - 1)[0] == [("cuda", n - 1), ("cpu", None)]


def test_nothing_is_planned_where_there_is_plenty(
    made: dict[str, Small], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Small, "footprint")
    assert place(1 << 40) == ([("cuda", None)], [])


def test_too_little_for_one_block(made: dict[str, Small]) -> None:
    found, (notice,) = place(1000)
    assert found == [("cpu", None)]
    assert "not one of" in notice
    assert made["cuda"].closed
    assert not made["cpu"].closed
    with pytest.raises(OutOfMemoryError, match="not one of"):
        place(1000, device="cuda")


@pytest.fixture
def no_attention(made: dict[str, Small], monkeypatch: pytest.MonkeyPatch) -> dict[str, Small]:
    """A GPU without a kernel for the attention of the third block."""

    def supports(node: Node) -> str | None:
        return "heads of 512 features" if node.name == "blk.2.attention" else None

    def create(name: str, settings: Settings) -> Backend:
        made[name] = Small(name, 1 << 40, supports if name == "cuda" else lambda node: None)
        return made[name]

    monkeypatch.setattr(loading, "create_backend", create)
    return made


def test_a_model_that_the_gpu_cannot_run_is_the_cpus_and_a_notice_says_why(
    no_attention: dict[str, Small],
) -> None:
    found, (notice,) = place(1 << 40)
    assert found == [("cpu", None)]
    assert notice == (
        "the GPU cannot run blk.2.attention: heads of 512 features; the CPU runs everything"
    )
    assert no_attention["cuda"].closed
    assert not no_attention["cpu"].closed


@pytest.mark.parametrize("asked", [{"device": "cuda"}, {"gpu_layers": "all"}, {"gpu_layers": "3"}])
def test_a_gpu_that_was_asked_for_must_run_what_it_is_given(
    no_attention: dict[str, Small], asked: dict[str, str]
) -> None:
    with pytest.raises(UnsupportedError, match=r"blk\.2\.attention: heads of 512.*--device cpu"):
        place(1 << 40, **asked)
    assert place(1 << 40, gpu_layers="2") == ([("cuda", 2), ("cpu", None)], [])


@pytest.mark.parametrize("asked", ["all", "2"])
def test_what_was_asked_for_is_not_changed(made: dict[str, Small], asked: str) -> None:
    found, notices = place(1000, gpu_layers=asked)
    assert found[0] == ("cuda", None if asked == "all" else 2)
    assert notices == []


def test_a_model_in_two_places_says_the_same(made: dict[str, Small]) -> None:
    right = expected("gemma3")
    for nbytes in (1 << 40, needed(2), 1000):
        engine, _, notices = loading.make_engine(
            FILE,
            Settings(gpu_mem=nbytes, cache_type="f32"),
            n_ctx=128,
            n_cells=256,
            max_sequences=2,
            progress=None,
        )
        n_places = {1 << 40: ("cuda",), 1000: ("cpu",)}.get(nbytes, ("cuda", "cpu"))
        assert set(engine.weight_bytes) == set(n_places)
        assert len(notices) == (nbytes != 1 << 40)
        logits = engine.forward(right["ids"].tolist()[:50])
        engine.close()
        error = np.abs(logits - right["logits"][:50]).max() / np.abs(right["logits"]).max()
        assert error < 1e-4
    assert all(backend.closed for backend in made.values())
