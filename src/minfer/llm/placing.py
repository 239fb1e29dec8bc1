"""How many blocks of a model go to the GPU: what was asked for, or what fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minfer.backends import Backend, Foreseeing, Split, Weight
from minfer.engine import EngineConfig
from minfer.errors import RequestError
from minfer.models import DecoderConfig, build_decoder
from minfer.scheduler import Device, make_plan
from minfer.settings import Settings

PLENTY = 3
"""Memory of so many files is enough for any layout of the weights, and for scratch."""
PLENTY_BYTES = 1 << 30
"""And so much on top."""


def gpu_layers(text: str, n_layers: int) -> int | None:
    """How many blocks go to the GPU; None for everything, as far as `auto` finds that it fits.

    Raises:
        RequestError: unless `text` is `auto`, `all` or a number of at least 0.
    """
    if text in ("auto", "all"):
        return None
    try:
        wanted = int(text)
    except ValueError:
        wanted = -1
    if wanted < 0:
        raise RequestError(
            f"value {text!r} is neither `auto`, `all` nor a number", where="gpu_layers"
        )
    return None if wanted > n_layers else wanted


def refusal(device: Device, config: DecoderConfig, sizes: EngineConfig) -> str | None:
    """The first node of those given to `device` that it cannot run, and why; None if it runs all.

    One is enough to give it none: each step would cross between memories for that node.
    """
    graph = build_decoder(config, sizes.largest_steps[0])
    for node in graph.nodes:
        if node.op != "input" and device.may_take(node):
            reason = device.backend.supports(node, graph)
            if reason is not None:
                return f"{node.name}: {reason}"
    return None


def fits(
    devices: Sequence[Device],
    config: DecoderConfig,
    weights: Mapping[str, Weight],
    sizes: EngineConfig,
    settings: Settings,
) -> bool:
    """Whether what `devices` gives to its first backend fits there; takes no memory."""
    first = devices[0].backend
    if not isinstance(first, Foreseeing):
        return True
    plans = [
        make_plan(build_decoder(config, shape), devices, settings) for shape in sizes.largest_steps
    ]
    splits = [
        Split(plan.graph, segment.nodes, plan.offsets[first.name])
        for plan in plans
        for segment in plan.segments
        if segment.backend == first.name
    ]
    arena = max(plan.arena_bytes.get(first.name, 0) for plan in plans)
    return arena + first.footprint(splits, weights) <= first.budget().nbytes


def has_plenty(first: Backend, weights: Mapping[str, Weight]) -> bool:
    """Whether there is so much memory that nothing has to be planned to know that all fits."""
    in_file = sum(weight.data.nbytes for weight in weights.values())
    return PLENTY * in_file + PLENTY_BYTES <= first.budget().nbytes


def n_fitting(
    first: Backend,
    rest: Backend,
    config: DecoderConfig,
    weights: Mapping[str, Weight],
    sizes: EngineConfig,
    settings: Settings,
) -> int:
    """Most blocks, from the first on, that fit `first`; the others and the head are `rest`'s."""
    low, high = 0, len(config.layers)
    while low < high:
        middle = (low + high + 1) // 2
        devices = (Device(first, middle), Device(rest))
        if fits(devices, config, weights, sizes, settings):
            low = middle
        else:
            high = middle - 1
    return low
