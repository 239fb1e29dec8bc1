"""minfer: run GGUF language models on CPUs and NVIDIA GPUs, with kernels of its own.

from minfer import LLM, SamplingParams

with LLM("smollm2") as llm:
    print(llm.chat("What is the capital of France?").text)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minfer.engine import SamplingParams
    from minfer.errors import MinferError
    from minfer.llm import LLM, Completion, Piece, Usage

__version__ = "0.1.0"

# Imported when first used: `import minfer` alone stays cheap.
_HOMES = {
    "LLM": "minfer.llm",
    "Completion": "minfer.llm",
    "Piece": "minfer.llm",
    "Usage": "minfer.llm",
    "SamplingParams": "minfer.engine",
    "MinferError": "minfer.errors",
}

__all__ = ["LLM", "Completion", "MinferError", "Piece", "SamplingParams", "Usage", "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'minfer' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
