"""`POST /v1/completions`: texts to continue, as they stand, without a chat template."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import time
from typing import Annotated, Any
from uuid import uuid4

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from minfer.engine import Choice, Engine, log_softmax, top_candidates
from minfer.llm import Piece, Usage
from minfer.server.answers import Answer, Wanted, seeded
from minfer.server.errors import invalid
from minfer.server.forms import answer_grammar, held_to
from minfer.server.logprobs import text_logprobs
from minfer.server.reading import StrictRoute
from minfer.server.replies import STREAMS, send
from minfer.server.schema import Sampling, TextInput, TopLogprobs, as_list
from minfer.server.service import (
    Ready,
    Service,
    in_thread,
    note_body,
    timings_body,
    usage_body,
)
from minfer.server.streams import while_there
from minfer.text import Form

router = APIRouter(route_class=StrictRoute, tags=["OpenAI"])

MAX_PROMPTS = 128


class CompletionRequest(Sampling):
    """`POST /v1/completions`."""

    prompt: TextInput
    max_tokens: Annotated[int, Field(ge=-1)] = 16
    n: Annotated[int, Field(ge=1, le=128)] = 1
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    echo: bool = False
    suffix: str = ""
    logprobs: TopLogprobs | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one."""
        return as_list(self.prompt)


@router.post("/v1/completions", response_model=None, responses=STREAMS, summary="Continue a text")
async def complete(request: Request, body: CompletionRequest, service: Ready) -> Response:
    """Continue texts, streaming or not."""
    request.state.fields = {"text": "prompt", "ids": "prompt"}
    note_body(request, body)
    texts = await in_thread(prepare, service, body)
    answer = service.answer(request, [text.wanted for text in texts])
    reply = TextReply(service, body, texts, answer)
    if body.echo and body.logprobs is not None:
        await while_there(request.receive, reply.score_prompts(), service.config.timeout)
    return await send(request, service, reply, stream=body.stream)


@dataclass
class Text:
    """One sequence of a completion, as far as it has come.

    Attributes:
        wanted: what the engine was asked for.
        echo: the prompt's text where it is to be repeated.
        before: the prompt's tokens with their probabilities, where those are asked for.
    """

    wanted: Wanted
    echo: str
    before: list[Choice] = field(default_factory=list)
    text: str = ""
    choices: list[Choice] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage | None = None

    def take(self, piece: Piece) -> None:
        """Add a piece."""
        self.text += piece.text
        if piece.choice is not None:
            self.choices.append(piece.choice)
        self.finish_reason = piece.finish_reason
        self.usage = piece.usage

    @property
    def mean_logprob(self) -> float:
        """Per token; what `best_of` compares."""
        values = [c.logprob for c in self.choices if c.logprob is not None]
        return sum(values) / max(1, len(values))


def prepare(service: Service, body: CompletionRequest) -> list[Text]:
    """The sequences a request asks for, prompt after prompt. May take long for long prompts.

    Raises:
        MinferError: if a parameter or prompt cannot be used.
    """
    if body.suffix:
        raise invalid("filling in the middle is not supported", "suffix", "unsupported")
    best_of = body.best_of or body.n
    if best_of < body.n:
        raise invalid(f"value {best_of} is less than `n`, {body.n}", "best_of")
    if best_of > body.n and body.stream:
        raise invalid("cannot be combined with `stream`", "best_of")
    if len(body.prompts) * best_of > MAX_PROMPTS:
        raise invalid(f"asks for more than {MAX_PROMPTS} sequences", "prompt")
    logprobs = body.logprobs
    if best_of > body.n:
        logprobs = logprobs or 0
    params = body.params(
        max_tokens=None if body.max_tokens == -1 else body.max_tokens, logprobs=logprobs
    )
    answer = answer_grammar(body)
    constraint = held_to(service, None if answer is None else Form(answer), None)
    texts = []
    for prompt in body.prompts:
        ids = service.llm.encode(prompt)
        service.check_length(len(ids))
        echo = ""
        if body.echo:
            echo = prompt if isinstance(prompt, str) else service.llm.detokenize(prompt)
        texts += [Text(Wanted(ids, seeded(params, k), constraint()), echo) for k in range(best_of)]
    return texts


