"""How the server is: `/health`, `/metrics`, `/v1/models`, `/props`, `/slots`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from minfer.engine import Engine, SamplingParams
from minfer.server.errors import ApiError
from minfer.server.metrics import Snapshot
from minfer.server.service import Ready, Service

router = APIRouter(tags=["status"])

DEFAULTS = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
"""What a request gets that asks for nothing."""


@router.get("/health", response_model=None, summary="Whether requests are answered")
@router.get("/v1/health", response_model=None, include_in_schema=False)
async def health(request: Request, service: Ready) -> Response:
    """200 when the model is loaded and its engine is well, 503 otherwise."""
    if service.worker.failure is not None:
        raise ApiError(
            503,
            f"the engine has failed: {service.worker.failure}",
            type="unavailable_error",
            code="engine_failed",
        )
    return JSONResponse({"status": "ok"})


@router.get("/v1/models", summary="The one model", tags=["OpenAI"])
@router.get("/models", include_in_schema=False)
async def models(service: Ready) -> dict[str, Any]:
    """A list of the one model that is served."""
    return {"object": "list", "data": [_model(service)]}


@router.get("/v1/models/{model:path}", summary="A model by its name", tags=["OpenAI"])
async def model(model: str, service: Ready) -> dict[str, Any]:
    """The model, if it is called so."""
    if model != service.model_id:
        raise ApiError(
            404,
            f"there is no model {model[:200]!r}; this server has {service.model_id!r}",
            param="model",
            type="not_found_error",
            code="model_not_found",
        )
    return _model(service)


@router.get("/metrics", response_class=PlainTextResponse, summary="Figures for Prometheus")
async def metrics(service: Ready) -> Response:
    """Prometheus' text format."""
    if not service.config.metrics:
        raise disabled("/metrics", "--metrics")
    snapshot = await service.worker.call(Snapshot.of)
    return Response(
        service.metrics.text(snapshot), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


@router.get("/props", summary="The model and its defaults", tags=["llama-server"])
async def props(service: Ready) -> dict[str, Any]:
    """Facts about the model and what a request gets unasked."""
    llm = service.llm
    n_slots = await service.worker.call(lambda engine: engine.config.max_sequences)
    return {
        "default_generation_settings": {"n_ctx": llm.n_ctx, "params": _params(DEFAULTS)},
        "total_slots": n_slots,
        "model_alias": service.model_id,
        "model_path": llm.path.name,
        "chat_template": llm.template.source,
        "chat_template_caps": {"supports_tools": "tools" in llm.template.source},
        "modalities": {"vision": False, "audio": False},
        "bos_token": _token(service, llm.tokenizer.bos_id),
        "eos_token": _token(service, llm.tokenizer.eos_id),
        "build_info": service.fingerprint,
        "is_sleeping": False,
    }


@router.get("/slots", response_model=None, summary="What is being computed", tags=["llama-server"])
async def slots(service: Ready, fail_on_no_slot: bool = False) -> Response:
    """The state of every place for a sequence, without the texts."""
    if not service.config.slots:
        raise disabled("/slots", "--slots")
    found = await service.worker.call(_slots)
    if fail_on_no_slot and all(slot["is_processing"] for slot in found):
        raise ApiError(503, "no slot is free", type="unavailable_error", code="no_slot")
    return JSONResponse(found)


def disabled(path: str, option: str) -> ApiError:
    """The refusal of something that the operator has switched off."""
    return ApiError(
        501,
        f"{path} is switched off. Start the server with {option}",
        type="not_supported_error",
        code="disabled",
        headers={"x-should-retry": "false"},
    )


def _model(service: Service) -> dict[str, Any]:
    info = service.llm.info
    return {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "minfer",
        "meta": {
            "n_vocab": info.n_vocab,
            "n_ctx": service.llm.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_embd": info.width,
            "n_params": info.n_params,
            "size": info.file_bytes,
        },
    }


def _token(service: Service, token: int | None) -> str:
    return "" if token is None else service.llm.tokenizer.token_text(token)


def _params(params: SamplingParams) -> dict[str, Any]:
    """What a sampler does, without what it was given to read."""
    names = [f.name for f in fields(params) if f.name not in ("stop", "logit_bias")]
    return {name: getattr(params, name) for name in names}


def _slots(engine: Engine) -> list[dict[str, Any]]:
    """For the engine's thread."""
    running = {sequence.slot: sequence for sequence in engine.running}
    found = []
    for slot in range(engine.config.max_sequences):
        sequence = running.get(slot)
        entry: dict[str, Any] = {
            "id": slot,
            "n_ctx": engine.config.n_ctx,
            "is_processing": sequence is not None,
        }
        if sequence is not None:
            entry |= {
                "id_task": sequence.priority,
                "state": sequence.state.value,
                "params": _params(sequence.sampler.params),
                "n_prompt_tokens": sequence.n_prompt,
                "n_prompt_tokens_cached": sequence.n_cached,
                "n_prompt_tokens_processed": min(sequence.n_computed, sequence.n_prompt),
                "next_token": {
                    "n_decoded": sequence.n_generated,
                    "n_remain": sequence.max_tokens - sequence.n_generated,
                },
            }
        found.append(entry)
    return found
