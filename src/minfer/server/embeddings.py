"""`POST /v1/embeddings`: texts as vectors, the mean of the model's final hidden states."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from minfer.engine import Engine
from minfer.server.errors import invalid
from minfer.server.reading import StrictRoute
from minfer.server.schema import Body, TextInput, as_list
from minfer.server.service import Ready, in_thread, note_unknown
from minfer.server.streams import while_there

router = APIRouter(route_class=StrictRoute, tags=["OpenAI"])

MAX_INPUTS = 2048


class EmbeddingRequest(Body):
    """`POST /v1/embeddings`."""

    input: TextInput
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str = ""


@router.post("/v1/embeddings", response_model=None, summary="Texts as vectors")
@router.post("/embeddings", response_model=None, include_in_schema=False)
async def embed(request: Request, body: EmbeddingRequest, service: Ready) -> Response:
    """Vectors of length 1, one an input, in their order."""
    request.state.fields = {"prompt": "input", "text": "input", "ids": "input"}
    note_unknown(request, body)
    inputs = as_list(body.input)
    width = service.llm.info.width
    if len(inputs) > MAX_INPUTS:
        raise invalid(f"has {len(inputs)} items; at most {MAX_INPUTS} are allowed", "input")
    if body.dimensions is not None and body.dimensions > width:
        raise invalid(f"value {body.dimensions} exceeds the model's {width}", "dimensions")
    encoded = await in_thread(lambda: [service.llm.encode(text) for text in inputs])
    for at, ids in enumerate(encoded):
        if not ids:
            raise invalid("is empty", f"input[{at}]" if isinstance(body.input, list) else "input")
        service.check_length(len(ids), room=0)

    async def vectors() -> list[NDArray[np.float32]]:
        found = []
        deadline = service.deadline()
        for ids in encoded:
            sums = await service.worker.gather(partial(hidden_sums, ids=ids), deadline)
            found.append(pooled(sums, body.dimensions))
        return found

    found = await while_there(request.receive, vectors(), service.config.timeout)
    n_tokens = sum(map(len, encoded))
    request.state.note["prompt_tokens"] = n_tokens
    return JSONResponse(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": at, "embedding": _spelled(vector, body)}
                for at, vector in enumerate(found)
            ],
            "model": service.model_id,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }
    )


def hidden_sums(engine: Engine, ids: Sequence[int]) -> Iterator[NDArray[np.float64]]:
    """The sums of the hidden states of a text's parts, each [width]."""
    for states in engine.scan(ids, hidden=True):
        yield states.sum(axis=0, dtype=np.float64)


def pooled(sums: Sequence[NDArray[np.float64]], dimensions: int | None) -> NDArray[np.float32]:
    """The mean's direction, cut to its first dimensions: a vector of length 1."""
    total = np.sum(sums, axis=0)[:dimensions]
    return np.asarray(total / max(float(np.linalg.norm(total)), 1e-30), np.float32)


def _spelled(vector: NDArray[np.float32], body: EmbeddingRequest) -> Any:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
