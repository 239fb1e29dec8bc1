"""Steps under way whose tokens the device chooses: the host reads them one step behind.

While the device computes a step, the next one is already enqueued behind it: the ids that a step
chooses are the other's input, in device memory, so the device never waits for the host. What the
host learns a step late is that a sequence has ended; the row it then computed in vain is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from minfer.engine.batcher import Chunk
from minfer.engine.config import EngineConfig
from minfer.engine.inputs import fill, fill_penalties, fill_sampling
from minfer.models import DecoderConfig, build_decoder
from minfer.scheduler import CompiledPlan, Device, Started


@dataclass(frozen=True)
class Flight:
    """A step that was started and not read yet.

    Attributes:
        chunks: its rows, one token of each sequence.
        compiled: its plan.
        began: when it was started.
        step: what its plan answered.
    """

    chunks: Sequence[Chunk]
    compiled: CompiledPlan
    began: float
    step: Started

    def ids(self) -> NDArray[np.int32]:
        """Wait for the chosen tokens, [n]; -1 where the logits had no finite maximum."""
        return self.step.output()


def supports_sampling(
    devices: Sequence[Device], model: DecoderConfig, config: EngineConfig
) -> bool:
    """Whether all runs on one backend, and it can choose tokens itself, whatever they cost."""
    if len(devices) != 1:
        return False
    graph = build_decoder(model, config.step_shape(1, 0, 1, sampled=True, penalized=True))
    choosing = [node for node in graph.nodes if node.op in ("penalize", "sample")]
    return all(devices[0].backend.supports(node, graph) is None for node in choosing)


def can_fly(chunks: Sequence[Chunk]) -> bool:
    """Whether a step is one row a sequence, each of which the device can choose a token for."""
    return all(
        c.single and c.count == 1 and c.wants_logits and c.sequence.sampler.fits_device
        for c in chunks
    )


def take_off(compiled: CompiledPlan, chunks: Sequence[Chunk]) -> Flight:
    """Start a step whose tokens are known."""
    return _start(compiled, chunks, None)


def next_chunks(flight: Flight) -> list[Chunk]:
    """The rows of the step after `flight`, whose tokens it is choosing."""
    return [replace(c, start=c.start + 1, ahead=True) for c in flight.chunks]


def follow(flight: Flight, chunks: Sequence[Chunk]) -> Flight:
    """Start the step after `flight`; its sequences have cells for it."""
    return _start(flight.compiled, chunks, flight.step)


def _start(compiled: CompiledPlan, chunks: Sequence[Chunk], last: Started | None) -> Flight:
    fill(compiled.inputs, chunks)
    fill_sampling(compiled.inputs["sampling"], chunks)
    if "penalties" in compiled.inputs:
        fill_penalties(compiled.inputs, chunks)
    began, rows = perf_counter(), len(chunks)
    step = compiled.start_after(last, rows) if last else compiled.start(rows)
    return Flight(chunks, compiled, began, step)
