"""What an answer is held to, as one grammar: reasoning first if the model reasons, then the form.

Joins what a request asks for (a schema, calls of functions) with how its model writes (reasoning
tags, markup of calls).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minfer.text.grammar import Grammar, GrammarCompiler, Matcher
from minfer.text.reasoning import ReasoningTags

ANYTHING = r"/(.|\n)*/"


@dataclass(frozen=True)
class CallMarkup:
    """How a family of models writes a call.

    Attributes:
        begin, end: markup around a call, or around all of them.
        arguments: the key of the arguments.
        in_list: whether all calls are one JSON array.
    """

    begin: str
    end: str
    arguments: str = "arguments"
    in_list: bool = False


# What a chat template mentions, and the markup its model then uses; as in `tools.FORMATS`.
MARKUPS: tuple[tuple[str, CallMarkup], ...] = (
    ("<tool_call>", CallMarkup("<tool_call>", "</tool_call>")),
    ("[TOOL_CALLS]", CallMarkup("[TOOL_CALLS]", "", in_list=True)),
    ("<|tool_call|>", CallMarkup("<|tool_call|>", "<|/tool_call|>")),
)
BARE = CallMarkup("", "", arguments="parameters")


def call_markup(template: str) -> CallMarkup:
    """Return the markup of the model of a chat template; bare JSON where it names no tag."""
    return next((markup for mark, markup in MARKUPS if mark in template), BARE)


@dataclass(frozen=True)
class Form:
    """What an answer is held to.

    Attributes:
        answer: the grammar of its content.
        tools: functions it must call, as OpenAI describes them; beside an answer it may.
        several: whether it may be several calls.
        free: whether it may be anything, with calls where it likes: only calls are held to then,
            and of their arguments those of functions that are `strict`.
        where: what to call the tools in errors.
    """

    answer: Grammar | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    several: bool = True
    free: bool = False
    where: str = "tools"


def compile_form(
    compiler: GrammarCompiler,
    form: Form,
    *,
    template: str,
    reasoning: ReasoningTags | None,
    prompt: str,
) -> Callable[[], Matcher]:
    """Compile what an answer is held to.

    Args:
        compiler: of the model's vocabulary.
        form: what is asked for; an answer, tools or both.
        template: the source of the model's chat template.
        reasoning: the tags around its reasoning, which comes before everything and is free.
        prompt: the end of the rendered prompt: whether it opens or ends the reasoning.

    Raises:
        GrammarError: for what cannot be enforced.
    """
    grammars: dict[str, Grammar] = {}
    rules: list[str] = []
    ways: list[str] = []
    if form.tools:
        markup = call_markup(template)
        for index, tool in enumerate(form.tools):
            function = tool.get("function", tool)
            parameters = function.get("parameters") or {"type": "object", "properties": {}}
            if form.free and not function.get("strict"):
                parameters = {"type": "object"}
            where = f"{form.where}[{index}].function.parameters"
            compiler.check(Grammar("json_schema", parameters, where))
            schema = _call_schema(function["name"], parameters, markup.arguments)
            grammars[f"call{index}"] = Grammar("json_schema", schema, where)
        rules += _call_rules(
            compiler, markup, len(form.tools), several=form.several, free=form.free
        )
        ways.append("free" if form.free else "calls")
    if form.answer is not None:
        grammars["answer"] = form.answer
        ways.append("@answer")
    start = f"({' | '.join(ways)})"
    if reasoning is not None and not prompt.rstrip().endswith(reasoning.end):
        end = compiler.token(reasoning.end)
        if end.startswith("<["):
            rules.append(f"thought: {ANYTHING} {end}")
        else:
            rules.append(f"thought[suffix={end}]: {ANYTHING}")
        rules.append(r"BLANK: /[ \t\n\r]{0,4}/")
        if reasoning.opened_by(prompt):
            start = f"thought BLANK {start}"
        else:
            start = f"({compiler.token(reasoning.begin)} thought BLANK)? {start}"
    return compiler.compile("\n".join([f"start: {start}", *rules]), grammars)


def _call_schema(name: str, parameters: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The JSON of a call. References stay valid: definitions move to the root with their names."""
    own = dict(parameters)
    shared: dict[str, Any] = {}
    for definitions in ("$defs", "definitions"):
        if definitions in own:
            shared[definitions] = own.pop(definitions)
    return {
        "type": "object",
        "properties": {"name": {"const": name}, key: own},
        "required": ["name", key],
        "additionalProperties": False,
        **shared,
    }


def _call_rules(
    compiler: GrammarCompiler, markup: CallMarkup, n_tools: int, *, several: bool, free: bool
) -> list[str]:
    """Rules for `calls`, or for `free`: text that may turn into calls."""
    rules = ["call: " + " | ".join(f"@call{index}" for index in range(n_tools))]
    if not markup.begin:
        if free:
            rules += ["free: call | TEXT", r"TEXT: /([ \t\n\r]*[^{ \t\n\r](.|\n)*)?/"]
        return [*rules, "calls: call"]
    begin = compiler.token(markup.begin)
    end = compiler.token(markup.end) if markup.end else ""
    if markup.in_list:
        more = '("," call)*' if several else ""
        body = f'"[" call {more} "]" {end}'
    else:
        body = f'"\\n" call "\\n" {end}'
        if several:
            body += f' ("\\n" {begin} {body})*'
    if not free:
        rules.append(f"calls: {begin} {body}")
    elif begin.startswith("<["):  # text has no control tokens, so the mark ends it
        rules += [f"free: TEXT | TEXT {begin} {body}", f"TEXT: {ANYTHING}"]
    else:
        mark = re.escape(markup.begin)
        rules += [
            f"free: TEXT | before {body}",
            f"before[suffix={begin}]: {ANYTHING}",
            rf"TEXT: {ANYTHING} & ~/(.|\n)*{mark}(.|\n)*/",
        ]
    return rules
