"""From metadata to a configuration: what each architecture adds, and clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import TINY, rewritten, tiny

from minfer.errors import FormatError, MinferError, UnsupportedError
from minfer.gguf import open_gguf
from minfer.models import ARCHITECTURES, model_config


def test_what_each_architecture_adds() -> None:
    configs = {name: model_config(tiny(name)) for name in TINY}
    assert {c.arch for c in configs.values()} == set(ARCHITECTURES)
    assert [n for n, c in configs.items() if c.qkv_bias] == ["qwen2", "qwen2-hd128"]
    assert [n for n, c in configs.items() if c.qk_norm] == ["qwen3", "gemma3"]
    assert [n for n, c in configs.items() if c.post_norms] == ["gemma3"]
    styles = {n: c.layers[0].rope.style for n, c in configs.items()}
    assert [n for n, s in styles.items() if s == "interleaved"] == ["llama", "llama3-rope"]
    assert configs["qwen3"].head_dim * configs["qwen3"].n_heads != configs["qwen3"].width


def test_gemma3_sees_a_window_in_five_of_six_layers() -> None:
    config = model_config(tiny("gemma3"))
    assert [layer.window for layer in config.layers] == [32] * 5 + [0]
    local, everything = config.layers[0].rope, config.layers[5].rope
    n = config.head_dim // 2
    assert local.inv_freq[1] == pytest.approx(10000.0 ** (-1 / n))
    assert everything.inv_freq[1] == pytest.approx(1000000.0 ** (-1 / n))
    assert config.embed_scale == pytest.approx(config.width**0.5)
    assert (config.act, config.attn_scale) == ("gelu", config.head_dim**-0.5)


def test_the_head_is_the_embedding_table_where_there_is_no_other() -> None:
    heads = {name: model_config(tiny(name)).head for name in TINY}
    assert heads["qwen2"] == heads["qwen3"] == heads["gemma3"] == "token_embd.weight"
    assert heads["llama"] == heads["qwen2-hd128"] == "output.weight"
    assert all(
        ("output.weight" in tiny(n).tensors) == (h == "output.weight") for n, h in heads.items()
    )


def test_counts_may_be_arrays_of_one_value(tmp_path: Path) -> None:
    n_layers = len(model_config(tiny("llama")).layers)
    heads = model_config(tiny("llama")).n_heads
    path = rewritten(
        tmp_path / "m.gguf", "llama", {"llama.attention.head_count": [heads] * n_layers}
    )
    assert model_config(open_gguf(path)).n_heads == heads


REFUSED: list[tuple[str, dict[str, object], type[MinferError], str, str]] = [
    ("llama", {"general.architecture": "mamba"}, UnsupportedError, "general.arch", "gemma3, llama"),
    ("llama", {"general.architecture": None}, FormatError, "general.architecture", ""),
    ("llama", {"llama.block_count": None}, FormatError, "llama.block_count", ""),
    ("llama", {"llama.block_count": 0}, FormatError, "llama.block_count", "0 is not between"),
    ("llama", {"llama.block_count": 2**31 - 1}, FormatError, "llama.block_count", "tensors"),
    ("gemma3", {"gemma3.block_count": 2**31 - 1}, FormatError, "gemma3.block_count", "tensors"),
    ("llama", {"llama.block_count": 3}, FormatError, "blk.2.", "the tensor is missing"),
    ("llama", {"llama.block_count": "two"}, FormatError, "llama.block_count", ""),
    ("llama", {"llama.block_count": 1}, UnsupportedError, "blk.1.", "has no such tensor"),
    ("llama", {"llama.embedding_length": 512}, FormatError, "token_embd.weight", "does not fit"),
    ("llama", {"llama.embedding_length": 1}, FormatError, "llama.attention.key_length", "0 is"),
    ("llama", {"llama.attention.head_count": 3}, FormatError, "llama.attention.head_count_kv", ""),
    ("llama", {"llama.attention.head_count": 0}, FormatError, "llama.attention.head_count", ""),
    ("gemma3", {"gemma3.attention.head_count": 0}, FormatError, "gemma3.attention.head_count", ""),
    ("llama", {"llama.attention.head_count_kv": 1}, FormatError, "blk.0.attn_k.weight", "fit"),
    (
        "llama",
        {"llama.attention.head_count_kv": [1, 2]},
        UnsupportedError,
        "llama.attention.head_count_kv",
        "differ between layers",
    ),
    ("llama", {"llama.feed_forward_length": 1}, FormatError, "blk.0.ffn_gate.weight", "fit"),
    ("llama", {"llama.context_length": 0}, FormatError, "llama.context_length", "0 is not"),
    ("qwen3", {"qwen3.attention.key_length": -2}, FormatError, "qwen3.attention.key_length", ""),
    ("qwen3", {"qwen3.attention.key_length": 64}, UnsupportedError, "qwen3.attention.value", "64"),
    (
        "llama",
        {"llama.attention.layer_norm_rms_epsilon": None},
        FormatError,
        "llama.attention.layer_norm_rms_epsilon",
        "",
    ),
]


@pytest.mark.parametrize(("name", "changes", "kind", "where", "what"), REFUSED)
def test_unusable_metadata_is_refused_by_its_key(
    tmp_path: Path, name: str, changes: dict[str, object], kind: type, where: str, what: str
) -> None:
    path = rewritten(tmp_path / "m.gguf", name, changes)
    with pytest.raises(kind) as caught:
        model_config(open_gguf(path))
    assert where in str(caught.value.where)
    assert what in str(caught.value)
