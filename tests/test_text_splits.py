"""All splits of a vocabulary, against looking each half up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_vocabularies import real_metadata

from minfer.errors import TokenizerError
from minfer.text import splits
from minfer.text.splits import all_splits


def looked_up(texts: list[str]) -> list[tuple[str, str]]:
    place = {text: at for at, text in enumerate(texts)}
    return [
        (texts[left], text[len(texts[left]) :])
        for text in texts
        for left in sorted(
            place[text[:cut]]
            for cut in range(1, len(text))
            if text[:cut] in place and text[cut:] in place
        )
    ]


@settings(deadline=None)
@given(st.lists(st.text("ab▁é😀", min_size=1, max_size=6), unique=True))
def test_splits_are_those_found_by_looking_up(texts: list[str]) -> None:
    assert all_splits(texts) == looked_up(texts)


def test_splits_of_a_real_vocabulary() -> None:
    texts = real_metadata("gemma3")["tokenizer.ggml.tokens"][1000:40000]
    assert all_splits(texts) == looked_up(texts)


def test_a_hash_that_meets_another_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "_BASE", 1)  # now anagrams collide
    with pytest.raises(TokenizerError, match="hash"):
        all_splits(["ab", "ba"])
    with pytest.raises(TokenizerError, match="hash"):
        all_splits(["ab", "c", "bac"])