class TextReply:
    """An answer in OpenAI's shape, whole or as chunks; one of the two is used, once."""

    def __init__(
        self, service: Service, body: CompletionRequest, texts: list[Text], answer: Answer
    ) -> None:
        self._service = service
        self._body = body
        self._texts = texts
        self.answer = answer
        self._head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time()),
            "model": service.model_id,
            "system_fingerprint": service.fingerprint,
        }

    @property
    def usages(self) -> list[Usage]:
        """Usage of every sequence that has ended."""
        return [text.usage for text in self._texts if text.usage is not None]

    async def score_prompts(self) -> None:
        """Compute the probabilities of the prompts' tokens, for `echo`."""
        per_prompt = len(self._texts) // len(self._body.prompts)
        n_top = self._body.logprobs or 0
        deadline = self._service.deadline()
        for at in range(0, len(self._texts), per_prompt):
            ids = self._texts[at].wanted.prompt
            work = partial(score, ids=ids, n_top=n_top)
            parts = await self._service.worker.gather(work, deadline)
            before = [Choice(ids[0]), *(choice for part in parts for choice in part)]
            for text in self._texts[at : at + per_prompt]:
                text.before = before

    async def whole(self) -> dict[str, Any]:
        """The answer when it is complete."""
        async with self.answer as answer:
            async for index, piece in answer:
                self._texts[index].take(piece)
        n_prompts = len(self._body.prompts)
        per_prompt = len(self._texts) // n_prompts
        chosen: list[Text] = []
        for at in range(0, len(self._texts), per_prompt):
            group = self._texts[at : at + per_prompt]
            if per_prompt > self._body.n:
                group = sorted(group, key=lambda t: -t.mean_logprob)[: self._body.n]
            chosen += group
        return {
            **self._head,
            "choices": [
                self._choice(index, text.echo + text.text, text.before + text.choices, 0, text)
                for index, text in enumerate(chosen)
            ],
            **self._figures(),
            "seed": self.answer.seed(0),
        }

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """The answer as it is made."""
        wants_usage = self._body.stream_options.include_usage
        async with self.answer as answer:
            for index, text in enumerate(self._texts):
                if text.echo:
                    yield self._chunk(index, text.echo, text.before, 0, text)
            async for index, piece in answer:
                text = self._texts[index]
                offset = len(text.echo) + len(text.text)
                text.take(piece)
                choices = [piece.choice] if piece.choice is not None else []
                if (
                    piece.text
                    or text.finish_reason
                    or (choices and self._body.logprobs is not None)
                ):
                    yield self._chunk(index, piece.text, choices, offset, text)
        if wants_usage:
            yield {**self._head, "choices": [], **self._figures()}

    def _chunk(
        self, index: int, said: str, choices: Sequence[Choice], offset: int, text: Text
    ) -> dict[str, Any]:
        chunk = {**self._head, "choices": [self._choice(index, said, choices, offset, text)]}
        if self._body.stream_options.include_usage:
            chunk["usage"] = None
        return chunk

    def _choice(
        self, index: int, said: str, choices: Sequence[Choice], offset: int, text: Text
    ) -> dict[str, Any]:
        logprobs = None
        if self._body.logprobs is not None:
            logprobs = text_logprobs(self._service.llm.tokenizer, choices, offset)
        return {
            "index": index,
            "text": said,
            "logprobs": logprobs,
            "finish_reason": text.finish_reason,
        }

    def _figures(self) -> dict[str, Any]:
        return {
            "usage": usage_body(self.usages, prompts=len(self._body.prompts)),
            "timings": timings_body(self.usages),
        }


def score(engine: Engine, ids: Sequence[int], n_top: int) -> Iterator[list[Choice]]:
    """The tokens of a prompt after its first as choices of the model, part by part."""
    at = 1
    for logits in engine.scan(ids):
        following = ids[at : at + len(logits)]
        at += len(logits)
        yield [_scored(token, row, n_top) for token, row in zip(following, logits, strict=False)]


def _scored(token: int, logits: NDArray[np.float32], n_top: int) -> Choice:
    logprobs = log_softmax(logits)
    top = top_candidates(logits, n_top)[0].tolist() if n_top else []
    return Choice(token, float(logprobs[token]), tuple((t, float(logprobs[t])) for t in top))
