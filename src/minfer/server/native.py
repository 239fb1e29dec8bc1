"""llama-server's own routes on text: `/tokenize`, `/detokenize`, `/apply-template`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from minfer.server.asking import template_variables
from minfer.server.chat_schema import Message, Tool
from minfer.server.reading import StrictRoute
from minfer.server.schema import Body
from minfer.server.service import Ready, in_thread, note_unknown

router = APIRouter(route_class=StrictRoute, tags=["llama-server"])


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

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] = Field(default=[])
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default={})


@router.post("/tokenize", summary="A text as token ids")
async def tokenize(request: Request, body: TokenizeRequest, service: Ready) -> dict[str, Any]:
    """The ids of a text; with `with_pieces` also what each stands for, as text or bytes."""
    request.state.fields = {"text": "content"}
    note_unknown(request, body)
    tokenizer = service.llm.tokenizer
    ids = await in_thread(
        lambda: tokenizer.encode(
            body.content,
            special=body.parse_special,
            add_bos=None if body.add_special else False,
        )
    )
    if not body.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": t, "piece": _piece(tokenizer.token_bytes(t))} for t in ids]}


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
