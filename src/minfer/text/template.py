"""The chat template of a model: messages -> the prompt it was trained on, as text or ids.

The template is the file's own Jinja source, run in `environment`'s sandbox on plain data. What is
encoded goes through `guard`, so that only the template's own markup becomes control tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import jinja2

from minfer.errors import TemplateError
from minfer.text import environment
from minfer.text.guard import ControlGuard
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
# A message's reasoning goes by three names; templates read the first or, for gpt-oss, the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_PROBE = "minfer-probe"


class ChatTemplate:
    """Renders conversations for one model; immutable and safe to share by threads.

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
        self.source = source
        self.is_default = is_default
        self._tool_source = tool_source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token, **tokens}
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
                Keys whose value is None count as absent. A template that only knows strings gets
                text parts joined by newlines, one that only knows parts gets one text part.
            tools: JSON schemas of functions, handed to the template.
            add_generation_prompt: end with the opening of the assistant's turn.
            kwargs: further variables, such as `enable_thinking`.

        Raises:
            TemplateError: the template is broken, refuses the conversation, fails on it, or takes
                more steps or room than a chat can need.
        """
        return self._render(self._variables(messages, tools, add_generation_prompt, kwargs))

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
        variables = self._variables(messages, tools, add_generation_prompt, kwargs)
        protected, mark = guard.protect(variables)
        ids = guard.encode(self._render(protected), mark)
        if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
            ids.insert(0, tokenizer.bos_id)
        return ids

    def _variables(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> dict[str, Any]:
        if not messages:
            raise TemplateError("the conversation is empty", where="messages")
        chat = [_message(at, message) for at, message in enumerate(messages)]
        strings, parts = self._content_forms
        for at, message in enumerate(chat):
            content = message.get("content")
            if isinstance(content, list) and not parts:
                message["content"] = _joined(content, f"messages[{at}].content")
            elif isinstance(content, str) and not strings:
                message["content"] = [{"type": "text", "text": content}]
        return {
            "documents": None,
            **_plain(dict(kwargs), "variables"),
            "messages": chat,
            "tools": None if tools is None else _plain(list(tools), "tools"),
            "add_generation_prompt": add_generation_prompt,
        }

    def _render(self, variables: dict[str, Any]) -> str:
        template = self._compiled
        if variables["tools"] is not None and self._compiled_for_tools is not None:
            template = self._compiled_for_tools
        try:
            return environment.render(template, {**self._tokens, **variables})
        except Exception as error:
            # Any exception can come out of a template's expressions, and each is the template's.
            raise self._failure(error, template) from error

    @cached_property
    def _compiled(self) -> jinja2.Template:
        return _compile(self.source)

    @cached_property
    def _compiled_for_tools(self) -> jinja2.Template | None:
        return None if self._tool_source is None else _compile(self._tool_source)

    @cached_property
    def _content_forms(self) -> tuple[bool, bool]:
        """Whether the template takes content as a string, and as a list of parts; found by asking.

        A form counts as taken if the text appears, and its wrapping does not. A template that
        answers neither way gets content as it is.
        """
        taken = []
        for content in (_PROBE, [{"type": "text", "text": _PROBE}]):
            chat = [{"role": "user", "content": content}]
            try:
                text = environment.render(
                    self._compiled,
                    {
                        **self._tokens,
                        "messages": chat,
                        "tools": None,
                        "documents": None,
                        "add_generation_prompt": False,
                    },
                )
            except Exception:  # whatever the template does not take, in whichever way it says so
                taken.append(False)
            else:
                taken.append(_PROBE in text and f"'{_PROBE}'" not in text and '"text"' not in text)
        strings, parts = taken
        return (strings, parts) if strings or parts else (True, True)

    def _failure(self, error: Exception, template: jinja2.Template) -> TemplateError:
        line = _line_of(error, template)
        where = "chat template" if line is None else f"chat template line {line}"
        if isinstance(error, environment.Refusal):
            return TemplateError(f"the template refuses the conversation: {error}", where=where)
        what = str(error) or type(error).__name__
        source = self._tool_source if template is self.__dict__.get("_compiled_for_tools") else None
        lines = (source or self.source).splitlines()
        if line is not None and line <= len(lines):
            what = f"{what}, in {lines[line - 1].strip()[:120]!r}"
        return TemplateError(
            f"rendering failed: {what}",
            where=where,
            remedy="Check that the messages have the fields this model's template reads",
        )


def _compile(source: str) -> jinja2.Template:
    try:
        return environment.compiler()(source)
    except jinja2.TemplateSyntaxError as error:
        lines = source.splitlines()
        shown = lines[error.lineno - 1].strip()[:120] if error.lineno <= len(lines) else ""
        raise TemplateError(
            f"the template is not valid Jinja: {error.message}, in {shown!r}",
            where=f"chat template line {error.lineno}",
            remedy="Give a template of your own with the conversation",
        ) from error
    except RecursionError as error:
        raise TemplateError("the template is nested too deeply", where="chat template") from error


def _line_of(error: BaseException, template: jinja2.Template) -> int | None:
    """Return the template's line that was being rendered: Jinja maps its frames to source lines."""
    line = None
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename in (template.filename, "<template>"):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def _message(at: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(
            f"is a {type(message).__name__}, not an object with role and content",
            where=f"messages[{at}]",
        )
    given = {key: value for key, value in message.items() if value is not None}
    plain: dict[str, Any] = _plain(given, f"messages[{at}]")
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _joined(parts: list[Any], where: str) -> str:
    texts = []
    for part in parts:
        if not (isinstance(part, dict) and isinstance(part.get("text"), str)):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise TemplateError(
                f"has a part of type {kind!r}, and this model's template only takes text",
                where=where,
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _plain(value: Any, where: str) -> Any:
    """Return a copy made of JSON types only, so that no object's methods reach the template."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{at}]") for at, item in enumerate(value)]
    raise TemplateError(
        f"is a {type(value).__name__}, which has no place in a chat template", where=where
    )
