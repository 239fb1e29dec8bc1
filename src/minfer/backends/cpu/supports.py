"""What the CPU kernels can run, and the reason where they cannot."""

from __future__ import annotations

from minfer.backends.cpu import _native
from minfer.dtypes import BY_NAME, F16, F32, Q8_0, DType
from minfer.graph import OPS, AttentionAttrs, FusedQKVAttrs, Graph, KVSpec, KVStoreAttrs, Node

MATRIX_TYPES: tuple[DType, ...] = tuple(BY_NAME[name] for name in _native.Format.__members__)
"""Types a matrix or an embedding table may have."""

VECTOR_TYPES: tuple[DType, ...] = (F32, F16, BY_NAME["bf16"])
"""Types a norm weight or a bias may have."""

KV_TYPES: tuple[DType, ...] = (F32, F16, Q8_0)
"""Types a KV state may have."""

HEAD_UNIT = 16
"""A head dimension is a multiple of this: no register of any instruction set spans two heads."""

MAX_HEAD_DIM = 512
"""Largest head dimension: kernels keep a head on the stack."""


def reason_against(node: Node, graph: Graph) -> str | None:
    """None if the kernels can run `node`, else why not."""
    if node.op in ("sample", "penalize"):
        return "on the CPU the engine chooses tokens from the logits, which are in its memory"
    if node.op not in OPS or node.op == "input":
        return f"there is no CPU kernel for {node.op}"
    for name in node.weights:
        reason = _weight(name, graph)
        if reason:
            return reason
    attrs = node.attrs
    if isinstance(attrs, AttentionAttrs | KVStoreAttrs | FusedQKVAttrs):
        return _state(graph.states[attrs.state])
    return None


def _weight(name: str, graph: Graph) -> str | None:
    spec = graph.weights[name]
    allowed = MATRIX_TYPES if len(spec.shape) == 2 else VECTOR_TYPES
    if spec.dtype not in allowed:
        listed = ", ".join(t.name for t in allowed)
        return f"{name} has type {spec.dtype}; the CPU kernels read {listed}"
    return None


def _state(spec: KVSpec) -> str | None:
    if spec.dtype not in KV_TYPES:
        listed = ", ".join(t.name for t in KV_TYPES)
        return f"{spec.name} has type {spec.dtype}; the CPU kernels store {listed}"
    if spec.head_dim % HEAD_UNIT or not 0 < spec.head_dim <= MAX_HEAD_DIM:
        return (
            f"heads of {spec.head_dim} features; the CPU kernels take multiples of {HEAD_UNIT} "
            f"up to {MAX_HEAD_DIM}"
        )
    return None
