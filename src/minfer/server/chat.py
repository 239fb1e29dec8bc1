"""`POST /v1/chat/completions`: a conversation in, one or several turns out, whole or in pieces.

Both ways make the same turns from the same pieces; a stream only shows them earlier.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from time import time
from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minfer.engine import Choice
from minfer.llm import Usage
from minfer.server.answers import Answer
from minfer.server.asking import Asked, prepare
from minfer.server.chat_schema import ChatRequest
from minfer.server.logprobs import chat_logprobs
from minfer.server.reading import StrictRoute
from minfer.server.replies import STREAMS, send
from minfer.server.service import (
    Ready,
    Service,
    in_thread,
    note_body,
    timings_body,
    usage_body,
)
from minfer.server.turns import Turn
from minfer.text import Reply, ReplyParser, ToolCall

router = APIRouter(route_class=StrictRoute, tags=["OpenAI"])


@router.post(
    "/v1/chat/completions", response_model=None, responses=STREAMS, summary="Answer a conversation"
)
@router.post("/chat/completions", response_model=None, include_in_schema=False)
async def chat(request: Request, body: ChatRequest, service: Ready) -> Response:
    """Answer a conversation, streaming or not."""
    request.state.fields = {"prompt": "messages", "text": "messages"}
    note_body(request, body)
    asked = await in_thread(prepare, service, body)
    reply = ChatReply(service, body, asked, service.answer(request, asked.wanted))
    return await send(request, service, reply, stream=body.stream)


class ChatReply:
    """An answer in OpenAI's shape, whole or as chunks; one of the two is used, once."""

    def __init__(self, service: Service, body: ChatRequest, asked: Asked, answer: Answer) -> None:
        self._service = service
        self._body = body
        self.answer = answer
        self._turns = [
            Turn(ReplyParser(service.style, prompt=asked.tail, tools=asked.tools))
            for _ in asked.wanted
        ]
        self._head = {
            "id": f"chatcmpl-{uuid4().hex}",
            "created": int(time()),
            "model": service.model_id,
            "system_fingerprint": service.fingerprint,
        }

    @property
    def usages(self) -> list[Usage]:
        """Usage of every choice that has ended."""
        return [turn.usage for turn in self._turns if turn.usage is not None]

    async def whole(self) -> dict[str, Any]:
        """The answer when it is complete."""
        async with self.answer as answer:
            async for index, piece in answer:
                self._turns[index].take(piece, one_call=not self._body.parallel_tool_calls)
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(index, turn) for index, turn in enumerate(self._turns)],
            **self._figures(),
            "seed": self.answer.seed(0),
        }

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """The answer as it is made."""
        wants_usage = self._body.stream_options.include_usage
        async with self.answer as answer:
            for index in range(len(self._turns)):
                yield self._chunk(index, {"role": "assistant", "content": ""})
            async for index, piece in answer:
                turn = self._turns[index]
                n_calls = turn.n_calls
                said = turn.take(piece, one_call=not self._body.parallel_tool_calls)
                delta = _delta(said, n_calls)
                logprobs = self._logprobs([piece.choice]) if piece.choice is not None else None
                if delta or logprobs:
                    yield self._chunk(index, delta, logprobs=logprobs)
                if turn.finish_reason is not None:
                    yield self._chunk(index, {}, finish_reason=turn.finish_reason)
        if wants_usage:
            yield {
                **self._head,
                "object": "chat.completion.chunk",
                "choices": [],
                **self._figures(),
            }

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        if self._body.stream_options.include_usage:
            chunk["usage"] = None
        elif finish_reason is not None and len(self.usages) == len(self._turns):
            chunk["timings"] = timings_body(self.usages)
        return chunk

    def _choice(self, index: int, turn: Turn) -> dict[str, Any]:
        said = turn.reply
        message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": None}
        if said.reasoning:
            message["reasoning_content"] = said.reasoning
        if said.tool_calls:
            message["content"] = said.content or None
            message["tool_calls"] = [_call(call) for call in said.tool_calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(turn.choices),
            "finish_reason": turn.finish_reason,
        }

    def _logprobs(self, choices: Sequence[Choice]) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(self._service.llm.tokenizer, choices)

    def _figures(self) -> dict[str, Any]:
        n_reasoning = sum(turn.n_reasoning for turn in self._turns)
        return {
            "usage": usage_body(self.usages, prompts=1, reasoning=n_reasoning),
            "timings": timings_body(self.usages),
        }


def _delta(said: Reply, n_calls: int) -> dict[str, Any]:
    """What a reply's part adds to a message with so many calls; empty where it adds nothing."""
    delta: dict[str, Any] = {}
    if said.content:
        delta["content"] = said.content
    if said.reasoning:
        delta["reasoning_content"] = said.reasoning
    if said.tool_calls:
        delta["tool_calls"] = calls = []
        for call in said.tool_calls:
            n_calls += bool(call.name)
            calls.append({"index": n_calls - 1, **_call(call)})
    return delta


def _call(call: ToolCall) -> dict[str, Any]:
    """A call, or what continues the one before it, which has no name and no id."""
    if not call.name:
        return {"function": {"arguments": call.arguments}}
    return {
        "id": f"call_{uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
