"""Replies taken apart: reasoning, content and tool calls, the same streamed as whole."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_text_json_follow import may_become_json
from text_vocabularies import byte_level

from minfer.text import (
    ChatTemplate,
    Reply,
    ReplyParser,
    ReplyStyle,
    TextStream,
    Tokenizer,
    ToolCall,
    parse_reply,
)
from minfer.text.reasoning import ReasoningTags
from minfer.text.tools import HERMES, bare, mistral, tool_format

THINK = ReasoningTags("<think>", "</think>")
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"properties": {"x": {"type": "integer"}, "s": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "g"}},
]
F = ToolCall("f", '{"x": 1}')
G = ToolCall("g", "{}")
CALL = '{"name": "f", "arguments": {"x": 1}}'

STYLES = {
    "hermes": ReplyStyle(THINK, HERMES),
    "mistral": ReplyStyle(ReasoningTags("[THINK]", "[/THINK]"), mistral),
    "bare": ReplyStyle(None, bare),
}

CASES: list[tuple[str, str, Reply]] = [
    ("hermes", "Hello <b>\n ", Reply("Hello <b>\n ")),
    ("hermes", "<think>\nhm <x>\n</think>\n\nHi", Reply("Hi", "hm <x>")),
    ("hermes", " <think></think> Hi", Reply("Hi")),
    ("hermes", "<think> a </thin", Reply("", "a </thin")),
    ("hermes", "<think>cut off\n", Reply("", "cut off")),
    ("hermes", "<thinking> <think>x</think>", Reply("<thinking> <think>x</think>")),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", Reply(tool_calls=(F,))),
    (
        "hermes",
        f'Sure.\n\n<tool_call>{CALL}</tool_call>\n<tool_call>\n{{"name": "g"}}\n</tool_call>\n',
        Reply("Sure.", tool_calls=(F, G)),
    ),
    ("hermes", f"<tool_call>{CALL}</tool_call> done ", Reply("done ", tool_calls=(F,))),
    (
        "hermes",
        f"<think>call <tool_call>{CALL}</tool_call>?</think><tool_call>{CALL}</tool_call>",
        Reply("", f"call <tool_call>{CALL}</tool_call>?", (F,)),
    ),
    ("hermes", f"<tool_call>{CALL}", Reply(tool_calls=(F,))),
    ("hermes", f"<tool_call>{CALL}<tool_call>{CALL}", Reply(tool_calls=(F, F))),
    ("hermes", f"a <tool_call> {CALL[:-3]}", Reply("a", tool_calls=(ToolCall("f", '{"x": '),))),
    ("hermes", f"a <tool_call> {CALL[:15]}", Reply("a ", unfinished=f"<tool_call> {CALL[:15]}")),
    ("hermes", "a <tool_call>", Reply("a ", unfinished="<tool_call>")),
    ("hermes", "a <tool_cal", Reply("a <tool_cal")),
    (
        "hermes",
        "<tool_call>{not json}</tool_call> <tool_call>[1]</tool_call>!",
        Reply("<tool_call>{not json}</tool_call> <tool_call>[1]</tool_call>!"),
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"s": "</tool_call>\\"}{"}}</tool_call>',
        Reply(tool_calls=(ToolCall("f", '{"s": "</tool_call>\\"}{"}'),)),
    ),
    (  # a bracket too few
        "hermes",
        f"<tool_call>\n{CALL[:-1]}\n</tool_call>\n<tool_call>{CALL}</tool_call>",
        Reply(tool_calls=(F, F)),
    ),
    (  # no string may hold a line break, and models write them
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"s": "a\n\tb"}}</tool_call>',
        Reply(tool_calls=(ToolCall("f", '{"s": "a\\n\\tb"}'),)),
    ),
    (  # the other way round: nothing to pass on before the end
        "hermes",
        '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>',
        Reply(tool_calls=(F,)),
    ),
    (
        "hermes",
        f'<tool_call>{{"type": "function", "function": {CALL}}}</tool_call>',
        Reply(tool_calls=(F,)),
    ),
    ("hermes", f"<tool_call>{'[' * 9999}", Reply(unfinished=f"<tool_call>{'[' * 9999}")),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        Reply(tool_calls=(F,)),
    ),
    (
        "hermes",
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=s>\n2\n</parameter>"
        "\n</function>\n</tool_call>",
        Reply(tool_calls=(ToolCall("f", '{"x": 1, "s": "2"}'),)),
    ),
    (
        "hermes",
        'Ok <tool_call><function=g></function><function=f><parameter=s>\n\na"b\n</s\n\n</parameter>'
        "and <parameter=y>[1, \n2]</parameter><parameter=x>NaN</parameter></tool_call> ",
        Reply(
            "Ok",
            tool_calls=(
                G,
                ToolCall("f", '{"s": "\\na\\"b\\n</s\\n", "y": [1, 2], "x": "NaN"}'),
            ),
            unfinished="and",
        ),
    ),
    (
        "hermes",
        "<tool_call><function=f><parameter=s>a\nb",
        Reply(tool_calls=(ToolCall("f", '{"s": "a\\nb'),)),
    ),
    (
        "hermes",
        "<tool_call><function=f><parameter=x>12",
        Reply(tool_calls=(ToolCall("f", '{"x": '),)),
    ),
    ("hermes", "<tool_call><function=f", Reply(unfinished="<tool_call><function=f")),
    ("hermes", "<tool_call><function=></tool_call>", Reply("<tool_call><function=></tool_call>")),
    ("hermes", "<tool_call><func</tool_call>", Reply("<tool_call><func</tool_call>")),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", Reply(tool_calls=(F, F))),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g{}', Reply(tool_calls=(F, G))),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]9[ARGS]{"x": 1}', Reply(tool_calls=(F,))),
    ("mistral", f"Ok [TOOL_CALLS] [{CALL}", Reply("Ok", tool_calls=(F,))),
    ("mistral", "Ok [TOOL_CALLS] [{", Reply("Ok ", unfinished="[TOOL_CALLS] [{")),
    ("mistral", f"[TOOL_CALLS] [1, {CALL}] x", Reply(f"[TOOL_CALLS] [1, {CALL}] x")),
    ("mistral", "[TOOL_CALLS]the tag {a}", Reply("[TOOL_CALLS]the tag {a}")),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"x" 1} [TOOL_CALLS]g{}',
        Reply(tool_calls=(ToolCall("f", '{"x" '), G), unfinished="1} "),
    ),
    ("mistral", "[THINK]a[/THINK]b [TOOL", Reply("b [TOOL", "a")),
    ("mistral", "[TOOL_CALLS] [1] x", Reply("[TOOL_CALLS] [1] x")),
    ("bare", '{"name": "f", "parameters": {"x": 1}}', Reply(tool_calls=(F,))),
    ("bare", f" <|python_tag|>{CALL}; {CALL}", Reply(tool_calls=(F, F))),
    ("bare", f"<|python_tag|>{CALL[:-2]}", Reply(tool_calls=(ToolCall("f", '{"x": 1'),))),
    ("bare", f"<|python_tag|>{CALL[:9]}", Reply(unfinished=f"<|python_tag|>{CALL[:9]}")),
    ("bare", f"[{CALL}, {CALL}]\n", Reply(tool_calls=(F, F))),
    ("bare", f"```json\n{CALL}\n```\n", Reply(tool_calls=(F,))),
    ("bare", f"```json\n{CALL}\n```\nDone.", Reply("Done.", tool_calls=(F,))),
    ("bare", '{"name": "other", "parameters": {}}', Reply('{"name": "other", "parameters": {}}')),
    ("bare", '```json\n{"a": 1}\n```', Reply('```json\n{"a": 1}\n```')),
    ("bare", '{"a": 1} and more ', Reply('{"a": 1} and more ')),
    ("bare", CALL[:15], Reply(CALL[:15])),
    (
        "bare",
        f"{CALL[:-3]}x}} and",
        Reply(tool_calls=(ToolCall("f", '{"x": '),), unfinished="x} and"),
    ),
    ("bare", f"Sure: {CALL}", Reply(f"Sure: {CALL}")),
    ("bare", "``a", Reply("``a")),
    ("bare", "<b>", Reply("<b>")),
    ("bare", "<|pyth", Reply("<|pyth")),
    ("bare", "", Reply()),
]


@pytest.mark.parametrize(("style", "text", "reply"), CASES)
def test_replies_whole_and_byte_by_byte(style: str, text: str, reply: Reply) -> None:
    assert parse_reply(STYLES[style], text, tools=SCHEMAS) == reply
    parser = ReplyParser(STYLES[style], tools=SCHEMAS)
    streamed = Reply()
    for char in text:
        streamed += parser.push(char)
    assert streamed + parser.finish() == reply


markup = st.lists(
    st.sampled_from(
        [
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]"),
            *("<|python_tag|>", "```", "```json\n", CALL, f"[{CALL}]", '{"name": "f"', "f", "{"),
            *("}", '"', "\\", ";", "[", "]", "<", "</", " ", "\n", "a", "é", "[THINK]", "[/THINK]"),
            *("<function=f>", "</function>", "<parameter=x>", "</parameter>"),
        ]
    )
).map("".join)


@pytest.mark.parametrize("style", STYLES)
@settings(deadline=None, max_examples=200)
@given(text=markup, cuts=st.lists(st.integers(0, 200)), inside=st.booleans(), tools=st.booleans())
def test_the_parts_do_not_depend_on_the_pieces(
    style: str, text: str, cuts: list[int], inside: bool, tools: bool
) -> None:
    prompt = "<think>\n" if inside else "user\n"
    schemas = SCHEMAS if tools else None
    whole = parse_reply(STYLES[style], text, prompt=prompt, tools=schemas)
    parser = ReplyParser(STYLES[style], prompt=prompt, tools=schemas)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    streamed = Reply()
    for begin, end in pairwise(edges):
        streamed += parser.push(text[begin:end])
        if streamed.tool_calls:
            assert may_become_json(streamed.tool_calls[-1].arguments)
    assert streamed + parser.finish() == whole
    for call in whole.tool_calls:
        assert call.name
        assert may_become_json(call.arguments)
    if not tools:
        assert whole.tool_calls == ()


def test_arguments_come_as_they_are_written() -> None:
    for style, text in (
        ("hermes", f"Sure. <tool_call>\n{CALL}\n</tool_call>"),
        ("mistral", f"[TOOL_CALLS][{CALL}]"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}'),
        ("bare", CALL),
    ):
        parser = ReplyParser(STYLES[style], tools=SCHEMAS)
        before = text.index('{"x": 1}')
        said = parser.push(text[: before + 1])
        assert said.tool_calls == (ToolCall("f", "{"),)
        for at in range(before + 1, before + 8):
            assert parser.push(text[at]).tool_calls == (ToolCall("", text[at]),)
        assert parser.push(text[before + 8 :]) + parser.finish() == Reply()


@settings(deadline=None)
@given(text=st.text(st.sampled_from('ab<>/[]{}"`\n thinkTOOL_cal')))
def test_text_without_markup_is_content_unchanged(text: str) -> None:
    assume(not any(tag in text for tag in ("<think>", "<tool_call>", "[TOOL_CALLS]")))
    for style in STYLES.values():
        assert parse_reply(style, text, tools=SCHEMAS) == Reply(text)


def test_a_reply_may_begin_inside_reasoning() -> None:
    style = STYLES["hermes"]
    for prompt, text in (
        ("<|im_start|>assistant\n<think>\n", "hm</think>Hi"),
        ("<think>", "<think>hm</think>\nHi"),
        ("<think>\n", "\n hm \n</think>\n\nHi"),
    ):
        assert parse_reply(style, text, prompt=prompt) == Reply("Hi", "hm")
    assert parse_reply(style, "</think>Hi", prompt="<think>\n") == Reply("Hi")
    assert parse_reply(style, "</thin", prompt="<think>\n") == Reply("", "</thin")
    assert parse_reply(style, "Hi", prompt="<think>\n\n</think>\n\n") == Reply("Hi")


def test_the_style_is_read_off_the_template() -> None:
    qwen = ReplyStyle.of(ChatTemplate("{{ '</think>' }} <tool_call>{{ tools }}"))
    assert qwen == ReplyStyle(THINK, HERMES)
    plain = ReplyStyle.of(ChatTemplate("{{ messages[0].content }}"))
    assert plain == ReplyStyle(None, bare)
    assert tool_format("... [TOOL_CALLS] ...") is mistral


def test_marks_that_are_control_tokens_stay_in_the_stream() -> None:
    metadata = byte_level(token_type=[1] * 257 + [3, 3, 3])
    metadata["tokenizer.ggml.tokens"][259] = "[TOOL_CALLS]"
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode(f"[TOOL_CALLS] [{CALL}]<|end|>", special=True)
    stream = TextStream(tokenizer, keep=STYLES["mistral"].marks(tokenizer))
    text = "".join(map(stream.push, ids)) + stream.finish()
    assert text == f"[TOOL_CALLS] [{CALL}]"
    assert parse_reply(STYLES["mistral"], text, tools=SCHEMAS).tool_calls == (F,)
