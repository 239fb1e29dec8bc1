"""NVIDIA GPUs, with kernels of our own. The door: `create`, and what `minfer doctor` prints.

Importing this imports no CUDA package; `create` does.
"""

from __future__ import annotations

from minfer.backends.base import Backend
from minfer.settings import Settings


def create(settings: Settings) -> Backend:
    """Make a backend on the first GPU.

    Raises:
        BackendError: when the driver, a GPU or a package is missing, with how to get it.
    """
    from minfer.backends.cuda.backend import CudaBackend

    return CudaBackend(settings)


def doctor(settings: Settings) -> dict[str, str]:
    """What was found of all that CUDA needs: a line for each part, with the remedy if missing."""
    from minfer.backends.cuda.report import report

    return report(settings)


__all__ = ["create", "doctor"]
