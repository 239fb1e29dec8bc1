"""Strings <-> token ids: the tokenizer, the chat template, streaming text, replies taken apart.

Everything here is built from a GGUF file's metadata, given as a mapping; no file is opened.
"""

from minfer.text.calls import ToolCall
from minfer.text.formats import Form, compile_form
from minfer.text.grammar import Grammar, GrammarCompiler, GrammarKind, Matcher
from minfer.text.pretokenizers import PRE_TOKENIZERS
from minfer.text.reply import Reply, ReplyParser, ReplyStyle, parse_reply
from minfer.text.stream import StopStrings, TextStream
from minfer.text.template import ChatTemplate
from minfer.text.tokenizer import Tokenizer

__all__ = [
    "PRE_TOKENIZERS",
    "ChatTemplate",
    "Form",
    "Grammar",
    "GrammarCompiler",
    "GrammarKind",
    "Matcher",
    "Reply",
    "ReplyParser",
    "ReplyStyle",
    "StopStrings",
    "TextStream",
    "Tokenizer",
    "ToolCall",
    "compile_form",
    "parse_reply",
]
