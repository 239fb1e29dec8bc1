"""What a model is called in a table: `qwen2 7B Q4_K - Medium`, as llama-bench writes it."""

from __future__ import annotations

from minfer.gguf import GGUFFile

FILE_TYPES: dict[int, str] = {
    0: "all F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K - Medium",
    11: "Q3_K - Small",
    12: "Q3_K - Medium",
    13: "Q3_K - Large",
    14: "Q4_K - Small",
    15: "Q4_K - Medium",
    16: "Q5_K - Small",
    17: "Q5_K - Medium",
    18: "Q6_K",
    21: "Q2_K - Small",
    25: "IQ4_NL - 4.5 bpw",
    30: "IQ4_XS - 4.25 bpw",
    32: "BF16",
    38: "MXFP4 MoE",
}
"""`general.file_type` -> the mixture's name in llama.cpp."""


def model_type(file: GGUFFile) -> str:
    """Architecture, size and mixture of types."""
    arch = file.metadata.get_str("general.architecture", "unknown")
    by_type: dict[str, int] = {}
    for tensor in file.tensors.values():
        by_type[tensor.dtype.name] = by_type.get(tensor.dtype.name, 0) + tensor.n_items
    count = sum(by_type.values())
    size = file.metadata.get_str("general.size_label", "") or _short(count)
    number = file.metadata.get_int("general.file_type", None)
    commonest = max(by_type, key=lambda name: by_type[name]) if by_type else ""
    mixture = FILE_TYPES.get(-1 if number is None else number, commonest.upper())
    return f"{arch} {size} {mixture}"


def _short(count: int) -> str:
    """A count of parameters as models are called: 135M, 0.5B, 7.6B."""
    if count >= 100_000_000_000:
        return f"{count / 1e9:.0f}B"
    return f"{count / 1e9:.1f}B" if count >= 450_000_000 else f"{count / 1e6:.0f}M"
