"""`POST /v1/responses`: OpenAI's newer shape of a conversation, answered by the same means as chat.

An answer is a list of items: reasoning, a message, calls. A stream is a list of events that build
these items; the response without streaming is what they build.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator, Iterator
from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import uuid4

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from minfer.llm import Piece, Usage
from minfer.server.answers import Answer
from minfer.server.asking import Asked, prepare
from minfer.server.errors import api_error
from minfer.server.logprobs import chat_logprobs
from minfer.server.reading import StrictRoute
from minfer.server.replies import STREAMS, send
from minfer.server.responses_schema import ResponsesRequest
from minfer.server.service import Ready, Service, in_thread, note_unknown
from minfer.server.turns import Turn
from minfer.text import ReplyParser, ToolCall

_log = logging.getLogger("minfer.server")
router = APIRouter(route_class=StrictRoute, tags=["OpenAI"])
Event = dict[str, Any]

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
FIELDS = {"prompt": "input", "text": "input", "messages": "input"}


@router.post(
    "/v1/responses", response_model=None, responses=STREAMS, summary="Answer, as a list of items"
)
async def respond(request: Request, body: ResponsesRequest, service: Ready) -> Response:
    """Answer a conversation, streaming or not. Nothing is stored."""
    request.state.fields = FIELDS
    request.state.note["stream"] = body.stream
    note_unknown(request, body)
    asked = await in_thread(lambda: prepare(service, body.as_chat()))
    reply = ItemReply(service, body, asked, service.answer(request, asked.wanted))
    return await send(request, service, reply, stream=body.stream, done=None)


@dataclass
class Item:
    """An item of the output while it is being written.

    Attributes:
        kind: `message`, `reasoning` or `function_call`.
        index: its place in the output.
        id: its name.
        text: what it says so far, or the arguments of its call.
        function: what it calls.
        logprobs: of its tokens, where asked for.
    """

    kind: str
    index: int
    id: str
    text: str = ""
    function: str = ""
    logprobs: list[Any] = field(default_factory=list)

    @property
    def part(self) -> dict[str, Any]:
        """Its one part of content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": self.logprobs,
        }

    def body(self, status: str, *, empty: bool = False) -> dict[str, Any]:
        """The item as JSON."""
        if self.kind == "function_call":
            return {
                "id": self.id,
                "type": "function_call",
                "status": status,
                "call_id": self.id.replace("fc_", "call_", 1),
                "name": self.function,
                "arguments": self.text,
            }
        content = [] if empty else [self.part]
        if self.kind == "reasoning":
            return {"id": self.id, "type": "reasoning", "summary": [], "content": content}
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


