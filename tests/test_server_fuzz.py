"""No body makes the server fail: whatever is in a field, the answer is 200 or names what is wrong.

`schemathesis run URL/openapi.json --checks not_a_server_error` asks more, and is run by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Served, served, tiny

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": MESSAGES,
        "max_tokens": 2,
        "temperature": 1,
        "stop": ["x"],
        "n": 1,
        "logprobs": True,
        "top_logprobs": 1,
        "logit_bias": {"1": 1},
        "tools": [TOOL],
        "tool_choice": "auto",
        "response_format": {"type": "json_object"},
        "seed": 1,
        "stream_options": {},
        "grammar": None,
        "chat_template_kwargs": {},
        "mirostat": 0,
        "dry_multiplier": 0,
        "xtc_probability": 0,
        "typical_p": 1,
        "repeat_penalty": 1,
    },
    "/v1/completions": {"prompt": "ab", "max_tokens": 2, "echo": True, "logprobs": 1, "best_of": 1},
    "/v1/responses": {
        "input": "hi",
        "max_output_tokens": 2,
        "tools": [{"type": "function", "name": "f"}],
        "text": {},
        "reasoning": {},
        "tool_choice": "auto",
        "top_logprobs": 1,
    },
    "/v1/embeddings": {"input": "ab", "dimensions": 4, "encoding_format": "float"},
    "/tokenize": {"content": "ab", "with_pieces": True},
    "/detokenize": {"tokens": [1, 2]},
    "/apply-template": {"messages": MESSAGES, "chat_template_kwargs": {}},
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 300)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.sampled_from(["user", "auto", "text", "function", "json_schema", "<|im_end|>", "0"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "function", "schema", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny(n_ctx=128)) as running:
        yield running


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(sorted(BODIES)), data=st.data())
def test_any_value_in_any_field(server: Served, path: str, data: st.DataObject) -> None:
    body = dict(BODIES[path])
    for name in data.draw(st.lists(st.sampled_from(sorted(body)), min_size=1, max_size=2)):
        body[name] = data.draw(values)
    if data.draw(st.booleans()):
        body["stream"] = True
    for name in ("max_tokens", "max_output_tokens"):  # an answer without end is none of it
        if name in BODIES[path] and body[name] in (None, -1):
            body[name] = 2
    response = server.http.post(path, json=body)
    assert response.status_code in (200, 400, 429), response.text
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["message"]
        assert error["type"] in ("invalid_request_error", "exceed_context_size_error")
    else:
        assert "server_error" not in response.text


@settings(max_examples=60, deadline=None)
@given(path=st.sampled_from(sorted(BODIES)), body=values)
def test_any_body(server: Served, path: str, body: Any) -> None:
    assert server.http.post(path, json=body).status_code in (200, 400)


def test_afterwards_it_is_well(server: Served) -> None:
    server.settle()
    engine = server.service.worker._engine
    engine.clear_cache()
    free, _, total = engine.pages
    assert free == total
    assert server.http.get("/health").status_code == 200
