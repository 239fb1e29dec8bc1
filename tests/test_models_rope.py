"""Rotary frequencies: plain, linear, YaRN against Hugging Face's numbers, per-pair factors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tiny_models import Tensors, rewritten, tensor, tiny

from minfer.errors import FormatError, UnsupportedError
from minfer.gguf import open_gguf
from minfer.graph import RopeSpec
from minfer.models import model_config
from minfer.models.rope import rope_spec

YARN = [  # head_dim, base, factor, original context; Hugging Face's frequencies and magnitude
    (
        *(16, 1e6, 4.0, 32768),
        [
            *(1.0, 0.1778279410038923, 0.03162277660168379, 0.004217559938927618),
            *(0.0005, 4.445698525097307e-05, 7.905694150420949e-06, 1.4058533129758728e-06),
        ],
        1.138629436111989,
    ),
    (
        *(32, 1e4, 16.0, 2048),
        [
            *(1.0, 0.5623413251903491, 0.31622776601683794, 0.1778279410038923),
            *(0.1, 0.04870277548523559, 0.023152390011947063, 0.010637921470768558),
            *(0.004642857142857143, 0.0018577347350038319, 0.0006211616832473604),
            *(0.00011114246312743269, 6.25e-05, 3.514633282439682e-05),
            *(1.976423537605237e-05, 1.1114246312743267e-05),
        ],
        1.2772588722239782,
    ),
]


def spec(tmp_path: Path, metadata: dict[str, object], head_dim: int = 16) -> RopeSpec:
    values = {"llama.rope.dimension_count": None, "llama.rope.freq_base": 10000.0} | {
        f"llama.{k}": v for k, v in metadata.items()
    }
    return rope_spec(
        open_gguf(rewritten(tmp_path / "m.gguf", "llama", values)), "interleaved", head_dim
    )


def plain(head_dim: int, base: float = 10000.0) -> np.ndarray:
    return np.array([base ** (-2 * i / head_dim) for i in range(head_dim // 2)])


def test_plain(tmp_path: Path) -> None:
    found = spec(tmp_path, {})
    np.testing.assert_allclose(found.inv_freq, plain(16), rtol=1e-12)
    assert (found.style, found.magnitude) == ("interleaved", 1.0)


def test_only_the_leading_features_may_turn(tmp_path: Path) -> None:
    found = spec(tmp_path, {"rope.dimension_count": 8, "rope.freq_base": 500.0})
    np.testing.assert_allclose(found.inv_freq, plain(8, 500.0), rtol=1e-6)


@pytest.mark.parametrize(
    "metadata",
    [
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scale_linear": 4.0},
    ],
    ids=["linear", "factor alone", "old key"],
)
def test_linear_interpolation(tmp_path: Path, metadata: dict[str, object]) -> None:
    found = spec(tmp_path, metadata)
    np.testing.assert_allclose(found.inv_freq, plain(16) / 4.0, rtol=1e-12)
    assert found.magnitude == 1.0


def test_kind_none_ignores_a_factor(tmp_path: Path) -> None:
    found = spec(tmp_path, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0})
    np.testing.assert_allclose(found.inv_freq, plain(16), rtol=1e-12)


@pytest.mark.parametrize(
    ("head_dim", "base", "factor", "n_original", "inv_freq", "magnitude"), YARN
)
def test_yarn_is_that_of_hugging_face(
    tmp_path: Path, head_dim, base, factor, n_original, inv_freq, magnitude
) -> None:
    found = spec(
        tmp_path,
        {
            "rope.freq_base": base,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": factor,
            "rope.scaling.original_context_length": n_original,
        },
        head_dim,
    )
    np.testing.assert_allclose(found.inv_freq, inv_freq, rtol=1e-9)
    assert found.magnitude == pytest.approx(magnitude, rel=1e-12)


def test_yarn_takes_the_context_length_where_no_original_is_given(tmp_path: Path) -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0}
    given = spec(tmp_path, yarn | {"rope.scaling.original_context_length": 512})
    taken = spec(tmp_path, yarn | {"context_length": 512})
    assert given == taken


def test_yarn_without_extrapolation_is_linear(tmp_path: Path) -> None:
    metadata = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.yarn_ext_factor": 0.0,
        "rope.scaling.attn_factor": 0.5,
    }
    found = spec(tmp_path, metadata)
    np.testing.assert_allclose(found.inv_freq, plain(16) / 8.0, rtol=1e-12)
    assert found.magnitude == pytest.approx(0.5 * (1 + 0.1 * math.log(8.0)))


def test_factors_divide_pair_by_pair() -> None:
    with_factors, without = (model_config(tiny(n)) for n in ("llama3-rope", "llama"))
    stored = tiny("llama3-rope").tensors["rope_freqs.weight"].data.view(np.float32)
    assert stored.max() > 1.0
    base = tiny("llama3-rope").metadata.get_float("llama.rope.freq_base")
    np.testing.assert_allclose(
        with_factors.layers[0].rope.inv_freq,
        plain(with_factors.head_dim, base) / stored,
        rtol=1e-6,
    )
    assert without.layers[0].rope.magnitude == 1.0


@pytest.mark.parametrize("values", [np.ones(3), np.zeros(32), np.full(32, np.nan)])
def test_unusable_factors_are_refused(tmp_path: Path, values: np.ndarray) -> None:
    def change(tensors: Tensors) -> Tensors:
        return tensors | {"rope_freqs.weight": tensor("rope_freqs.weight", values)}

    path = rewritten(tmp_path / "m.gguf", "llama", change=change)
    with pytest.raises(FormatError) as caught:
        rope_spec(open_gguf(path), "interleaved", 64)
    assert caught.value.where == "rope_freqs.weight"


BAD = [
    ({"rope.dimension_count": 7}, "dimension_count"),
    ({"rope.dimension_count": 0}, "dimension_count"),
    ({"rope.dimension_count": 18}, "dimension_count"),
    ({"rope.freq_base": 0.0}, "freq_base"),
    ({"rope.freq_base": -5.0}, "freq_base"),
    ({"rope.freq_base": math.nan}, "freq_base"),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, "factor"),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": math.nan}, "factor"),
    ({"rope.scaling.type": "yarn", "rope.scaling.factor": -4.0}, "factor"),
    (
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 0,
        },
        "scaling",
    ),
    (
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.yarn_beta_slow": 0.0,
        },
        "scaling",
    ),
]


@pytest.mark.parametrize(("metadata", "where"), BAD)
def test_unusable_numbers_are_refused(
    tmp_path: Path, metadata: dict[str, object], where: str
) -> None:
    with pytest.raises(FormatError) as caught:
        spec(tmp_path, metadata)
    assert where in str(caught.value.where)


def test_other_kinds_of_scaling_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'longrope'; supported: none, linear, yarn"):
        spec(tmp_path, {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0})