class ItemReply:
    """Writes one response, whole or as events; one of the two is used, once."""

    def __init__(
        self, service: Service, body: ResponsesRequest, asked: Asked, answer: Answer
    ) -> None:
        self._service = service
        self._body = body
        self.answer = answer
        self._turn = Turn(ReplyParser(service.style, prompt=asked.tail, tools=asked.tools))
        self._output: list[dict[str, Any]] = []
        self._open: Item | None = None
        self._logprobs: list[Any] = []  # of tokens whose text is still to come
        self._n_events = 0
        self._head = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time()),
            "model": service.model_id,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": body.text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": body.model_dump()["tool_choice"],
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools],
            "top_logprobs": body.top_logprobs,
            "top_p": body.top_p,
            "truncation": "disabled",
        }

    @property
    def usages(self) -> list[Usage]:
        """Usage, once the answer has ended."""
        return [self._turn.usage] if self._turn.usage is not None else []

    async def whole(self) -> dict[str, Any]:
        """The response when it is complete."""
        async with self.answer as answer:
            async for _, piece in answer:
                for _ in self._take(piece):
                    continue
        return self._response()

    async def events(self) -> AsyncGenerator[Event, None]:
        """The response as it is made."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        try:
            async with self.answer as answer:
                async for _, piece in answer:
                    for event in self._take(piece):
                        yield event
        except Exception as error:
            told = api_error(error, FIELDS)
            if told.status_code >= 500:
                _log.error("a response failed", exc_info=error)
            failed = self._response("failed")
            failed["error"] = {"code": told.error["code"], "message": told.error["message"]}
            yield self._event("response.failed", response=failed)
            return
        response = self._response()
        yield self._event(f"response.{response['status']}", response=response)

    # -- what a piece adds ------------------------------------------------------------------

    def _take(self, piece: Piece) -> Iterator[Event]:
        said = self._turn.take(piece, one_call=not self._body.parallel_tool_calls)
        if said.reasoning:
            yield from self._say("reasoning", said.reasoning)
        else:
            self._logprobs += self._scored(piece)
        if said.content:
            yield from self._say("message", said.content)
        for call in said.tool_calls:
            yield from self._call(call)
        if piece.finish_reason is not None:
            yield from self._close("incomplete" if self._cut_off else "completed")

    def _say(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            item = yield from self._begin(kind)
            yield self._part_event("response.content_part.added", item, part=item.part)
        else:
            item = self._open
        item.text += text
        more: dict[str, Any] = {}
        if kind == "message":
            more["logprobs"], self._logprobs = self._logprobs, []
            item.logprobs += more["logprobs"]
        name = "reasoning_text" if kind == "reasoning" else "output_text"
        yield self._part_event(f"response.{name}.delta", item, delta=text, **more)

    def _call(self, call: ToolCall) -> Iterator[Event]:
        """A call, or what continues the one that is open."""
        item = self._open
        if item is None or call.name:
            item = yield from self._begin("function_call", call.name)
        item.text += call.arguments
        yield self._event(
            "response.function_call_arguments.delta",
            item_id=item.id,
            output_index=item.index,
            delta=call.arguments,
        )

    def _begin(self, kind: str, function: str = "") -> Generator[Event, None, Item]:
        yield from self._close()
        name = f"{_PREFIXES[kind]}_{uuid4().hex}"
        item = self._open = Item(kind, len(self._output), name, function=function)
        yield self._event(
            "response.output_item.added",
            output_index=item.index,
            item=item.body("in_progress", empty=True),
        )
        return item

    def _close(self, status: str = "completed") -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        self._output.append(item.body(status))
        if item.kind == "function_call":
            yield self._event(
                "response.function_call_arguments.done",
                item_id=item.id,
                output_index=item.index,
                name=item.function,
                arguments=item.text,
            )
        elif item.kind == "reasoning":
            yield self._part_event("response.reasoning_text.done", item, text=item.text)
        else:
            yield self._part_event(
                "response.output_text.done", item, text=item.text, logprobs=item.logprobs
            )
        if item.kind != "function_call":
            yield self._part_event("response.content_part.done", item, part=item.part)
        yield self._event(
            "response.output_item.done", output_index=item.index, item=self._output[-1]
        )

    def _scored(self, piece: Piece) -> list[Any]:
        if not self._body.top_logprobs or piece.choice is None:
            return []
        return list(chat_logprobs(self._service.llm.tokenizer, [piece.choice])["content"])

    # -- the response -----------------------------------------------------------------------

    def _response(self, status: str | None = None) -> dict[str, Any]:
        cut_off = self._cut_off
        return {
            **self._head,
            "status": status or ("incomplete" if cut_off else "completed"),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
            "output": list(self._output),
            "usage": self._usage(),
        }

    @property
    def _cut_off(self) -> bool:
        return self._turn.finish_reason == "length"

    def _usage(self) -> dict[str, Any] | None:
        usage = self._turn.usage
        if usage is None:
            return None
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._turn.n_reasoning},
            "total_tokens": usage.total_tokens,
        }

    def _event(self, kind: str, **body: Any) -> Event:
        event = {"type": kind, "sequence_number": self._n_events, **body}
        self._n_events += 1
        return event

    def _part_event(self, kind: str, item: Item, **body: Any) -> Event:
        return self._event(kind, item_id=item.id, output_index=item.index, content_index=0, **body)
