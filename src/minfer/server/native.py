"""llama-server's own routes on text: `/tokenize`, `/detokenize`, `/apply-template`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from minfer.server.asking import template_variables
from minfer.server.chat_schema import MAX_MESSAGES, MAX_TOOLS, Message, Tool
from minfer.server.reading import StrictRoute
from minfer.server.schema import Body
from minfer.server.service import Ready, in_thread, note_unknown

router = APIRouter(route_class=StrictRoute, tags=["llama-server"])

PART = 4096
"""Tokens of an answer that are written at a time."""


class TokenizeRequest(Body):
    """`POST /tokenize`."""

    content: str
    add_special: bool = Field(
        default=False, description="Put BOS in front, as the model's prompts have."
    )
    parse_special: bool = Field(
        default=True, description="Read control tokens written out in the text."
    )
    with_pieces: bool = False


class DetokenizeRequest(Body):
    """`POST /detokenize`."""

    tokens: list[int]


class TemplateRequest(Body):
    """`POST /apply-template`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default=[])
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default={})


@router.post("/tokenize", response_model=None, summary="A text as token ids")
async def tokenize(request: Request, body: TokenizeRequest, service: Ready) -> Response:
    """The ids of a text; with `with_pieces` also what each stands for, as text or bytes."""
    request.state.fields = {"text": "content"}
    note_unknown(request, body)
    tokenizer = service.llm.tokenizer

    def work() -> Iterator[str]:
        """The answer's JSON, in parts short enough for other threads not to wait."""
        ids = tokenizer.encode(
            body.content,
            special=body.parse_special,
            add_bos=None if body.add_special else False,
        )
        yield '{"tokens":['
        for at in range(0, len(ids), PART):
            part: list[Any] = ids[at : at + PART]
            if body.with_pieces:
                part = [{"id": t, "piece": _piece(tokenizer.token_bytes(t))} for t in part]
            yield ("," if at else "") + json.dumps(part)[1:-1]
        yield "]}"

    text = await in_thread(lambda: "".join(work()))
    return Response(text, media_type="application/json")


@router.post("/detokenize", summary="The text of token ids")
async def detokenize(request: Request, body: DetokenizeRequest, service: Ready) -> dict[str, str]:
    """The text of ids, control tokens written out."""
    request.state.fields = {"ids": "tokens"}
    note_unknown(request, body)
    return {"content": await in_thread(service.llm.detokenize, body.tokens)}


@router.post("/apply-template", summary="The prompt of a conversation")
async def apply_template(request: Request, body: TemplateRequest, service: Ready) -> dict[str, str]:
    """What the model's chat template makes of a conversation."""
    note_unknown(request, body)
    prompt = await in_thread(
        lambda: service.llm.template.render(
            [message.plain() for message in body.messages],
            tools=[tool.plain() for tool in body.tools] or None,
            add_generation_prompt=body.add_generation_prompt,
            **template_variables(body.chat_template_kwargs),
        )
    )
    return {"prompt": prompt}


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
