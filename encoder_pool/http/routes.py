"""The routes of one model's pool as an ASGI application.

The way of a request is `encode`: headers, admission, body, items, embeddings, reply. What takes time in
proportion to a large body runs in a thread. Ray Serve mounts the application under a prefix
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
from starlette.routing import Match, Route
from starlette.types import Scope

from encoder_pool.auth import Keys
from encoder_pool.errors import Unavailable
from encoder_pool.http.auth import KeyGuard
from encoder_pool.http.body import Deadline, deadline_of, read_body
from encoder_pool.http.errors import Edge, answer_framework_error
from encoder_pool.http.negotiate import JSON, SHARED_MEMORY, negotiate
from encoder_pool.http.openapi import ENCODE_PATH, DocumentedApp
from encoder_pool.http.parse import EncodeRequest, body_kind, check_content_type, parse
from encoder_pool.http.schema import (
    Encoding,
    ErrorBody,
    HealthReply,
    ModelCard,
    ModelList,
    ReadyReply,
    WorkerCount,
)
from encoder_pool.http.service import PoolService, Reservation, Shared
from encoder_pool.http.sharing import why_not_shared
from encoder_pool.http.stopwatch import Stopwatch
from encoder_pool.http.wire import (
    Answer,
    ChunkedResponse,
    json_document,
    safetensors_chunks,
    shared_document,
)
from encoder_pool.metrics.families import CONTENT_TYPE

SMALL_BODY_BYTES = 1 << 16
"""Parsing no more than this takes less than handing it to a thread."""


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
    app.add_middleware(Edge, meter=service.meter, behind_serve=behind_serve)
    app.add_exception_handler(HTTPException, answer_framework_error)
    app.add_exception_handler(RequestValidationError, answer_framework_error)
    _add_encode(app, service)
    _add_status(app, service)
    return app


class _PlainRoute(Route):
    """A route without FastAPI's layers, which take a tenth of a small request's time and have nothing to do.

    It tells its path to `Edge`, as FastAPI's own routes do.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See Route."""
        match, found = super().matches(scope)
        return match, {**found, "route": self}


def _add_encode(app: FastAPI, service: PoolService) -> None:
    async def encode(request: Request) -> Response:
        watch = Stopwatch(request.state.started_s)
        deadline = deadline_of(request, service.config.queue)
        check_content_type(request.headers.get("content-type", ""))
        accept = tuple(request.headers.getlist("accept"))
        why_not = why_not_shared(request, service.config.delivery)
        # What the body may prefer decides ties only: if nothing will do, nothing has to be read.
        negotiate(accept, prefers_json=False, why_not_shared=why_not)
        with service.admit() as reservation:
            asked = await _receive(request, service, reservation, deadline, watch)
            wanted = negotiate(accept, prefers_json=asked.encoding is not None, why_not_shared=why_not)
            encoded = await service.encode(asked.media, reservation, deadline.left_s(), wanted.sharing)
            watch.lap_in_pool(encoded.timings)
        answer = Answer(request.state.request_id, service.config.model.name, encoded.embeddings)
        with service.meter.serialize_seconds.time():
            if encoded.shared is not None:
                return _shared_reply(answer, encoded.shared, watch)
            assert wanted.body is not None, "shared memory is refused by an error where nothing else will do"
            return await _reply(answer, wanted.body, asked.encoding or "base64", watch)

    app.router.routes.append(_PlainRoute(ENCODE_PATH, encode, methods=["POST"]))


async def _receive(
    request: Request, service: PoolService, reservation: Reservation, deadline: Deadline, watch: Stopwatch
) -> EncodeRequest:
    chunks = await read_body(request, service.config.limits, reservation, deadline)
    watch.lap("receive")
    content_type = request.headers.get("content-type", "")
    body = chunks, content_type, request.query_params, service
    is_small = sum(map(len, chunks)) <= SMALL_BODY_BYTES
    asked = parse(*body) if is_small else await asyncio.to_thread(parse, *body)
    watch.lap("parse")
    service.meter.media_bytes.labels(body_kind(content_type)).inc(sum(len(one.data) for one in asked.media))
    return asked


def _shared_reply(answer: Answer, shared: Shared, watch: Stopwatch) -> Response:
    document = shared_document(answer, shared)
    watch.lap("serialise")
    return Response(document, 200, {"server-timing": watch.header()}, SHARED_MEMORY)


async def _reply(answer: Answer, media_type: str, encoding: Encoding, watch: Stopwatch) -> Response:
    chunks: list[bytes | memoryview]
    if media_type == JSON:
        chunks = [await asyncio.to_thread(json_document, answer, encoding)]
    else:
        chunks = safetensors_chunks(answer)
    watch.lap("serialise")
    return ChunkedResponse(chunks, media_type, {"server-timing": watch.header()})


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

    @app.get(
        "/metrics",
        operation_id="metrics",
        summary="Counters, gauges and histograms of all replicas, for Prometheus",
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."},
            503: {"model": ErrorBody, "description": "The pool's ledger has not answered lately."},
        },
    )
    async def metrics() -> Response:
        return Response(await asyncio.to_thread(service.metrics), media_type=CONTENT_TYPE)

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
