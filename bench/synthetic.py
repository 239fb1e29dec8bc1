"""Models with real shapes and random weights, for measuring where no real file is at hand.

    python -m bench.synthetic qwen2-0.5b-mix FILE

Weights are random quants with scales that keep activations in a usual range; the vocabulary is
made of placeholder tokens. Such a model says nothing sensible, at exactly the speed of a real one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minfer.dtypes import BY_NAME, DType
from minfer.gguf import TensorData, Typed, ValueType, write_gguf

CHUNK_ROWS = 4096
POOL_ROWS = 2 * CHUNK_ROWS

Blocks = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Chunk = Blocks | np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@dataclass(frozen=True)
class Shape:
    """Sizes of a model, types of its matrices, and what its architecture reads besides.

    Attributes:
        matrix: type of the blocks' matrices, but for those below.
        head: type of the output matrix; None where the embedding is used for it.
        better: type of attn_v and ffn_down in half of the layers, if it fits their rows.
        down: type of ffn_down in the others.
        window: positions a row of a layer with a sliding window sees.
    """

    n_layers: int
    width: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_width: int
    n_vocab: int
    matrix: str
    embedding: str
    head: str | None
    better: str | None = None
    down: str | None = None
    arch: str = "qwen2"
    rope_base: float = 1e6
    window: int = 0


BIASED = ("qwen2",)
"""Architectures with a bias on q, k and v."""
HEAD_NORMS = ("qwen3", "gemma3")
"""Architectures with a norm on each head of q and k."""
POST_NORMS = ("gemma3",)
"""Architectures with a norm after attention and one after the FFN."""

_7B = (28, 3584, 28, 4, 128, 18944, 152064)
_05B = (24, 896, 14, 2, 64, 4864, 151936)
_LLAMA3_8B = (32, 4096, 32, 8, 128, 14336, 128256)
_QWEN3_8B = (36, 4096, 32, 8, 128, 12288, 151936)
_GEMMA3_4B = (34, 2560, 8, 4, 256, 10240, 262144)
_Q4_K_M = ("q4_K", "q4_K", "q6_K", "q6_K")  # matrices, embedding, head, better

MODELS: dict[str, Shape] = {
    "qwen2-7b-q4_k_m": Shape(*_7B, *_Q4_K_M),
    "qwen2-7b-q8_0": Shape(*_7B, matrix="q8_0", embedding="q8_0", head="q8_0"),
    # 896 is no multiple of 256: the matrices that read the residual stream fall back to q5_0
    "qwen2-0.5b-mix": Shape(
        *_05B, matrix="q5_0", embedding="q8_0", head=None, better="q6_K", down="q4_K"
    ),
    "qwen2-0.5b-q8_0": Shape(*_05B, matrix="q8_0", embedding="q8_0", head=None),
    "llama3-8b-q4_k_m": Shape(*_LLAMA3_8B, *_Q4_K_M, arch="llama", rope_base=5e5),
    "qwen3-8b-q4_k_m": Shape(*_QWEN3_8B, *_Q4_K_M, arch="qwen3"),
    # the embedding has the head's type, being both
    "gemma3-4b-q4_k_m": Shape(
        *_GEMMA3_4B,
        matrix="q4_K",
        embedding="q6_K",
        head=None,
        better="q6_K",
        arch="gemma3",
        window=1024,
    ),
}


def _use_more_bits(layer: int, n_layers: int) -> bool:
    """The layers for which llama.cpp's K_M mixtures take the better type."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def tensors(shape: Shape) -> Iterator[tuple[str, DType, tuple[int, ...]]]:
    """Name, type and GGUF shape of every tensor."""
    q_width, kv_width = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    yield "token_embd.weight", BY_NAME[shape.embedding], (shape.width, shape.n_vocab)
    f32 = BY_NAME["f32"]
    for i in range(shape.n_layers):
        p = f"blk.{i}."
        better = shape.better if _use_more_bits(i, shape.n_layers) else None
        matrix = BY_NAME[shape.matrix]

        def fitting(name: str | None, n_in: int, otherwise: DType = matrix) -> DType:
            dtype = BY_NAME[name] if name else otherwise
            return dtype if n_in % dtype.block_items == 0 else otherwise

        yield p + "attn_norm.weight", f32, (shape.width,)
        for part, width, dtype in (
            ("q", q_width, matrix),
            ("k", kv_width, matrix),
            ("v", kv_width, fitting(better, shape.width)),
        ):
            yield f"{p}attn_{part}.weight", dtype, (shape.width, width)
            if shape.arch in BIASED:
                yield f"{p}attn_{part}.bias", f32, (width,)
            if shape.arch in HEAD_NORMS and part != "v":
                yield f"{p}attn_{part}_norm.weight", f32, (shape.head_dim,)
        yield p + "attn_output.weight", matrix, (q_width, shape.width)
        if shape.arch in POST_NORMS:
            yield p + "post_attention_norm.weight", f32, (shape.width,)
            yield p + "post_ffw_norm.weight", f32, (shape.width,)
        yield p + "ffn_norm.weight", f32, (shape.width,)
        yield p + "ffn_gate.weight", matrix, (shape.width, shape.ffn_width)
        yield p + "ffn_up.weight", matrix, (shape.width, shape.ffn_width)
        down = fitting(better or shape.down, shape.ffn_width)
        yield p + "ffn_down.weight", down, (shape.ffn_width, shape.width)
    yield "output_norm.weight", f32, (shape.width,)
    if shape.head is not None:
        yield "output.weight", BY_NAME[shape.head], (shape.width, shape.n_vocab)


