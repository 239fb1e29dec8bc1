"""Chat templates: what transformers renders, errors that name the line, limits, ids, one BOS."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_vocabularies import DATA, byte_level, real_metadata, real_tokenizer, sentencepiece

from minfer.errors import TemplateError
from minfer.text import ChatTemplate, Tokenizer

# Templates of the common families and conversations, with what transformers 5.24 renders (null
# where it raises an error or prints a form it was not written for).
CASES = json.loads((DATA / "templates.json").read_text(encoding="utf-8"))
ASK = [{"role": "user", "content": "a"}]


@cache
def shared(name: str) -> ChatTemplate:
    return ChatTemplate(CASES["templates"][name], **CASES["tokens"])


@pytest.mark.parametrize("conversation", CASES["conversations"])
@pytest.mark.parametrize("name", CASES["templates"])
def test_rendering_equals_transformers(name: str, conversation: str) -> None:
    template = shared(name)
    expected = CASES["rendered"][name][conversation]
    arguments = {"add_generation_prompt": True} | CASES["conversations"][conversation]
    if expected is not None:
        assert template.render(**arguments) == expected


@pytest.mark.parametrize("name", CASES["templates"])
def test_content_in_any_form_is_rendered(name: str) -> None:
    template = shared(name)
    for content in ("Hello", [{"type": "text", "text": "Hello"}]):
        assert "Hello" in template.render([{"role": "user", "content": content}])


def test_null_content_and_string_arguments_reach_each_template_as_it_reads_them() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}}
    chat = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
    for name in ("qwen3", "deepseek_v3", "features"):
        text = ChatTemplate(CASES["templates"][name]).render(chat)
        assert '{"x": "é"}' in text or '{"x":"é"}' in text
        assert "None" not in text
    dumps = "{{ messages[1].tool_calls[0].function.arguments | tojson }}"
    assert ChatTemplate(dumps).render(chat) == '{"x": "é"}'
    call["function"]["arguments"] = {"x": 1}
    adds = "{{ '' + messages[1].tool_calls[0].function.arguments }}"
    assert ChatTemplate(adds).render(chat) == '{"x": 1}'


def test_date_is_todays() -> None:
    before = datetime.now().strftime("%d %b %Y")
    text = ChatTemplate("{{ strftime_now('%d %b %Y') }}").render(ASK)
    assert text in (before, datetime.now().strftime("%d %b %Y"))


def test_a_separate_template_serves_tools() -> None:
    metadata = byte_level() | {
        "tokenizer.chat_template": "plain {{ bos_token }}",
        "tokenizer.chat_template.tool_use": "{{ eos_token }} {{ tools[0].name }}",
    }
    template = ChatTemplate.from_metadata(metadata)
    assert template.render(ASK) == "plain <|bos|>"
    assert template.render(ASK, tools=[]) == "plain <|bos|>"
    assert template.render(ASK, tools=[{"name": "f"}]) == "<|end|> f"


def test_chatml_stands_in_and_says_so() -> None:
    template = ChatTemplate.from_metadata(byte_level())
    assert template.is_default
    expected = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(ASK) == expected
    assert not ChatTemplate.from_metadata(real_metadata("smollm2")).is_default
    with pytest.raises(TemplateError, match="int, not a string"):
        ChatTemplate.from_metadata({"tokenizer.chat_template": 3})


BROKEN = [
    ("\n{% for x in %}", r"\[chat template line 2\] the template is not valid Jinja.*for x in %"),
    ("{% nope %}", "unknown tag 'nope'"),
    ("\n\n{{ messages[0].a.b }}", r"line 3\].*'dict object' has no attribute 'a'.*a\.b"),
    ("{{ raise_exception('no tools') }}", "the template refuses the conversation: no tools"),
    ("{{ messages[0].content + 1 }}", "line 1.*concatenate"),
    ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ("{{ messages.append(1) }}", "unsafe"),
    ("{% include 'passwd' %}", "no loader"),
    ("{{ 'a' * 1000000000 }}", "more than 67108864 characters"),
    ("{{ [0] * 1000000000 }}", "more than 67108864 characters"),
    ("{{ 9 ** 99999999 }}", "a power of 99999999"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    (
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "loops take more than 200000 steps",
    ),
]


@pytest.mark.parametrize(("source", "message"), BROKEN)
def test_a_failing_template_names_construct_and_line(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=f"(?s){message}"):
        ChatTemplate(source).render(ASK)


BAD_CHATS: list[tuple[Any, str]] = [
    ([], "empty"),
    ("hello", "str, not a list"),
    (["hello"], r"messages\[0\]\] is a str"),
    ([{"role": "user", "content": object()}], r"messages\[0\].content\] is a object"),
    (
        [*ASK, {"role": "user", "content": [{"type": "image_url"}]}],
        r"messages\[1\].content\] has a part of type 'image_url'",
    ),
    ([{"role": "user"}], "no attribute 'content'"),
]


@pytest.mark.parametrize(("messages", "message"), BAD_CHATS)
def test_a_bad_conversation_is_named(messages: Any, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        ChatTemplate.from_metadata({}).render(messages)


def test_exactly_one_bos() -> None:
    with_bos, without = "{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"
    for source, add_bos, n_bos in (
        (with_bos, True, 1),
        (with_bos, False, 1),
        (without, True, 1),
        (without, False, 0),
    ):
        metadata = byte_level(add_bos_token=add_bos) | {"tokenizer.chat_template": source}
        tokenizer = Tokenizer.from_metadata(metadata)
        ids = ChatTemplate.from_metadata(metadata).encode(tokenizer, ASK)
        assert ids.count(tokenizer.bos_id) == n_bos
        assert ids[-1] == tokenizer.token_id("a")
        # A BOS that the user types is text, and does not stand for the one that is asked for.
        forged = [{"role": "user", "content": "<|bos|>a"}]
        assert ChatTemplate.from_metadata(metadata).encode(tokenizer, forged).count(257) == n_bos


contents = st.text(st.characters(exclude_categories=["Cs"]))
roles = st.sampled_from(["user", "assistant"])
chats = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, roles, contents), min_size=1
)


@pytest.mark.parametrize("vocabulary", ["smollm2", "qwen2", "gemma3"])
@pytest.mark.parametrize("name", ["smollm2", "qwen3", "llama3_1", "zephyr"])
@settings(deadline=None, max_examples=30)
@given(chat=chats)
def test_ordinary_chats_encode_as_their_rendered_text(
    vocabulary: str, name: str, chat: list[dict[str, str]]
) -> None:
    tokenizer = real_tokenizer(vocabulary)
    template = shared(name)
    text = template.render(chat)
    assert template.encode(tokenizer, chat) == tokenizer.encode(text, special=True)


def test_the_space_prefix_is_the_same_either_way() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece())
    template = ChatTemplate("<s>{{ messages[0].content }}</s>ab")
    for content in ("a", " a", "</s>a", "a</", "<t>a"):
        chat = [{"role": "user", "content": content}]
        ids = template.encode(tokenizer, chat)
        assert ids.count(tokenizer.eos_id) == 1
        assert tokenizer.decode(ids) == template.render(chat)
