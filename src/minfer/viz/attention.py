"""What a head looks at: the attention weights of a block, computed again from the block's input.

Kernels never hold these weights as a whole, so they are computed here, in NumPy, from the values
that enter the block's projections on the device that runs it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minfer.backends.reference import ops
from minfer.engine import Chunk, Engine
from minfer.errors import RequestError
from minfer.gguf import GGUFFile, dequantize
from minfer.graph import Node
from minfer.models import DecoderConfig
from minfer.scheduler import CompiledPlan

Values = NDArray[np.float32]
MOST = 512
"""Tokens of a pattern at most: it has that many squared cells."""


def attention_pattern(
    engine: Engine, file: GGUFFile, tokens: Sequence[int], layer: int, head: int
) -> Values:
    """The weights each of the last `MOST` tokens gives to those before it, [n, n].

    The tokens are computed once more, without disturbing any other sequence. Nobody watches the
    engine afterwards.

    Raises:
        RequestError: for a block or a head that is not there.
    """
    config = engine.model
    for what, value, count in (
        ("layer", layer, len(config.layers)),
        ("head", head, config.n_heads),
    ):
        if not 0 <= value < count:
            raise RequestError(f"value {value} is not among 0 to {count - 1}", where=what)
    kept = list(tokens)[-MOST:]
    watcher = _Capture(layer)
    engine.watch(watcher)
    try:
        with engine.lane(len(kept)) as lane:
            lane.compute(kept)
    finally:
        engine.watch(None)
    return _weights(config, file, np.concatenate(watcher.rows), layer, head)


class _Capture:
    """A watcher that keeps what enters the projections of one block."""

    def __init__(self, layer: int) -> None:
        self._layer = layer
        self.rows: list[Values] = []

    def run(self, compiled: CompiledPlan, chunks: Sequence[Chunk]) -> None:
        wanted = _input_of(compiled, self._layer)
        n_rows = sum(c.count for c in chunks)
        compiled.upload_inputs()
        for node, step in compiled.steps():
            step()
            if node is not None and node.id == wanted.id:
                self.rows.append(np.asarray(compiled.read(node, n_rows), np.float32))


def _input_of(compiled: CompiledPlan, layer: int) -> Node:
    """The node that the q projection of a block reads, fused or not."""
    nodes = compiled.plan.graph.nodes
    attention = next(n for n in nodes if n.op == "attention" and n.layer == layer)
    node = nodes[attention.srcs[0]]
    while node.op not in ("matmul", "fused_qkv"):
        node = nodes[node.srcs[0]]
    return nodes[node.srcs[0]]


def _weights(config: DecoderConfig, file: GGUFFile, rows: Values, layer: int, head: int) -> Values:
    kv_head = head * config.n_kv_heads // config.n_heads
    q = _projected(config, file, rows, layer, "q", head)
    k = _projected(config, file, rows, layer, "k", kv_head)
    scores = (q.astype(np.float64) @ k.astype(np.float64).T) * config.attn_scale
    if config.attn_softcap:
        scores = config.attn_softcap * np.tanh(scores / config.attn_softcap)
    at = np.arange(len(rows))
    hidden = at[None, :] > at[:, None]
    window = config.layers[layer].window
    if window:
        hidden |= at[None, :] <= at[:, None] - window
    scores[hidden] = -np.inf
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=1, keepdims=True), np.float32)


def _projected(
    config: DecoderConfig, file: GGUFFile, rows: Values, layer: int, part: str, head: int
) -> Values:
    """Projection, bias, norm and rotation of one head: [rows, head_dim]."""
    prefix = f"blk.{layer}.attn_{part}"
    features = slice(head * config.head_dim, (head + 1) * config.head_dim)
    x = ops.matmul(
        rows,
        _tensor(file, f"{prefix}.weight")[features],
        _tensor(file, f"{prefix}.bias")[features] if config.qkv_bias else None,
    )
    if config.qk_norm:
        x = ops.rms_norm(x, _tensor(file, f"{prefix}_norm.weight"), config.eps)
    positions = np.arange(len(rows), dtype=np.int32)
    return ops.rope(x, positions, config.layers[layer].rope, config.head_dim)


def _tensor(file: GGUFFile, name: str) -> Values:
    """A weight as NumPy has it: [n_out, n_in] or [n]."""
    tensor = file.tensors[name]
    return dequantize(tensor.data, tensor.dtype).reshape(tensor.shape[::-1])