def random_blocks(dtype: DType, n_in: int, n_rows: int, random: np.random.Generator) -> Blocks:
    """Random weights of about unit gain, [n_rows, bytes a row]."""
    n_blocks = n_rows * n_in // dtype.block_items
    raw = np.frombuffer(random.bytes(n_blocks * dtype.block_bytes), np.uint8)
    raw = raw.reshape(n_blocks, dtype.block_bytes).copy()
    gain = n_in**-0.5

    def half(value: float) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.frombuffer(np.float16(value).tobytes(), np.uint8)

    if dtype.name == "q8_0":
        raw[:, :2] = half(gain / 74)
    elif dtype.name == "q5_0":
        raw[:, :2] = half(gain / 9.2)
    elif dtype.name == "q4_K":
        # scale * q - min * m with equal 6-bit fields: the mean of q is 7.5
        d = gain / (40 * 4.6)
        raw[:, 0:2], raw[:, 2:4] = half(d), half(d * 7.5)
        raw[:, 4:16] = _packed_scales(n_blocks, random)
    elif dtype.name == "q6_K":
        raw[:, 192:208] = random.integers(40, 80, (n_blocks, 16), np.uint8)
        raw[:, 208:210] = half(gain / (60 * 18.5))
    else:
        raise ValueError(f"no random weights of type {dtype.name}")
    return raw.reshape(n_rows, -1)


def _packed_scales(n_blocks: int, random: np.random.Generator) -> Blocks:
    """Twelve bytes of 6-bit scales and mins (equal to the scales) in q4_K's packing."""
    s = random.integers(24, 56, (n_blocks, 8), np.uint8)
    low, high = s[:, :4], s[:, 4:]
    first = low | (high >> 4) << 6
    return np.concatenate([first, first, (high & 15) | (high & 15) << 4], axis=1)


def find(name: str, folder: Path) -> Path:
    """The file of the synthetic model `name` in `folder`, written if it is not there."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        write(name, path)
    return path


def write(name: str, path: Path, seed: int = 1) -> None:
    """Write the synthetic model `name` to `path`."""
    shape = MODELS[name]
    source = Source(np.random.default_rng(seed))
    listed = [
        TensorData(t, dtype, dims, source(t, dtype, dims)) for t, dtype, dims in tensors(shape)
    ]
    write_gguf(path, metadata(name, shape), listed)


class Source:
    """Data of tensors, faster than random numbers are made.

    Matrices of the blocks are windows, at random rows, of one pool for each type and row size.
    Those of the vocabulary are new throughout: equal rows would be tokens with equal logits.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._pools: dict[tuple[DType, int], Blocks] = {}

    def __call__(self, name: str, dtype: DType, dims: tuple[int, ...]) -> Iterator[Chunk]:
        """The pieces of a tensor; vectors are ones if they are norms, else zeros."""
        if len(dims) == 1:
            yield np.full(dims, float("norm" in name), np.float32)
            return
        n_in, n_rows = dims
        for done in range(0, n_rows, CHUNK_ROWS):
            rows = min(CHUNK_ROWS, n_rows - done)
            if name.startswith("blk."):
                pool = self._pool(dtype, n_in)
                start = int(self._random.integers(POOL_ROWS - rows + 1))
                yield pool[start : start + rows]
            else:
                yield random_blocks(dtype, n_in, rows, self._random)

    def _pool(self, dtype: DType, n_in: int) -> Blocks:
        if (dtype, n_in) not in self._pools:
            self._pools[dtype, n_in] = random_blocks(dtype, n_in, POOL_ROWS, self._random)
        return self._pools[dtype, n_in]


def metadata(name: str, shape: Shape) -> dict[str, object]:
    """Keys of its file; byte tokens first, so that any text can be encoded."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    tokens = [chr(b) for b in visible] + [chr(256 + i) for i in range(len(hidden))]
    tokens += [f"<token_{i}>" for i in range(len(tokens), shape.n_vocab)]
    kinds = np.ones(shape.n_vocab, np.int32)
    kinds[256:] = 3  # control: never produced by encoding text
    values: dict[str, object] = {
        "block_count": shape.n_layers,
        "context_length": 32768,
        "embedding_length": shape.width,
        "feed_forward_length": shape.ffn_width,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": shape.rope_base,
    }
    if shape.window:
        values["attention.sliding_window"] = shape.window
    return {
        "general.architecture": shape.arch,
        "general.name": name,
        "general.quantization_version": 2,
        **{f"{shape.arch}.{key}": value for key, value in values.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": Typed.array(ValueType.STRING, [f"{tokens[0]} {tokens[1]}"]),
        "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.ggml.add_bos_token": False,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    write(args.name, args.file)


if __name__ == "__main__":
    main()
