"""A saved conversation goes on as if it had never stopped; anything else is refused."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
from tiny_models import path_of

from minfer.engine import SamplingParams
from minfer.errors import FormatError, RequestError, TemplateError
from minfer.llm import LLM
from minfer.llm.session import MAGIC

GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=3)
FIRST = [{"role": "user", "content": "Tell me about é, 日本 and the sea; and then about rivers."}]


def opened(backend: str, **options: object) -> LLM:
    return LLM(path_of("llama"), **({"device": backend, "n_ctx": 512, "threads": 2} | options))


def talk(llm: LLM) -> list[dict[str, str]]:
    """A first turn; the messages so far."""
    answer = llm.chat(FIRST, GREEDY, reuse_decoded=True)
    return [*FIRST, {"role": "assistant", "content": answer.text}]


def go_on(llm: LLM, messages: list[dict[str, str]]) -> tuple[object, ...]:
    more = [*messages, {"role": "user", "content": "Go on."}]
    answer = llm.chat(more, GREEDY, reuse_decoded=True)
    return answer.token_ids, answer.logprobs, answer.usage.cached_tokens


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with opened("reference") as llm:
        llm.save_session(tmp_path / "talk", talk(llm))
    return tmp_path / "talk"


@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0"])
def test_a_restored_conversation_goes_on_bit_for_bit(
    tmp_path: Path, backend_name: str, cache_type: str
) -> None:
    path = tmp_path / "talk"
    with opened(backend_name, cache_type=cache_type) as llm:
        messages = talk(llm)
        llm.save_session(path, messages)
        straight = go_on(llm, messages)
    assert [p.name for p in tmp_path.iterdir()] == ["talk"]
    with opened(backend_name, cache_type=cache_type) as llm:
        assert llm.load_session(path) == messages
        free, cached, total = llm._engine.pages
        assert (free + cached, cached > 0) == (total, True)
        assert go_on(llm, messages) == straight
        assert straight[2] > 30
        # an exact request computes everything itself
        exact = llm.chat([*messages, {"role": "user", "content": "Go on."}], GREEDY)
        assert exact.usage.cached_tokens == 0


def test_saving_replaces_a_session_as_a_whole(saved: Path) -> None:
    before = saved.read_bytes()
    with opened("reference") as llm:
        llm.save_session(saved, FIRST)  # nothing of it is cached
        assert llm.load_session(saved) == FIRST
        assert llm._engine.pages[1] == 0
        with pytest.raises(TemplateError):
            llm.save_session(saved, [{"role": "user", "content": "x", "odd": {1, 2}}])
        assert llm.load_session(saved) == FIRST
        with pytest.raises(FormatError, match="cannot be written"):
            llm.save_session(saved / "below a file", FIRST)
    assert before != saved.read_bytes()
    assert [p.name for p in saved.parent.iterdir()] == ["talk"]


@pytest.mark.parametrize("place", [0, 9, 45, 60, 500, -1])
def test_a_damaged_session_is_refused(saved: Path, place: int) -> None:
    data = bytearray(saved.read_bytes())
    data[place] ^= 1
    saved.write_bytes(data)
    with opened("reference") as llm, pytest.raises(FormatError) as caught:
        llm.load_session(saved)
    assert caught.value.where == str(saved)


@pytest.mark.parametrize("size", [0, 4, 8, 39, 40, 44, 100])
def test_a_cut_session_is_refused(saved: Path, size: int) -> None:
    saved.write_bytes(saved.read_bytes()[:size])
    with opened("reference") as llm:
        with pytest.raises(FormatError):
            llm.load_session(saved)
        assert llm._engine.pages[1] == 0


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b"[]",
        b"not json",
        b"\xff",
        b'{"states": 3}',
        json.dumps({"states": {"a": ["b"]}}).encode(),
    ],
)
def test_a_session_of_another_layout_is_refused(tmp_path: Path, header: bytes) -> None:
    body = struct.pack("<Q", len(header)) + header
    path = tmp_path / "odd"
    path.write_bytes(MAGIC + hashlib.sha256(body).digest() + body)
    with opened("reference") as llm, pytest.raises(FormatError, match="not laid out"):
        llm.load_session(path)


def test_a_missing_session_is_an_error(tmp_path: Path) -> None:
    with opened("reference") as llm, pytest.raises(FormatError, match="cannot be read"):
        llm.load_session(tmp_path / "none")


def test_a_session_belongs_to_its_model_and_cache(saved: Path) -> None:
    with opened("reference", cache_type="f32") as llm:
        with pytest.raises(FormatError, match="cache_type 'f16', this is 'f32'"):
            llm.load_session(saved)
        assert llm._engine.pages[1] == 0
    other = LLM(path_of("llama3-rope"), device="reference", n_ctx=512)
    with other, pytest.raises(FormatError, match="was saved with model"):
        other.load_session(saved)


def test_a_session_larger_than_the_cache_is_refused(saved: Path) -> None:
    with (
        opened("reference", n_ctx=64, n_cells=64) as llm,
        pytest.raises(RequestError, match="do not fit the KV cache"),
    ):
        llm.load_session(saved)
