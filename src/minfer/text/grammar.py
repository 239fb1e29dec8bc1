"""Grammars that a model's answer must follow, enforced token by token by llguidance.

A grammar is JSON Schema, a regular expression, Lark or GBNF. What cannot be enforced is refused
when the grammar is compiled, with the place in the schema; nothing is left open in silence.
llguidance is the extra `grammar` and imported only here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from minfer.errors import GrammarError, UnsupportedError
from minfer.text.tokenizer import Tokenizer

GrammarKind = Literal["json_schema", "lark", "regex", "gbnf"]

SPACE = r"[ \t\n\r]{0,16}"
"""White space between JSON's parts: a model that cannot stop writing it would never end."""

# Where a schema holds others: by name, in a list, or one.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_IN_LIST = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains")
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True)
class Grammar:
    """A language, as its author wrote it.

    Attributes:
        kind: the notation.
        source: a schema, or text in the notation.
        where: what to call it in errors.
    """

    kind: GrammarKind
    source: Any
    where: str = "grammar"


class Matcher:
    """Holds one answer to a grammar: the engine's `Constraint`."""

    def __init__(self, matcher: Any, stop_ids: frozenset[int], where: str) -> None:
        self._matcher = matcher
        self._stop_ids = stop_ids
        self._where = where

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of tokens that cannot come next to -inf.

        End tokens are allowed where the grammar may end, and nothing else where it must.

        Raises:
            GrammarError: if the grammar became too complex to follow.
        """
        if self._matcher.is_error():
            raise self._failure()
        allowed = np.unpackbits(
            np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little"
        )
        n = min(allowed.size, logits.size)
        logits[:n][allowed[:n] == 0] = -np.inf
        logits[n:] = -np.inf

    def accept(self, token: int) -> None:
        """Advance past a chosen token.

        Raises:
            GrammarError: if the grammar does not allow it.
        """
        if token in self._stop_ids and self._matcher.is_stopped():
            return
        if not self._matcher.consume_token(token):
            raise self._failure()

    def allowed(self, tokens: list[int]) -> int:
        """How many of `tokens`, coming next, the grammar allows."""
        return int(self._matcher.validate_tokens(tokens))

    def _failure(self) -> GrammarError:
        return GrammarError(_told(self._matcher.get_error()), where=self._where)


class GrammarCompiler:
    """Compiles grammars for one vocabulary; made once a model, which takes up to a second.

    Raises:
        UnsupportedError: if llguidance is not installed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        try:
            import llguidance
        except ModuleNotFoundError:
            raise UnsupportedError(
                "grammars need the package llguidance",
                where="grammar",
                remedy="Install it with `pip install 'minfer[grammar]'`",
            ) from None
        self._library = llguidance
        self._tokenizer = tokenizer
        vocabulary = llguidance.TokenizerWrapper(_Vocabulary(tokenizer))
        self._vocabulary = llguidance.LLTokenizer(
            vocabulary, eos_token=sorted(tokenizer.stop_ids) or None
        )

    def compile(self, main: str, grammars: Mapping[str, Grammar]) -> Callable[[], Matcher]:
        """Compile once, and make as many matchers as there are answers.

        Args:
            main: a Lark grammar with a rule `start`, which refers to `grammars` as `@name`.
            grammars: the others.

        Raises:
            GrammarError: for what is malformed or cannot be enforced, with its place.
        """
        for grammar in grammars.values():
            self.check(grammar)
        parts: list[dict[str, Any]] = [{"name": "main", "lark_grammar": main}]
        parts += [self._part(g) | {"name": n} for n, g in grammars.items()]
        text = json.dumps({"grammars": parts})
        where = next(iter(grammars.values())).where if grammars else "grammar"
        error = self._error(text)
        if error:
            raise GrammarError(error, where=where)
        first = self._library.LLMatcher(self._vocabulary, text, log_level=0)
        stop_ids = self._tokenizer.stop_ids
        return lambda: Matcher(first.deep_copy(), stop_ids, where)

    def token(self, text: str) -> str:
        """A text as Lark, as the control token it is where the vocabulary has one."""
        token = self._tokenizer.token_id(text)
        if token is not None and self._tokenizer.is_control(token):
            return f"<[{token}]>"
        return json.dumps(text)

    def check(self, grammar: Grammar) -> None:
        """Refuse what cannot be enforced, naming the smallest part of it.

        Raises:
            GrammarError: as `compile`.
        """
        error = self._error(json.dumps({"grammars": [self._part(grammar)]}))
        if not error:
            return
        where = grammar.where
        if grammar.kind == "json_schema":
            path, error = self._blame(grammar.source, grammar.source, error)
            where += path
        raise GrammarError(error, where=where)

    def _part(self, grammar: Grammar) -> dict[str, Any]:
        """A grammar as llguidance takes it."""
        if grammar.kind == "json_schema":
            return {"json_schema": closed(grammar.source)}
        if grammar.kind == "lark":
            return {"lark_grammar": grammar.source}
        try:
            text = self._library.grammar_from(grammar.kind, grammar.source)
        except ValueError as error:
            raise GrammarError(_told(str(error)), where=grammar.where) from None
        if grammar.kind == "gbnf":
            return {"lark_grammar": text}
        return dict(json.loads(text)["grammars"][0])

    def _error(self, text: str) -> str:
        """What is wrong with a grammar; a warning counts, as it means something is left open."""
        _, messages = self._library.LLMatcher.validate_grammar_with_warnings(text, self._vocabulary)
        return _told(messages[0]) if messages else ""

    def _blame(self, schema: Any, root: Any, error: str) -> tuple[str, str]:
        """The path of the smallest part of a schema that cannot be enforced, and why."""
        for path, child in _children(schema):
            if isinstance(child, dict):
                found = {name: root[name] for name in _DEFINITIONS if name in root} | child
                why = self._error(json.dumps({"grammars": [{"json_schema": closed(found)}]}))
                if why:
                    deeper, why = self._blame(child, root, why)
                    return path + deeper, why
        return "", error


def closed(schema: Any) -> Any:
    """A schema with our options for it, whatever options it brings."""
    if not isinstance(schema, dict):
        return schema
    return schema | {"x-guidance": {"whitespace_pattern": SPACE, "lenient": False}}


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a schema that are schemas, with their paths."""
    if not isinstance(schema, dict):
        return
    for key in _BY_NAME:
        if isinstance(schema.get(key), dict):
            for name, child in schema[key].items():
                yield f".{key}.{name}", child
    for key in _IN_LIST:
        if isinstance(schema.get(key), list):
            for index, child in enumerate(schema[key]):
                yield f".{key}[{index}]", child
    for key in _ONE:
        if isinstance(schema.get(key), dict):
            yield f".{key}", schema[key]


def _told(message: str) -> str:
    """The first line of a message, which says what is wrong; the others draw it."""
    lines = message.strip().splitlines()
    return lines[0].strip().removeprefix("WARNING: ")[:300] if lines else "unknown error"


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.n_vocab)
        stops = sorted(tokenizer.stop_ids)
        self.eos_token_id = tokenizer.eos_id if tokenizer.eos_id is not None else stops[0]
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(token) for token in ids]
        self.special_token_ids = [token for token in ids if tokenizer.is_control(token)]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        """The ids of a text."""
        plain = text if isinstance(text, str) else text.decode()
        return self._tokenizer.encode(plain, add_bos=False)
