"""What a client raises: the server's errors by status and code, and the failures on the way there.

EncoderError
    BadRequestError          400, and every 4xx without a class of its own
    UnauthorizedError        401  no key, or none of the server's: api_key, ENCODER_POOL_API_KEY
    NotFoundError            404  also from Ray Serve, while a route has no replica
    TooLargeError            413
    UnsupportedMediaError    415
    UndecodableMediaError    422
    OverloadedError          429  retry_after_s says when to come again
    ServerFailedError        500  and every 5xx without a class of its own
        EncodeFailedError    500  the tower could not encode this item
    UnavailableError         503  502 from a proxy, too
    DeadlineExceededError    504
    RequestTimeoutError      408  and no answer within the client's own timeout_s
    ConnectionFailedError    -    refused, reset, or closed before the answer
    InvalidReplyError        -    an answer that is not what the server promises

Knows nothing of when to repeat a request beyond `is_retryable`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import httpx

from encoder_pool.errors import DeadlineExceeded, PoolError

MAX_TEXT_CHARS = 200
"""Of a proxy's own error page, which is no JSON."""


class EncoderError(Exception):
    """Base of all errors of the client.

    status_code    HTTP status, None where there was no answer
    code           the server's word for programs, None where a proxy answered
    param          the place in the request, e.g. "files[1]"
    retry_after_s  seconds after which the server asks to come again
    is_retryable   whether the same request may succeed
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        code: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
        is_retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.code = code
        self.param = param
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.is_retryable = is_retryable

    def __str__(self) -> str:
        """The message, with what a person needs to find the request again."""
        facts = {"status": self.status_code, "code": self.code, "param": self.param, "id": self.request_id}
        known = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        return f"{self.message} ({known})" if known else self.message


class BadRequestError(EncoderError):
    """The request is malformed."""


class UnauthorizedError(EncoderError):
    """The server wants a key, or another one."""


class NotFoundError(EncoderError):
    """No such model, or no server under this URL."""


class TooLargeError(EncoderError):
    """A limit of the server is exceeded; the message names it."""


class UnsupportedMediaError(EncoderError):
    """A format or modality that the model does not take."""


class UndecodableMediaError(EncoderError):
    """Media that cannot be decoded or that no tower can use."""


class OverloadedError(EncoderError):
    """The server's queue is full."""


class ServerFailedError(EncoderError):
    """A fault of the server."""


class EncodeFailedError(ServerFailedError):
    """The tower failed on an item of this request."""


class UnavailableError(EncoderError):
    """Nobody can serve the request now."""


class DeadlineExceededError(EncoderError):
    """The server gave the request up after its deadline."""


class RequestTimeoutError(EncoderError):
    """No answer in time."""


class ConnectionFailedError(EncoderError):
    """The connection was refused, reset, or closed before the answer."""


class InvalidReplyError(EncoderError):
    """The answer is not what the server promises."""


_BY_CODE: Mapping[str, type[EncoderError]] = {
    "encode_failed": EncodeFailedError,
    "not_finite": EncodeFailedError,
    "deadline_exceeded": DeadlineExceededError,
}
_BY_STATUS: Mapping[int, type[EncoderError]] = {
    401: UnauthorizedError,
    404: NotFoundError,
    408: RequestTimeoutError,
    413: TooLargeError,
    415: UnsupportedMediaError,
    422: UndecodableMediaError,
    429: OverloadedError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}
_TRANSIENT = frozenset((408, 429, 502, 503, 504))


def error_of_reply(reply: httpx.Response) -> EncoderError:
    """The error that an unsuccessful answer stands for."""
    detail = _detail(reply)
    status, code = reply.status_code, detail.get("code")
    return _kind(status, code)(
        detail.get("message")
        or f"HTTP {status}: {reply.text[:MAX_TEXT_CHARS].strip() or reply.reason_phrase}",
        status_code=status,
        code=code,
        param=detail.get("param"),
        request_id=reply.headers.get("x-request-id"),
        retry_after_s=_retry_after_s(reply.headers),
        is_retryable=_is_retryable(status, code, reply.headers),
    )


def error_of_pool(error: PoolError) -> EncoderError:
    """The error that a pool's own stands for, where no HTTP is between the two."""
    return _kind(error.status, error.code)(
        error.message,
        status_code=error.status,
        code=error.code,
        param=error.param,
        retry_after_s=error.retry_after_s,
        is_retryable=error.status in _TRANSIENT and not isinstance(error, DeadlineExceeded),
    )


def error_of_transport(error: httpx.TransportError) -> EncoderError:
    """The error that a request without an answer stands for."""
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return RequestTimeoutError(f"no answer in time ({type(error).__name__}; timeout_s)")
    kind = type(error).__name__
    can_succeed = not isinstance(error, httpx.UnsupportedProtocol)
    return ConnectionFailedError(f"the connection failed ({kind}: {error})", is_retryable=can_succeed)


def _kind(status: int, code: str | None) -> type[EncoderError]:
    fallback = BadRequestError if status < 500 else ServerFailedError
    return _BY_CODE.get(code or "") or _BY_STATUS.get(status, fallback)


def _detail(reply: httpx.Response) -> dict[str, Any]:
    """The server's error object; empty where a proxy answered in its own words."""
    try:
        document = json.loads(reply.content)
    except ValueError:
        return {}
    detail = document.get("error") if isinstance(document, dict) else None
    return detail if isinstance(detail, dict) else {}


def _is_retryable(status: int, code: str | None, headers: httpx.Headers) -> bool:
    if headers.get("x-should-retry") == "false" or code == "deadline_exceeded":
        return False
    # One that is not the pool's own comes from Ray Serve or a proxy: a 5xx e.g. when a replica died, a 404
    # while a route has no replica, because its only one died a moment ago.
    is_foreign = code is None and (status >= 500 or status == 404)
    return status in _TRANSIENT or is_foreign


def _retry_after_s(headers: httpx.Headers) -> float | None:
    """In seconds; a date, which the server never sends, counts as nothing."""
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    return None
