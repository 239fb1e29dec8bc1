"""The one definition of the forward pass: a `DecoderConfig` and a `StepShape` become a graph.

It knows no token, no position and no sequence: those are inputs, filled before each step.
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.dtypes import F32, DType
from minfer.graph import (
    PAGE,
    PENALTY_COLUMNS,
    PENALTY_WINDOW,
    SAMPLING_COLUMNS,
    AttentionAttrs,
    GatedAttrs,
    Graph,
    GraphBuilder,
    KVSpec,
    Node,
    RopeAttrs,
)
from minfer.models.config import DecoderConfig


@dataclass(frozen=True)
class StepShape:
    """Everything the graph of a step depends on, and the key of its plan.

    Attributes:
        single_rows: places for rows that are alone in their sequence (decode).
        other_rows: places for rows of longer runs (prefill).
        out_rows: places for rows whose logits are wanted.
        n_slots: sequences the page table holds.
        max_pages: pages a sequence may have.
        n_pages: pages of the KV cache in all.
        kv_dtype: element type of the KV cache.
        hidden: whether the output is the final hidden state instead of logits (embeddings).
        sampled: whether the output is a chosen token for each row instead of its logits.
        penalized: whether recent tokens cost something before it is chosen.
    """

    single_rows: int
    other_rows: int
    out_rows: int
    n_slots: int
    max_pages: int
    n_pages: int
    kv_dtype: DType
    hidden: bool = False
    sampled: bool = False
    penalized: bool = False

    @property
    def rows(self) -> int:
        """Places for rows in all."""
        return self.single_rows + self.other_rows


def kv_specs(config: DecoderConfig, n_pages: int, dtype: DType) -> dict[str, KVSpec]:
    """The KV state of every layer, by name."""
    return {
        f"kv.{i}": KVSpec(f"kv.{i}", config.n_kv_heads, config.head_dim, dtype, n_pages)
        for i in range(len(config.layers))
    }


def kv_bytes_a_cell(config: DecoderConfig, dtype: DType) -> int:
    """Bytes one token takes in the KV cache, over all layers."""
    return sum(s.nbytes for s in kv_specs(config, 1, dtype).values()) // PAGE


@dataclass(frozen=True)
class _Inputs:
    """The nodes the host fills before a step; all i32."""

    token_ids: Node  # [rows]
    positions: Node  # [rows], -1 where padded
    cells: Node  # [rows], -1 where padded
    seqs: Node  # [rows], row of the page table
    out_rows: Node  # [out_rows], row of the batch
    counts: Node  # [3]: real single, other and output rows
    page_table: Node  # [n_slots, max_pages]


def build_decoder(config: DecoderConfig, shape: StepShape) -> Graph:
    """The graph of one step; its output is the logits [out_rows, n_vocab] (or hidden states)."""
    g = GraphBuilder(config.weights, kv_specs(config, shape.n_pages, shape.kv_dtype))
    inputs = _Inputs(
        token_ids=g.input("token_ids", (shape.rows,)),
        positions=g.input("positions", (shape.rows,)),
        cells=g.input("cells", (shape.rows,)),
        seqs=g.input("seqs", (shape.rows,)),
        out_rows=g.input("out_rows", (shape.out_rows,)),
        counts=g.input("counts", (3,)),
        page_table=g.input("page_table", (shape.n_slots, shape.max_pages)),
    )
    x = g.embed(inputs.token_ids, "token_embd.weight", "embed", config.embed_scale)
    for layer in range(len(config.layers)):
        g.layer = layer
        last = layer == len(config.layers) - 1
        x = _block(g, config, shape, inputs, layer, x, reduce_rows=last)
    g.layer = None
    x = g.rms_norm(x, "output_norm.weight", "output_norm", config.eps)
    if shape.hidden:
        return g.build(x)
    logits = g.matmul(x, config.head, "logits", shape.out_rows)
    if config.logit_softcap:
        logits = g.softcap(logits, config.logit_softcap, "logits_capped")
    if shape.penalized:
        logits = g.penalize(
            logits,
            g.input("penalties", (shape.out_rows, PENALTY_COLUMNS), F32),
            g.input("recent", (shape.out_rows, PENALTY_WINDOW)),
            inputs.token_ids,
            inputs.out_rows,
            "logits_penalized",
        )
    if shape.sampled:
        sampling = g.input("sampling", (shape.out_rows, SAMPLING_COLUMNS), F32)
        tokens = g.sample(logits, sampling, "sample")
        # a row a sequence: what it chooses is what the step after reads
        chains = shape.rows == shape.out_rows
        return g.build(tokens, feeds=inputs.token_ids if chains else None)
    return g.build(logits)


def _block(
    g: GraphBuilder,
    config: DecoderConfig,
    shape: StepShape,
    inputs: _Inputs,
    layer: int,
    x: Node,
    reduce_rows: bool,
) -> Node:
    """Attention and FFN of one block; the last one goes on with the wanted rows only."""
    p = f"blk.{layer}."
    a = _attention(g, config, shape, inputs, layer, x)
    single = shape.single_rows
    if reduce_rows:
        a = g.rows(a, inputs.out_rows, "attn_rows")
        x = g.rows(x, inputs.out_rows, "residual_rows")
        single = shape.out_rows
    a = g.matmul(a, p + "attn_output.weight", "attn_output", single)
    if config.post_norms:
        a = g.rms_norm(a, p + "post_attention_norm.weight", "post_attention_norm", config.eps)
    x = g.add(a, x, "attn_residual")
    h = g.rms_norm(x, p + "ffn_norm.weight", "ffn_norm", config.eps)
    gate = g.matmul(h, p + "ffn_gate.weight", "ffn_gate", single)
    up = g.matmul(h, p + "ffn_up.weight", "ffn_up", single)
    h = g.gated(gate, up, GatedAttrs(config.act), "ffn_gated")
    h = g.matmul(h, p + "ffn_down.weight", "ffn_down", single)
    if config.post_norms:
        h = g.rms_norm(h, p + "post_ffw_norm.weight", "post_ffw_norm", config.eps)
    return g.add(h, x, "ffn_residual")


def _attention(
    g: GraphBuilder, config: DecoderConfig, shape: StepShape, inputs: _Inputs, layer: int, x: Node
) -> Node:
    """Norm, projections, rotation, store, attention: [rows, n_heads * head_dim]."""
    p = f"blk.{layer}."
    spec = config.layers[layer]
    h = g.rms_norm(x, p + "attn_norm.weight", "attn_norm", config.eps)
    projected = []
    for part in "qkv":
        bias = p + f"attn_{part}.bias" if config.qkv_bias else None
        projected.append(
            g.matmul(h, p + f"attn_{part}.weight", f"attn_{part}", shape.single_rows, bias)
        )
    q, k, v = projected
    if config.qk_norm:
        q = g.rms_norm(q, p + "attn_q_norm.weight", "q_norm", config.eps, config.head_dim)
        k = g.rms_norm(k, p + "attn_k_norm.weight", "k_norm", config.eps, config.head_dim)
    at = inputs.positions
    q = g.rope(q, at, RopeAttrs(config.n_heads, config.head_dim, spec.rope), "q_rope")
    k = g.rope(k, at, RopeAttrs(config.n_kv_heads, config.head_dim, spec.rope), "k_rope")
    stored = g.kv_store(k, v, inputs.cells, f"kv.{layer}", "kv_store")
    attrs = AttentionAttrs(
        state=f"kv.{layer}",
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        scale=config.attn_scale,
        single_rows=shape.single_rows,
        window=spec.window,
        softcap=config.attn_softcap,
    )
    return g.attention(q, at, inputs.seqs, inputs.page_table, stored, attrs, "attention")
