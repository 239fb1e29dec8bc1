"""Guessing ahead from Python: the answers stay the same, and what cannot guess is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving import MODELS, tiny
from text_vocabularies import real_metadata

from minfer.cli.app import call
from minfer.engine import SamplingParams
from minfer.errors import HubError, RequestError, UnsupportedError
from minfer.gguf import open_gguf, write_gguf

PARAMS = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
PROMPT = "one two three one two three one two"


@pytest.mark.parametrize("draft", ["lookup", MODELS / "tiny-llama.gguf"])
def test_answers_stay_the_same(draft: str | Path) -> None:
    with tiny() as plain, tiny(draft=draft, n_draft=4) as fast:
        assert fast.generate(PROMPT, PARAMS).token_ids == plain.generate(PROMPT, PARAMS).token_ids
        if draft != "lookup":  # a model of random weights does not quote
            assert fast._engine.counters.guessed_tokens > 0
            assert fast._engine.counters.steps < plain._engine.counters.steps / 2


def test_a_stranger_cannot_guess(tmp_path: Path) -> None:
    path = tmp_path / "stranger.gguf"
    with open_gguf(MODELS / "tiny-llama.gguf") as file:
        others = real_metadata("smollm2")["tokenizer.ggml.tokens"][:512]
        write_gguf(path, {**file.metadata, "tokenizer.ggml.tokens": others}, [])
    with pytest.raises(UnsupportedError, match="another vocabulary"):
        tiny(draft=path)


def test_what_is_not_there() -> None:
    with pytest.raises(HubError):
        tiny(draft=MODELS / "nothing.gguf")
    with pytest.raises(RequestError):
        tiny(draft="lookup", n_draft=0)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(MODELS / "tiny-llama.gguf")
    texts = []
    for more in ([], ["--draft", "lookup"], ["--draft", model, "--draft-tokens", "3"]):
        how = ["--device", "reference", "--greedy", "-n", "12", "--no-template"]
        assert call(["run", model, PROMPT, *how, *more]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]
    assert call(["run", model, PROMPT, "--device", "reference", "--draft-tokens", "0"]) == 0
    assert call(["run", model, "x", "--draft", "lookup", "--draft-tokens", "0"]) == 2
