"""Models of the benches, so small that a CPU runs them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench import synthetic


def shrink(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a synthetic model have two small layers."""
    shape = replace(
        synthetic.MODELS[name],
        n_layers=2,
        width=256,
        n_heads=4,
        n_kv_heads=2,
        head_dim=64,
        ffn_width=512,
        n_vocab=512,
    )
    monkeypatch.setitem(synthetic.MODELS, name, shape)
