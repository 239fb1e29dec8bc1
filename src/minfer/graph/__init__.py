"""What is computed: ops, their shapes and rules, the builder, printing. Nothing here runs."""

from minfer.graph.attrs import (
    PENALTY_COLUMNS,
    PENALTY_WINDOW,
    SAMPLING_COLUMNS,
    Activation,
    AttentionAttrs,
    Attrs,
    EmbedAttrs,
    FusedFFNAttrs,
    FusedQKVAttrs,
    GatedAttrs,
    KVStoreAttrs,
    MatMulAttrs,
    NormAttrs,
    RopeAttrs,
    RopeSpec,
    RopeStyle,
    ScaleAttrs,
    SoftcapAttrs,
)
from minfer.graph.builder import GraphBuilder
from minfer.graph.cost import Cost, Load, costs, real_rows, total
from minfer.graph.ir import PAGE, Graph, KVSpec, Node, WeightSpec
from minfer.graph.ops import OPS, OpSpec
from minfer.graph.render import to_dot, to_json, to_text
from minfer.graph.verify import verify

__all__ = [
    "OPS",
    "PAGE",
    "PENALTY_COLUMNS",
    "PENALTY_WINDOW",
    "SAMPLING_COLUMNS",
    "Activation",
    "AttentionAttrs",
    "Attrs",
    "Cost",
    "EmbedAttrs",
    "FusedFFNAttrs",
    "FusedQKVAttrs",
    "GatedAttrs",
    "Graph",
    "GraphBuilder",
    "KVSpec",
    "KVStoreAttrs",
    "Load",
    "MatMulAttrs",
    "Node",
    "NormAttrs",
    "OpSpec",
    "RopeAttrs",
    "RopeSpec",
    "RopeStyle",
    "ScaleAttrs",
    "SoftcapAttrs",
    "WeightSpec",
    "costs",
    "real_rows",
    "to_dot",
    "to_json",
    "to_text",
    "total",
    "verify",
]
