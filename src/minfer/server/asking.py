"""From a chat request to what the engine is asked: ids, parameters, and what holds the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minfer.server.answers import Wanted, seeded
from minfer.server.chat_schema import ChatRequest, ToolChoice
from minfer.server.errors import invalid
from minfer.server.forms import answer_grammar, held_to
from minfer.server.service import Service
from minfer.text import Form

TAIL = 16
"""Tokens at the end of a prompt that show whether it opens the model's reasoning."""
RESERVED = frozenset({"messages", "tools", "tokenizer", "self", "add_generation_prompt"})
"""Names a template's variables cannot have."""


@dataclass(frozen=True)
class Asked:
    """A chat request, ready for the engine.

    Attributes:
        wanted: one sequence a choice.
        tail: the end of the prompt.
        tools: schemas of the functions the model may call; None if it may call none.
    """

    wanted: list[Wanted]
    tail: str
    tools: list[dict[str, Any]] | None


def prepare(service: Service, body: ChatRequest) -> Asked:
    """Turn a request into token ids and parameters. May take long for long conversations.

    Raises:
        MinferError: if the template, a parameter or a grammar cannot be used.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("needs `logprobs` to be true", "top_logprobs")
    if not body.tools and body.tool_choice not in ("none", "auto"):
        raise invalid("needs `tools`", "tool_choice")
    params = body.params(
        max_tokens=body.token_limit,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    tools = [tool.plain() for tool in body.tools] if body.tool_choice != "none" else []
    variables = template_variables(body.chat_template_kwargs)
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
        variables.setdefault("enable_thinking", body.reasoning_effort != "none")
    tokenizer = service.llm.tokenizer
    form = asked_form(body, tools)
    ids = service.llm.template.encode(
        tokenizer, [m.plain() for m in body.messages], tools=tools or None, **variables
    )
    service.check_length(len(ids))
    tail = tokenizer.decode(ids[-TAIL:])
    constraint = held_to(service, form, tail)
    return Asked(
        wanted=[
            Wanted(ids, seeded(params, index), constraint(), service.marks)
            for index in range(body.n)
        ],
        tail=tail,
        tools=tools or None,
    )


def asked_form(body: ChatRequest, tools: list[dict[str, Any]]) -> Form | None:
    """What the answer is held to; None where it is free.

    Raises:
        ApiError: if it cannot be both what is asked for here and there.
    """
    answer = answer_grammar(body)
    choice = body.tool_choice
    several = body.parallel_tool_calls
    if isinstance(choice, ToolChoice):
        named = [t for t in tools if t["function"]["name"] == choice.function.name]
        if not named:
            raise invalid(f"{choice.function.name!r} is none of the tools", "tool_choice")
        return Form(tools=named, several=False)
    if choice == "required":
        return Form(tools=tools, several=several)
    if answer is not None:
        return Form(answer, tools, several=several)
    if tools and any(tool.function.strict for tool in body.tools):
        strict = [
            {**plain, "function": {**plain["function"], "strict": tool.function.strict}}
            for plain, tool in zip(tools, body.tools, strict=True)
        ]
        return Form(tools=strict, several=several, free=True)
    return None


def template_variables(given: dict[str, Any]) -> dict[str, Any]:
    """Variables a client may set for the template.

    Raises:
        ApiError: for a name that is taken.
    """
    for name in given:
        if name in RESERVED:
            raise invalid("is set by the request itself", f"chat_template_kwargs.{name}")
    return dict(given)
