"""The routes of one model's pool as an ASGI application.

The way of a request is `encode`: headers, admission, body, items, embeddings, reply. Everything that takes
time in proportion to the body runs in a thread. Ray Serve mounts the application under a prefix
(`root_path`), and cancels the handler when a client leaves, so nothing here watches for disconnects.
Knows nothing of Ray or torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from encoder_pool.auth import Keys
from encoder_pool.errors import Unavailable
from encoder_pool.http.auth import KeyGuard
from encoder_pool.http.body import Deadline, deadline_of, read_body
from encoder_pool.http.errors import Edge, answer_framework_error
from encoder_pool.http.negotiate import JSON, negotiate
from encoder_pool.http.openapi import DESCRIPTION, DocumentedApp, encode_operation, encode_responses
from encoder_pool.http.parse import EncodeRequest, check_content_type, parse
from encoder_pool.http.schema import Encoding, HealthReply, ModelCard, ModelList, ReadyReply, WorkerCount
from encoder_pool.http.service import PoolService, Reservation, Timings
from encoder_pool.http.wire import Answer, ChunkedResponse, json_document, safetensors_chunks


def build_app(service: PoolService, *, keys: Keys | None = None, behind_serve: bool = False) -> FastAPI:
    """The application of one pool.

    keys          what callers must bring one of; None lets everybody in
    behind_serve  whether Ray Serve adds x-request-id to the replies, as it does by itself
    """
    app = DocumentedApp(
        title=f"encoder pool: {service.config.model.name}",
        version=version("encoder-pool"),
        redoc_url=None,
        redirect_slashes=False,
        needs_key=keys is not None,
    )
    if keys is not None:
        app.add_middleware(KeyGuard, keys=keys)
    app.add_middleware(Edge, behind_serve=behind_serve)
    app.add_exception_handler(HTTPException, answer_framework_error)
    app.add_exception_handler(RequestValidationError, answer_framework_error)
    _add_encode(app, service)
    _add_status(app, service)
    return app


def _add_encode(app: FastAPI, service: PoolService) -> None:
    @app.post(
        "/v1/encode",
        operation_id="encode",
        summary="Turn images and audio clips into embeddings",
        description=DESCRIPTION,
        responses=encode_responses(),
        openapi_extra=encode_operation(),
        response_class=Response,
    )
    async def encode(request: Request) -> Response:
        started = time.perf_counter()
        deadline = deadline_of(request, service.config.queue)
        check_content_type(request.headers.get("content-type", ""))
        accept = request.headers.getlist("accept")
        # What the body may prefer decides ties only: if nothing will do, nothing has to be read.
        negotiate(accept, prefers_json=False)
        with service.admit() as reservation:
            asked = await _receive(request, service, reservation, deadline)
            media_type = negotiate(accept, prefers_json=asked.encoding is not None)
            encoded = await service.encode(asked.media, reservation, deadline.left_s())
        answer = Answer(request.state.request_id, service.config.model.name, encoded.embeddings)
        headers = {"server-timing": _server_timing(encoded.timings, time.perf_counter() - started)}
        return await _reply(answer, media_type, asked.encoding or "base64", headers)


async def _receive(
    request: Request, service: PoolService, reservation: Reservation, deadline: Deadline
) -> EncodeRequest:
    chunks = await read_body(request, service.config.limits, reservation, deadline)
    content_type = request.headers.get("content-type", "")
    return await asyncio.to_thread(parse, chunks, content_type, request.query_params, service)


async def _reply(answer: Answer, media_type: str, encoding: Encoding, headers: dict[str, str]) -> Response:
    if media_type == JSON:
        document = await asyncio.to_thread(json_document, answer, encoding)
        return ChunkedResponse([document], media_type, headers)
    return ChunkedResponse(safetensors_chunks(answer), media_type, headers)


def _server_timing(timings: Timings, total_s: float) -> str:
    """https://www.w3.org/TR/server-timing; durations in milliseconds."""
    stages = {
        "prepare": timings.prepare_s,
        "queue": timings.queue_s,
        "encode": timings.encode_s,
        "total": total_s,
    }
    return ", ".join(f"{name};dur={seconds * 1e3:.3f}" for name, seconds in stages.items())


def _add_status(app: FastAPI, service: PoolService) -> None:
    cards = _model_cards(service.config.model.name, service.config.model.aliases)

    @app.get("/health", operation_id="health", summary="Whether the process is alive; asks nobody")
    async def health() -> HealthReply:
        return HealthReply(status="alive")

    @app.get(
        "/ready",
        operation_id="ready",
        summary="Whether this replica can encode now",
        responses={503: {"model": ReadyReply, "description": "It cannot."}},
    )
    async def ready(response: Response) -> ReadyReply:
        state = service.readiness
        response.status_code = 200 if state.is_ready else Unavailable.status
        workers = WorkerCount(ready=state.workers_ready, total=state.workers_total)
        return ReadyReply(status=state.state, workers=workers)

    @app.get("/info", operation_id="info", summary="Effective configuration, ladder, limits and counters")
    async def info() -> Response:
        return Response(to_json(service.info()), media_type=JSON)

    @app.get("/v1/models", operation_id="models", summary="The names that requests may give")
    async def models() -> ModelList:
        return ModelList(object="list", data=cards)


def _model_cards(name: str, aliases: Sequence[str]) -> list[ModelCard]:
    created = int(time.time())
    return [
        ModelCard(
            id=known,
            object="model",
            created=created,
            owned_by="encoder-pool",
            root=name,
            parent=None if known == name else name,
        )
        for known in (name, *aliases)
    ]
