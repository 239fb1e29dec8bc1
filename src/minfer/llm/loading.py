"""From a file to an engine: which backends, how much context, how much KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from minfer.backends import Weight, create_backend
from minfer.dtypes import BY_NAME
from minfer.engine import Engine, EngineConfig
from minfer.errors import BackendError, OutOfMemoryError, RequestError, UnsupportedError
from minfer.gguf import GGUFFile
from minfer.graph import PAGE, WeightSpec
from minfer.llm.placing import fits, gpu_layers, has_plenty, n_fitting, refusal
from minfer.llm.results import ModelInfo, Notice
from minfer.models import DecoderConfig, kv_bytes_a_cell, model_config
from minfer.scheduler import Device
from minfer.settings import Settings

DEFAULT_CTX = 4096
CACHE_SHARE = 0.25
"""Part of a backend's memory that the KV cache may take unasked."""


def file_weights(file: GGUFFile) -> dict[str, Weight]:
    """Every tensor of a file as a weight, still in the file."""
    return {
        name: Weight(name, WeightSpec(t.dtype, t.shape), t.data) for name, t in file.tensors.items()
    }


def wants_gpu(settings: Settings) -> bool:
    """Whether a GPU was asked for; else it is used where there is one that can be."""
    return settings.device == "cuda" or settings.gpu_layers != "auto"


def open_devices(config: DecoderConfig, settings: Settings) -> tuple[list[Device], list[Notice]]:
    """The backends to use, best first, and notices about those that could not be had.

    A GPU that is to take what fits takes everything here; `place_blocks` says what that is.

    Raises:
        BackendError: if the device asked for, or one for the layers asked for, cannot be had.
        RequestError: for a number of GPU layers that is none.
    """
    if settings.device in ("cpu", "reference"):
        return [Device(create_backend(settings.device, settings))], []
    n_layers = gpu_layers(settings.gpu_layers, len(config.layers))
    if n_layers == 0:
        return [Device(create_backend("cpu", settings))], []
    try:
        gpu = create_backend("cuda", settings)
    except BackendError as error:
        if wants_gpu(settings):
            raise
        return [Device(create_backend("cpu", settings))], [Notice(str(error), usual=True)]
    if n_layers is None:
        return [Device(gpu)], []
    try:
        cpu = create_backend("cpu", settings)
    except BaseException:
        gpu.close()
        raise
    return [Device(gpu, n_layers), Device(cpu)], []


def place_blocks(
    devices: list[Device],
    config: DecoderConfig,
    weights: Mapping[str, Weight],
    sizes: EngineConfig,
    settings: Settings,
) -> list[Notice]:
    """Leave to the CPU, in `devices`, what the GPU cannot run or hold; notices about that.

    Raises:
        UnsupportedError: if the GPU was asked for and has no kernel for one of its nodes.
        OutOfMemoryError: if the GPU was asked for and not one block fits.
    """
    first = devices[0].backend
    reason = refusal(devices[0], config, sizes) if first.name == "cuda" else None
    if reason is not None:
        if wants_gpu(settings):
            raise UnsupportedError(
                f"the GPU cannot run {reason}", where="device", remedy="Use --device cpu"
            )
        devices.append(Device(create_backend("cpu", settings)))
        devices.pop(0).backend.close()
        return [Notice(f"the GPU cannot run {reason}; the CPU runs everything")]
    if settings.gpu_layers != "auto" or len(devices) > 1 or has_plenty(first, weights):
        return []
    if fits(devices, config, weights, sizes, settings):
        return []
    cpu = create_backend("cpu", settings)
    devices.append(Device(cpu))  # closed with the others, whatever happens
    n = n_fitting(first, cpu, config, weights, sizes, settings)
    budget, n_layers = first.budget(), len(config.layers)
    room = f"{budget.nbytes >> 20} MiB ({budget.how})"
    if n:
        devices[0] = Device(first, n)
        text = f"{n} of {n_layers} blocks fit the GPU's {room}; the CPU runs the others"
        return [Notice(text)]
    if settings.device == "cuda":
        raise OutOfMemoryError(
            f"not one of {n_layers} blocks fits the GPU's {room}",
            where="gpu_layers",
            remedy="Use a smaller context (-c), a smaller model or --device cpu",
        )
    devices.pop(0).backend.close()
    text = f"not one of {n_layers} blocks fits the GPU's {room}; the CPU runs everything"
    return [Notice(text)]


