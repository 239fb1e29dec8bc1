"""NVIDIA GPUs, with kernels of our own. The door: `create`, and what `minfer doctor` prints.

Importing this imports no CUDA package; `create` does.
"""

from __future__ import annotations

from minfer.backends.base import Backend
from minfer.graph import Graph, Node
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


def reason_against(node: Node, graph: Graph) -> str | None:
    """None if the kernels can run `node`, else why not; asks no GPU."""
    from minfer.backends.cuda import backend

    return backend.reason_against(node, graph)


__all__ = ["create", "doctor", "reason_against"]
