"""Strings in, strings out: `LLM` and what it answers."""

from minfer.llm.llm import LLM, Message, Progress, Prompt
from minfer.llm.loading import file_weights, make_engine
from minfer.llm.pieces import PieceMaker
from minfer.llm.results import Completion, ModelInfo, Notice, Piece, Usage
from minfer.llm.stream import PieceStream

__all__ = [
    "LLM",
    "Completion",
    "Message",
    "ModelInfo",
    "Notice",
    "Piece",
    "PieceMaker",
    "PieceStream",
    "Progress",
    "Prompt",
    "Usage",
    "file_weights",
    "make_engine",
]
