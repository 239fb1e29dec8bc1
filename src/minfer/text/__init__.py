"""Strings <-> token ids: the tokenizer, the chat template, streaming text with stop strings.

Everything here is built from a GGUF file's metadata, given as a mapping; no file is opened.
"""

from minfer.text.stream import TextStream
from minfer.text.template import ChatTemplate
from minfer.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "TextStream", "Tokenizer"]
