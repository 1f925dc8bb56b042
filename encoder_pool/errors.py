"""Every error a caller can meet, with its HTTP status, type and code. One table, one body.

PoolError
    InvalidRequest        400  malformed JSON, content part, data URI or multipart body
    Unauthorized          401  no key, or none of this service's
    NotFound              404  unknown path or model
    MethodNotAllowed      405
    NotAcceptable         406  no representation in Accept can be produced
    BodyTimeout           408  the caller took too long to send the body
    TooLarge              413  bytes, pixels, seconds, tokens or items over a limit
    UnsupportedMedia      415  a format or modality this model does not take
    UndecodableMedia      422  well-formed request, unusable media
    Overloaded            429  the queue is full; Retry-After says when to come again
    EncodeFailed          500  the tower could not encode this item
    Internal              500  our own fault
    Unavailable           503  not ready, draining, or no worker left; Retry-After
    DeadlineExceeded      504  the request's own deadline passed

Knows nothing of HTTP libraries: `PoolError.body` is the JSON document, the http package sends it.
Messages name the limit, the value and the setting, and never repeat what the caller sent.
"""

from __future__ import annotations

from typing import ClassVar


class PoolError(Exception):
    """Base of all errors that are answered to a caller."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param
        self.retry_after_s = retry_after_s

    def at(self, param: str) -> PoolError:
        """The same error, placed in the request; a place that is known already stays."""
        return _rebuild(type(self), self.message, self.code, self.param or param, self.retry_after_s)

    @property
    def body(self) -> dict[str, dict[str, str | None]]:
        """The JSON error document (OpenAI's shape)."""
        error = {"message": self.message, "type": self.type, "code": self.code, "param": self.param}
        return {"error": error}

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the keyword fields when an error crosses a process."""
        return (_rebuild, (type(self), self.message, self.code, self.param, self.retry_after_s))


def _rebuild(
    kind: type[PoolError], message: str, code: str, param: str | None, retry_after_s: float | None
) -> PoolError:
    return kind(message, code=code, param=param, retry_after_s=retry_after_s)


class InvalidRequest(PoolError):
    """The request itself is malformed."""

    status, type, default_code = 400, "invalid_request_error", "invalid_request"


class Unauthorized(PoolError):
    """The request has no key, or none of this service's."""

    status, type, default_code = 401, "authentication_error", "invalid_api_key"


class NotFound(PoolError):
    """No such path or model."""

    status, type, default_code = 404, "not_found_error", "not_found"


class MethodNotAllowed(PoolError):
    """The path exists, the method does not."""

    status, type, default_code = 405, "invalid_request_error", "method_not_allowed"


class NotAcceptable(PoolError):
    """No representation named in Accept can be produced."""

    status, type, default_code = 406, "invalid_request_error", "not_acceptable"


class BodyTimeout(PoolError):
    """The caller took too long to send the body."""

    status, type, default_code = 408, "invalid_request_error", "body_timeout"


class TooLarge(PoolError):
    """A documented limit is exceeded."""

    status, type, default_code = 413, "invalid_request_error", "media_too_large"


class UnsupportedMedia(PoolError):
    """A format or modality that this model does not take."""

    status, type, default_code = 415, "invalid_request_error", "unsupported_media_type"


class UndecodableMedia(PoolError):
    """Media that cannot be decoded or that no tower can use."""

    status, type, default_code = 422, "invalid_request_error", "undecodable_media"


class Overloaded(PoolError):
    """The queue is full."""

    status, type, default_code = 429, "rate_limit_error", "overloaded"


class EncodeFailed(PoolError):
    """The tower failed on this item alone."""

    status, type, default_code = 500, "server_error", "encode_failed"


class Internal(PoolError):
    """A fault of ours; details are in the log under the request id."""


class Unavailable(PoolError):
    """Nobody can serve the request now."""

    status, type, default_code = 503, "unavailable_error", "not_ready"


class DeadlineExceeded(PoolError):
    """The request's deadline passed before its embeddings were there."""

    status, type, default_code = 504, "timeout_error", "deadline_exceeded"
