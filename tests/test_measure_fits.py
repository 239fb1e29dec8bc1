"""What fits a budget: sizes as people write them, and arithmetic that adds up."""

from __future__ import annotations

import pytest
from tiny_models import make_engine

from minfer.errors import RequestError
from minfer.measure import fit, parse_bytes
from minfer.models import kv_bytes_a_cell


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8GB", 8 * 10**9),
        ("8GiB", 8 << 30),
        ("8G", 8 << 30),
        ("512M", 512 << 20),
        ("1.5gb", 1_500_000_000),
        ("123", 123),
        ("123B", 123),
    ],
)
def test_sizes(text: str, found: int) -> None:
    assert parse_bytes(text, where="--budget") == found


@pytest.mark.parametrize("text", ["", "GB", "8XB", "-1GB", "8 G B"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="is no size"):
        parse_bytes(text, where="--budget")


def test_what_is_said_to_fit_does() -> None:
    engine = make_engine("qwen2")
    plenty = fit(engine, 1 << 30)
    assert plenty.everything
    used = plenty.weights + plenty.arena
    for name, n_tokens in plenty.tokens.items():
        from minfer.dtypes import BY_NAME

        cell = kv_bytes_a_cell(engine.model, BY_NAME[name])
        assert used + n_tokens * cell <= 1 << 30 < used + (n_tokens + 64) * cell
    assert plenty.tokens["f32"] < plenty.tokens["f16"] < plenty.tokens["q8_0"]
    needed = used + kv_bytes_a_cell(engine.model, engine.config.cache_type) * engine.config.n_ctx
    assert fit(engine, needed).everything
    blocks = [fit(engine, n).n_blocks for n in range(0, needed, needed // 50)]
    assert blocks == sorted(blocks)
    assert blocks[0] == 0
    assert not fit(engine, needed * 9 // 10).everything
    engine.close()
