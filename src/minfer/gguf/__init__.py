"""GGUF files: the strict mapped reader, the writer, and the NumPy truth of each quant type."""

from minfer.gguf.quants import dequantize, quantize
from minfer.gguf.reader import GGUFFile, Shard, TensorInfo, open_gguf
from minfer.gguf.values import Metadata, Typed, ValueType, u32
from minfer.gguf.writer import TensorData, write_gguf

__all__ = [
    "GGUFFile",
    "Metadata",
    "Shard",
    "TensorData",
    "TensorInfo",
    "Typed",
    "ValueType",
    "dequantize",
    "open_gguf",
    "quantize",
    "u32",
    "write_gguf",
]
