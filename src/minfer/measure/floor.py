"""What this machine allows at most, measured, and the least time a step can take on it.

The least time of a node is the longer of two: its bytes at the speed memory is read, and its
operations at the peak of the arithmetic they need. A step takes the sum over its nodes. Products
with quantized weights count at the peak of 8-bit integers, everything else at that of floats.
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.engine import Engine
from minfer.errors import UnsupportedError
from minfer.graph import Graph, Load, Node, costs
from minfer.scheduler import Plan

READ_BYTES = 256 << 20  # more than any cache holds
BEST_OF = 12  # others may use the machine meanwhile


@dataclass(frozen=True)
class Floor:
    """Measured limits of a device.

    Attributes:
        read_bytes: bytes a second read from memory.
        float_ops, int8_ops: multiplications and additions a second.
        how: how they were measured, for people.
    """

    read_bytes: float
    float_ops: float
    int8_ops: float
    how: str

    def node_seconds(self, graph: Graph, node: Node, nbytes: int, flops: int) -> tuple[float, str]:
        """The least seconds of a node, and whether `memory` or `compute` bounds it."""
        quantized = any(graph.weights[name].dtype.is_quantized for name in node.weights)
        memory = nbytes / self.read_bytes
        compute = flops / (self.int8_ops if quantized else self.float_ops)
        return max((memory, "memory"), (compute, "compute"))


def step_seconds(plan: Plan, load: Load, floor: Floor) -> dict[str, float]:
    """The least seconds of a step, by what bounds its nodes."""
    parts = {"memory": 0.0, "compute": 0.0}
    graph = plan.graph
    for node, cost in zip(graph.nodes, costs(graph, load), strict=True):
        seconds, bound = floor.node_seconds(graph, node, cost.nbytes, cost.flops)
        parts[bound] += seconds
    return parts


def measure_floor(engine: Engine, n_threads: int) -> Floor:
    """Measure the limits of the device that an engine runs on; takes about a second.

    Raises:
        UnsupportedError: if the engine runs on several devices, whose limits do not add up.
        BackendError: if the device fails.
    """
    devices = engine.describe()
    if len(devices) > 1:
        raise UnsupportedError(
            f"the model runs on {' and '.join(devices)}; a floor is that of one device",
            where="--floor",
            remedy="Use --gpu-layers all or --device cpu",
        )
    if "cuda" in devices:
        from minfer.measure.gpu import measure_gpu

        read, floats, int8, how = measure_gpu()
        return Floor(read, floats, int8, f"{devices['cuda']}: {how}")
    return cpu_floor(n_threads)


def cpu_floor(n_threads: int) -> Floor:
    """Measure the limits of `n_threads` threads of this processor."""
    from minfer.measure import _probe

    how = f"{n_threads} thread{'s' * (n_threads > 1)}, {_probe.how()}"
    return Floor(
        float(_probe.read_bytes(READ_BYTES, n_threads, BEST_OF)),
        float(_probe.float_ops(n_threads, BEST_OF)),
        float(_probe.int8_ops(n_threads, BEST_OF)),
        how,
    )
