"""The one forward pass as a graph: legal for every shape, and reduced where rows are not wanted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import TINY, tiny

from minfer.dtypes import F16, F32, Q8_0
from minfer.graph import verify
from minfer.models import StepShape, build_decoder, kv_bytes_a_cell, kv_specs, model_config

shapes = st.builds(
    StepShape,
    single_rows=st.integers(0, 8),
    other_rows=st.integers(1, 40),
    out_rows=st.integers(1, 8),
    n_slots=st.integers(1, 4),
    max_pages=st.integers(1, 5),
    n_pages=st.integers(1, 9),
    kv_dtype=st.sampled_from([F32, F16, Q8_0]),
    hidden=st.booleans(),
)


@given(name=st.sampled_from(TINY), shape=shapes)
def test_every_shape_gives_a_legal_graph(name: str, shape: StepShape) -> None:
    config = model_config(tiny(name))
    graph = build_decoder(config, shape)
    verify(graph)
    (out,) = graph.outputs
    width = config.width if shape.hidden else config.n_vocab
    assert graph.nodes[out].shape == (shape.out_rows, width)
    assert len(graph.states) == len(config.layers)


@pytest.mark.parametrize("name", TINY)
def test_the_last_block_goes_on_with_the_wanted_rows(name: str) -> None:
    config = model_config(tiny(name))
    graph = build_decoder(config, StepShape(2, 30, 3, 1, 1, 1, F16))
    rows = {n.name: n.shape[0] for n in graph.nodes}
    last = len(config.layers) - 1
    assert rows[f"blk.{last}.attn_q"] == 32
    assert rows[f"blk.{last}.attn_output"] == rows[f"blk.{last}.ffn_up"] == 3
    assert rows["blk.0.ffn_up"] == 32


def test_bytes_of_the_cache() -> None:
    config = model_config(tiny("llama"))
    values = 2 * len(config.layers) * config.n_kv_heads * config.head_dim
    assert kv_bytes_a_cell(config, F32) == 4 * values
    assert kv_bytes_a_cell(config, F16) == 2 * values
    assert kv_bytes_a_cell(config, Q8_0) == values * 34 // 32
    assert [s.n_pages for s in kv_specs(config, 7, F16).values()] == [7] * len(config.layers)
