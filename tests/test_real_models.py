"""SmolLM2 itself, where it is in the cache: what it says greedily is what Hugging Face says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minfer import LLM
from minfer.engine import SamplingParams
from minfer.errors import BackendError, HubError
from minfer.hub import resolve
from minfer.settings import Settings

pytestmark = [pytest.mark.model, pytest.mark.slow]

DATA = Path(__file__).parent / "data" / "real"
MARGIN = 0.1
"""Where the two best logits are nearer than this, rounding may decide. Logits are around 15."""


def model(device: str) -> LLM:
    settings = replace(Settings.load(), offline=True)
    try:
        return LLM(resolve("smollm2", settings), device=device, n_ctx=512)
    except HubError:
        pytest.skip("smollm2 is not in the cache; `minfer pull smollm2` puts it there")
    except (BackendError, ImportError) as error:
        pytest.skip(f"no {device} backend: {error}")


def greedy(llm: LLM, prompt: list[int], n: int, **options: Any) -> Any:
    params = SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, **options)
    return llm.generate(prompt, params)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_greedy_tokens_are_those_of_hugging_face(device: str) -> None:
    """Until they part where a float32 forward of the file's weights was all but undecided."""
    with model(device) as llm:
        for case in json.loads((DATA / "smollm2.greedy.json").read_text()):
            right = case["greedy_ids"]
            found = greedy(llm, case["prompt_ids"], len(right)).token_ids
            parted = (i for i, (a, b) in enumerate(zip(found, right, strict=True)) if a != b)
            at = next(parted, None)
            assert at is None or case["margins"][at] < MARGIN, (at, case["margins"])


@pytest.mark.cuda
def test_cuda_says_what_the_cpu_says() -> None:
    """Up to the first token for which the CPU's two best were all but equal."""
    with model("cuda") as gpu, model("cpu") as cpu:
        for case in json.loads((DATA / "smollm2.greedy.json").read_text()):
            one, other = (greedy(llm, case["prompt_ids"], 150, logprobs=2) for llm in (cpu, gpu))
            pairs = zip(one.token_ids, other.token_ids, strict=True)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            if at is not None:
                (_, best), (_, second) = one.logprobs[at].top
                assert best - second < MARGIN, at
