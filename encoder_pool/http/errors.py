"""Turns every failure of a request into the one error body, names the request, and counts it.

`Edge` is the outermost layer of the application: it notes when a request came, gives it its id, adds the id
to the reply, answers what the routes raise, and times it all. It is pure ASGI, because Starlette's
BaseHTTPMiddleware hides disconnects. Cancellation passes through untouched. Messages never repeat what the
caller sent.
"""

from __future__ import annotations

import logging
import math
import re
import time
import uuid
from collections.abc import Mapping, Sequence

from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails, to_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from encoder_pool.errors import (
    EncodeFailed,
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PoolError,
    Unauthorized,
)
from encoder_pool.http.schema import PART_TYPES
from encoder_pool.metrics.meter import Meter

logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 200
CLIENT_LEFT = 499
"""What is counted in the place of a status when the client did not wait for one."""
OTHER_ROUTE = "other"
"""What is counted for paths that are none of ours."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
FIELDS = frozenset(
    (
        "model",
        "input",
        "encoding_format",
        "type",
        "image_url",
        "url",
        "detail",
        "input_audio",
        "data",
        "format",
        "video_url",
    )
)
"""Names that may appear in `param`; a name that the caller made up may not."""


class Edge:
    """The outermost ASGI layer.

    meter         counts and times every request
    behind_serve  Ray Serve puts x-request-id into every reply itself, taken from the request or made up
                  and added to it; a second one would be joined to it with a comma.
    """

    def __init__(self, app: ASGIApp, *, meter: Meter, behind_serve: bool) -> None:
        self._app = app
        self._meter = meter
        self._behind_serve = behind_serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; the application's lifespan passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get("x-request-id", ""))
        begun, status = time.monotonic(), None
        scope.setdefault("state", {}).update(request_id=request_id, started_s=begun)

        async def named_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not self._behind_serve:
                    message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, named_send)
        except ClientDisconnect:
            logger.info("request %s: the client left before its body was complete", request_id)
        except Exception as error:
            _log(error, request_id)
            if status is not None:
                raise
            answer = as_pool_error(error)
            self._meter.rejections.labels(answer.code).inc()
            await error_response(answer)(scope, receive, named_send)
        finally:
            self._count(scope, status or CLIENT_LEFT, time.monotonic() - begun)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", OTHER_ROUTE)
        self._meter.requests.labels(route, str(status)).inc()
        self._meter.request_seconds.labels(route).observe(seconds)


async def answer_framework_error(request: Request, error: Exception) -> Response:
    """What Starlette and FastAPI raise themselves (unknown path, wrong method), with our body."""
    return error_response(as_pool_error(error), getattr(error, "headers", None))


def as_pool_error(error: Exception) -> PoolError:
    """The error to answer with; Internal for whatever nobody foresaw."""
    if isinstance(error, PoolError):
        return error
    if isinstance(error, RequestValidationError):
        return invalid_body(error.errors())
    if isinstance(error, HTTPException) and error.status_code == NotFound.status:
        return NotFound("no such path; /docs lists the paths")
    if isinstance(error, HTTPException) and error.status_code == MethodNotAllowed.status:
        return MethodNotAllowed("this path does not take that method")
    return Internal("the server failed; its log has the details under this request id")


def error_response(error: PoolError, headers: Mapping[str, str] | None = None) -> Response:
    """The one error body, with the headers that tell a client when to come again, if at all."""
    sent = dict(headers or {})
    if error.retry_after_s is not None:
        sent["retry-after"] = str(math.ceil(error.retry_after_s))
        sent["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1000))
    if isinstance(error, EncodeFailed):
        # Encoding is deterministic: OpenAI's clients would repeat any 5xx.
        sent["x-should-retry"] = "false"
    if isinstance(error, Unauthorized):
        sent["www-authenticate"] = 'Bearer realm="encoder-pool"'
    return Response(to_json(error.body), error.status, sent, "application/json")


def invalid_body(errors: Sequence[ErrorDetails]) -> InvalidRequest:
    """The first of pydantic's errors, without the input that it would repeat."""
    first = errors[0]
    kind, param = first["type"], _param(first["loc"])
    if kind == "json_invalid":
        return InvalidRequest(_capped(first["msg"]), code="invalid_json")
    if kind.startswith("union_tag"):
        accepted = ", ".join(PART_TYPES)
        return InvalidRequest(
            f"`type` of a content part is missing or unknown; accepted: {accepted}",
            code="invalid_content_part",
            param=param,
        )
    if kind == "extra_forbidden":
        return InvalidRequest("the body has an unknown key; known: model, input, encoding_format")
    if kind == "too_short" and param == "input":
        return InvalidRequest("input is empty", param=param)
    in_part = param is not None and param.startswith("input[")
    code = "invalid_content_part" if in_part else "invalid_request"
    return InvalidRequest(_capped(f"{param or 'body'}: {first['msg']}"), code=code, param=param)


def _param(loc: tuple[int | str, ...]) -> str | None:
    """`input[2].image_url.url` for pydantic's ("input", 2, "image_url", "image_url", "ImageUrl", "url")."""
    path = ""
    for position, name in enumerate(loc):
        is_tag = position == 2 and loc[0] == "input"
        if isinstance(name, int):
            path += f"[{name}]"
        elif name in FIELDS and not is_tag:
            path += f".{name}" if path else name
    return path or None


def _capped(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 3] + "..."


def _request_id(given: str) -> str:
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _log(error: Exception, request_id: str) -> None:
    answer = as_pool_error(error)
    if answer.status == Internal.status:
        logger.error("request %s failed", request_id, exc_info=error)