def engine_config(
    config: DecoderConfig,
    device: Device,
    settings: Settings,
    *,
    n_ctx: int | None,
    n_cells: int | None,
    max_sequences: int,
) -> EngineConfig:
    """Sizes for an engine: what was asked for, or what fits.

    Args:
        n_ctx: tokens a sequence may have; 0 takes what the model was trained for.
        n_cells: tokens of KV cache for all sequences; 0 takes what all of them could fill, as far
            as memory allows.

    Raises:
        RequestError: for sizes out of range.
    """
    if n_ctx is not None and n_ctx < 0:
        raise RequestError(f"value {n_ctx} is out of range; expected at least 0", where="n_ctx")
    cache_type = BY_NAME[settings.cache_type]
    context = min(DEFAULT_CTX, config.n_ctx_train) if n_ctx is None else n_ctx
    context = context or config.n_ctx_train
    if not n_cells:
        wanted = context * (2 if n_cells is None else max_sequences)
        affordable = int(device.backend.budget().nbytes * CACHE_SHARE)
        affordable //= kv_bytes_a_cell(config, cache_type)
        n_cells = max(context, min(wanted, affordable))
    if n_cells < context:
        raise RequestError(
            f"{n_cells} cells of KV cache are fewer than the context of {context}",
            where="n_cells",
        )
    return EngineConfig(
        n_ctx=context,
        n_cells=-(-n_cells // PAGE) * PAGE,
        max_sequences=max_sequences,
        cache_type=cache_type,
        prefix_cache=not settings.no_prefix_cache,
    )


def model_info(path: Path, file: GGUFFile, config: DecoderConfig, engine: Engine) -> ModelInfo:
    """Facts for people."""
    by_type: dict[str, int] = {}
    for tensor in file.tensors.values():
        by_type[tensor.dtype.name] = by_type.get(tensor.dtype.name, 0) + tensor.n_items
    return ModelInfo(
        path=path,
        architecture=config.arch,
        name=file.metadata.get_str("general.name", path.stem),
        file_type=max(by_type, key=lambda t: by_type[t]),
        n_params=sum(by_type.values()),
        file_bytes=file.nbytes,
        n_ctx_train=config.n_ctx_train,
        n_vocab=config.n_vocab,
        n_layers=len(config.layers),
        width=config.width,
        backends=tuple(engine.weight_bytes),
    )


def make_engine(
    file: GGUFFile,
    settings: Settings,
    *,
    n_ctx: int | None,
    n_cells: int | None,
    max_sequences: int,
    prefill_rows: int | None = None,
    progress: Callable[[int, int], None] | None,
) -> tuple[Engine, DecoderConfig, list[Notice]]:
    """An engine over `file`, its configuration, and notices for the user.

    Backends made on the way are closed again if anything fails.
    """
    config = model_config(file)
    devices, notices = open_devices(config, settings)
    weights: Mapping[str, Weight] = file_weights(file)
    try:
        sizes = engine_config(
            config,
            devices[0],
            settings,
            n_ctx=n_ctx,
            n_cells=n_cells,
            max_sequences=max_sequences,
        )
        if prefill_rows is not None:
            sizes = replace(sizes, prefill_rows=prefill_rows)
        notices += place_blocks(devices, config, weights, sizes, settings)
        if sizes.n_ctx > config.n_ctx_train:
            text = (
                f"a context of {sizes.n_ctx} tokens is more than the {config.n_ctx_train} "
                "the model was trained for"
            )
            notices.append(Notice(text))
        engine = Engine(config, weights, devices, sizes, settings, progress)
    except BaseException:
        for device in devices:
            device.backend.close()
        raise
    return engine, config, notices
