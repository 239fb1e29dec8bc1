"""The chat template of a model: messages -> the prompt it was trained on, as text or ids.

The template is the file's own Jinja source, run in `environment`'s sandbox on plain data. What is
encoded goes through `guard`, so that only the template's own markup becomes control tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import jinja2

from minfer.errors import TemplateError
from minfer.text import environment
from minfer.text.guard import ControlGuard
from minfer.text.messages import Forms, plain_data
from minfer.text.tokenizer import Tokenizer
from minfer.text.vocab import special_ids

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_KEY = "tokenizer.chat_template"
_ROLES_WITH_TOKENS = ("bos", "eos", "unk", "pad")
_SHOWN = 120  # characters of a template's line in a message


class ChatTemplate:
    """Renders conversations for one model; safe to share by threads.

    Attributes:
        source: the Jinja source.
        is_default: whether the file has no template and ChatML stands in for it.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        *,
        tool_source: str | None = None,
        is_default: bool = False,
        **tokens: str,
    ) -> None:
        """Keep a template; it is compiled when first used.

        Args:
            source: Jinja source.
            bos_token, eos_token: texts the template sees under these names.
            tool_source: source used instead when tools are given, if the model has one.
            is_default: see the attribute.
            tokens: further texts by name, such as `pad_token`.
        """
        tokens = {"bos_token": bos_token, "eos_token": eos_token, **tokens}
        self.source = source
        self.is_default = is_default
        self._main = _Program(source, tokens)
        self._with_tools = self._main if tool_source is None else _Program(tool_source, tokens)
        self._guards: WeakKeyDictionary[Tokenizer, ControlGuard] = WeakKeyDictionary()

    @classmethod
    def from_metadata(cls, meta: Mapping[str, Any]) -> ChatTemplate:
        """Return the template a GGUF file's metadata holds, or ChatML where it holds none.

        Raises:
            TemplateError: the template is not a string.
            TokenizerError: a special token's id is unusable.
        """
        for key in (_KEY, f"{_KEY}.tool_use"):
            if not isinstance(meta.get(key, ""), str):
                raise TemplateError(f"is a {type(meta[key]).__name__}, not a string", where=key)
        vocabulary = meta.get("tokenizer.ggml.tokens", [])
        ids = special_ids(meta, len(vocabulary))
        tokens = {f"{r}_token": vocabulary[ids[r]] for r in _ROLES_WITH_TOKENS if r in ids}
        source = meta.get(_KEY)
        return cls(
            CHATML if source is None else source,
            tool_source=meta.get(f"{_KEY}.tool_use"),
            is_default=source is None,
            **tokens,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Return the prompt text of a conversation, as transformers renders it.

        Args:
            messages: dicts with `role` and `content`; the content is a string or a list of parts.
                Keys whose value is None count as absent. Forms of a message that this template
                cannot read are turned into ones it can, see `messages`.
            tools: JSON schemas of functions, handed to the template.
            add_generation_prompt: end with the opening of the assistant's turn.
            kwargs: further variables, such as `enable_thinking`.

        Raises:
            TemplateError: the template is broken, refuses the conversation, fails on it, or takes
                more steps or room than a chat can need.
        """
        program = self._with_tools if tools else self._main
        return program.render(_variables(program, messages, tools, add_generation_prompt, kwargs))

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[int]:
        """Return the prompt ids of a conversation; see `render` for the arguments.

        Control tokens written out in messages, tools or variables stay text. The ids begin with
        exactly one BOS where either the template or the file asks for it.

        Raises:
            TemplateError: as `render`.
        """
        guard = self._guards.get(tokenizer)
        if guard is None:
            guard = self._guards[tokenizer] = ControlGuard(tokenizer)
        program = self._with_tools if tools else self._main
        variables = _variables(program, messages, tools, add_generation_prompt, kwargs)
        protected, mark = guard.protect(variables, program.source)
        ids = guard.encode(program.render(protected), mark)
        if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
            ids.insert(0, tokenizer.bos_id)
        return ids


def _variables(
    program: _Program,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "documents": None,
        **plain_data(kwargs, "variables"),
        "messages": program.forms.adapt(messages),
        "tools": None if tools is None else plain_data(list(tools), "tools"),
        "add_generation_prompt": add_generation_prompt,
    }


@dataclass(frozen=True)
class _Program:
    """One Jinja source and the token texts it sees."""

    source: str
    tokens: dict[str, str]

    @cached_property
    def forms(self) -> Forms:
        """The forms of messages it takes."""
        rest = {"tools": None, "documents": None, "add_generation_prompt": False}
        return Forms.of(
            self.source,
            lambda messages: environment.render(
                self.compiled, {**self.tokens, "messages": messages, **rest}
            ),
        )

    @cached_property
    def compiled(self) -> jinja2.Template:
        try:
            return environment.compiler()(self.source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the template is not valid Jinja: {error.message}{self._line(error.lineno)}",
                where=f"chat template line {error.lineno}",
                remedy="Give a template of your own with the conversation",
            ) from error
        except RecursionError as error:
            raise TemplateError(
                "the template is nested too deeply", where="chat template"
            ) from error

    def render(self, variables: dict[str, Any]) -> str:
        template = self.compiled
        try:
            return environment.render(template, {**self.tokens, **variables})
        except Exception as error:
            # Any exception can come out of a template's expressions, and each is the template's.
            line = _line_of(error)
            where = "chat template" if line is None else f"chat template line {line}"
            if isinstance(error, environment.Refusal):
                raise TemplateError(
                    f"the template refuses the conversation: {error}", where=where
                ) from error
            raise TemplateError(
                f"rendering failed: {str(error) or type(error).__name__}{self._line(line)}",
                where=where,
                remedy="Check that the messages have the fields this model's template reads",
            ) from error

    def _line(self, number: int | None) -> str:
        lines = self.source.splitlines()
        if number is None or not 1 <= number <= len(lines):
            return ""
        return f", in {lines[number - 1].strip()[:_SHOWN]!r}"


def _line_of(error: BaseException) -> int | None:
    """Return the template's line being rendered: Jinja maps its frames to source lines."""
    line = None
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
