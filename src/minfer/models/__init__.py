"""An architecture as a graph. To add one: a file with `config(file)`, and one line in the table."""

from __future__ import annotations

from collections.abc import Callable

from minfer.errors import UnsupportedError
from minfer.gguf import GGUFFile
from minfer.models import gemma3, llama, qwen2, qwen3
from minfer.models.config import DecoderConfig, LayerConfig
from minfer.models.decoder import StepShape, build_decoder, kv_bytes_a_cell, kv_specs
from minfer.models.tensors import check_tensors

ARCHITECTURES: dict[str, Callable[[GGUFFile], DecoderConfig]] = {
    "gemma3": gemma3.config,
    "llama": llama.config,
    "qwen2": qwen2.config,
    "qwen3": qwen3.config,
}
"""`general.architecture` -> how to read its configuration."""


def model_config(file: GGUFFile) -> DecoderConfig:
    """The configuration of the model in `file`, whose tensors are checked against it.

    Raises:
        UnsupportedError: for an architecture that has no row in the table, or one of its variants
            that minfer does not compute.
        FormatError: for metadata or tensors that are missing or do not fit together.
    """
    arch = file.metadata.get_str("general.architecture")
    if arch not in ARCHITECTURES:
        raise UnsupportedError(
            f"architecture {arch!r} is not supported; supported: {', '.join(ARCHITECTURES)}",
            where="general.architecture",
        )
    config = ARCHITECTURES[arch](file)
    check_tensors(config)
    return config


__all__ = [
    "ARCHITECTURES",
    "DecoderConfig",
    "LayerConfig",
    "StepShape",
    "build_decoder",
    "kv_bytes_a_cell",
    "kv_specs",
    "model_config",
]
