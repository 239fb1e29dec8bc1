"""The form of an answer, written by a model of random wishes and read by the reply parser."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from test_text_grammar import follow
from text_vocabularies import real_tokenizer

from minfer.errors import GrammarError
from minfer.text import (
    Form,
    Grammar,
    GrammarCompiler,
    ReplyStyle,
    Tokenizer,
    compile_form,
    parse_reply,
)
from minfer.text.reasoning import KNOWN_TAGS, ReasoningTags
from minfer.text.tools import tool_format

TEMPLATES = ["<tool_call>", "[TOOL_CALLS]", "<|tool_call|>", "no marks"]
THINK = KNOWN_TAGS[0]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("look", where={"enum": ["up", "down"]}),
    tool("add", a={"type": "integer", "maximum": 9, "minimum": 0}, b={"$ref": "#/$defs/digit"}),
]
TOOLS[1]["function"]["parameters"]["$defs"] = {"digit": {"enum": [1, 2, 3]}}


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    return real_tokenizer("smollm2")


@pytest.fixture(scope="module")
def compiler(vocabulary: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(vocabulary)


def style(template: str, reasoning: ReasoningTags | None = None) -> ReplyStyle:
    return ReplyStyle(reasoning, tool_format(template))


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("several", [True, False])
def test_calls_are_calls_that_the_parser_reads(
    compiler: GrammarCompiler, vocabulary: Tokenizer, template: str, several: bool
) -> None:
    form = Form(tools=TOOLS, several=several)
    make = compile_form(compiler, form, template=template, reasoning=None, prompt="")
    counts = set()
    for seed in range(6):
        text, ended = follow(vocabulary, make(), seed, eager=0.0 if several else 3.0)
        reply = parse_reply(style(template), text, tools=TOOLS)
        assert reply.content == ""
        if ended:
            assert reply.tool_calls
            assert reply.unfinished == ""
        counts.add(len(reply.tool_calls))
        for call in reply.tool_calls:
            arguments = json.loads(call.arguments)
            if call.name == "look":
                assert arguments["where"] in ("up", "down")
            else:
                assert call.name == "add"
                assert arguments["a"] in range(10)
                assert arguments["b"] in (1, 2, 3)
    if not several:
        assert counts == {1}


@pytest.mark.parametrize("prompt", ["", "<think>\n", "<think>\n\n</think>\n\n"])
def test_reasoning_is_free_and_comes_first(
    compiler: GrammarCompiler, vocabulary: Tokenizer, prompt: str
) -> None:
    form = Form(Grammar("regex", "[0-9]{4}"))
    make = compile_form(compiler, form, template="", reasoning=THINK, prompt=prompt)
    matcher = make()
    thought = "I wonder < about </thin this.\n"
    spoken = {"": f"<think>{thought}</think>\n\n", "<think>\n": f"{thought}</think>\n\n"}
    begun = spoken.get(prompt, "")
    for token in vocabulary.encode(begun, add_bos=False):
        matcher.accept(token)
    text, ended = follow(vocabulary, matcher, 0)
    assert ended
    reply = parse_reply(style("", THINK), begun + text, prompt=prompt)
    assert len(reply.content) == 4
    assert reply.content.isdigit()
    assert reply.reasoning == (thought.strip() if begun else "")


def test_an_answer_or_a_call(compiler: GrammarCompiler, vocabulary: Tokenizer) -> None:
    form = Form(Grammar("json_schema", {"enum": ["yes"]}), TOOLS)
    make = compile_form(compiler, form, template="<tool_call>", reasoning=None, prompt="")
    for begun in ('"yes"', "<tool_call>\n{"):
        matcher = make()
        for token in vocabulary.encode(begun, add_bos=False):
            matcher.accept(token)


def written(compiler: GrammarCompiler, vocabulary: Tokenizer, form: Form, template: str) -> Any:
    """Tells whether a text may be written in a form, and may end there."""
    make = compile_form(compiler, form, template=template, reasoning=None, prompt="")

    def check(text: str) -> bool:
        matcher = make()
        ids = vocabulary.encode(text, add_bos=False)
        if matcher.allowed(ids) < len(ids):
            return False
        for token in ids:
            matcher.accept(token)
        logits = np.zeros(vocabulary.n_vocab, np.float32)
        matcher.mask(logits)
        return bool(np.isfinite(logits[list(vocabulary.stop_ids)]).any())

    return check


CALLS = {
    "<tool_call>": '<tool_call>\n{"name": "look", "arguments": %s}\n</tool_call>',
    "[TOOL_CALLS]": '[TOOL_CALLS][{"name": "look", "arguments": %s}]',
    "no marks": '{"name": "look", "parameters": %s}',
}


@pytest.mark.parametrize("template", CALLS)
def test_free_text_whose_calls_are_held_to_their_schemas(
    compiler: GrammarCompiler, vocabulary: Tokenizer, template: str
) -> None:
    strict = {**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}
    check = written(compiler, vocabulary, Form(tools=[strict, TOOLS[1]], free=True), template)
    call = CALLS[template]
    before = "" if template == "no marks" else "Let me see. "
    assert check("Hello <there>, 1 < 2 and <tool_ca")
    assert check("")
    assert check(before + call % '{"where": "up"}')
    assert not check(before + call % '{"where": "left"}')
    assert not check(before + call.replace("look", "steal") % "{}")
    assert check(call.replace("look", "add") % '{"any": "thing"}')  # it is not strict
    assert not check(call % '{"where": "up"}' + " and more")


def test_tools_that_cannot_be_held_to_are_refused_by_name(compiler: GrammarCompiler) -> None:
    bad = tool("bad", x={"not": {}})
    with pytest.raises(GrammarError) as refused:
        compile_form(compiler, Form(tools=[TOOLS[0], bad]), template="", reasoning=None, prompt="")
    assert refused.value.where == "tools[1].function.parameters.properties.x"
