"""What /docs and /openapi.json say of the encode route, whose body is parsed by hand.

One table, `ERROR_CODES`, lists every code that a caller can meet; the descriptions of the statuses are
made from it. Knows nothing of how requests are served.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from encoder_pool.errors import (
    BodyTimeout,
    DeadlineExceeded,
    EncodeFailed,
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    Overloaded,
    PoolError,
    TooLarge,
    Unauthorized,
    Unavailable,
    UndecodableMedia,
    UnsupportedMedia,
)
from encoder_pool.http.auth import OPEN_PATHS, SCHEME
from encoder_pool.http.body import DEADLINE_HEADER
from encoder_pool.http.negotiate import JSON, OCTETS, SAFETENSORS, SHARED_MEMORY
from encoder_pool.http.schema import EncodeBody, EncodeReply, ErrorBody, SharedReply
from encoder_pool.http.sharing import HOST_HEADER

ERROR_CODES: dict[type[PoolError], tuple[str, ...]] = {
    InvalidRequest: (
        "invalid_request",
        "invalid_json",
        "invalid_content_part",
        "invalid_data_uri",
        "url_not_allowed",
        "invalid_base64",
        "invalid_multipart",
    ),
    Unauthorized: ("missing_api_key", "invalid_api_key"),
    NotFound: ("not_found", "model_not_found"),
    MethodNotAllowed: ("method_not_allowed",),
    NotAcceptable: ("not_acceptable",),
    BodyTimeout: ("body_timeout",),
    TooLarge: (
        "body_too_large",
        "too_many_items",
        "media_too_large",
        "audio_too_long",
        "video_too_long",
        "too_much_work",
        "item_too_large",
        "request_too_large",
    ),
    UnsupportedMedia: ("unsupported_media_type", "wrong_modality", "unsupported_content_type"),
    UndecodableMedia: (
        "undecodable_media",
        "empty_media",
        "image_too_small",
        "aspect_ratio",
        "audio_too_short",
        "no_audio",
        "no_video",
        "bad_grid",
    ),
    Overloaded: ("overloaded",),
    EncodeFailed: ("encode_failed", "not_finite"),
    Internal: ("internal",),
    Unavailable: ("not_ready", "draining", "no_worker", "no_shared_memory"),
    DeadlineExceeded: ("deadline_exceeded",),
}

_HEADERS = {
    "x-request-id": "The request's id: the caller's own if it is sane, else a new one.",
    "Server-Timing": "Milliseconds of `receive`, `parse`, `identify`, `prepare`, `queue`, `copy`, "
    "`encode`, `resume` and `serialise`, one after the other, and of `total`, their sum.",
    "Retry-After": "Seconds after which to come again.",
    "retry-after-ms": "The same in milliseconds.",
    "WWW-Authenticate": "How to bring a key.",
    "x-should-retry": "`false` where the same request will fail again.",
}

ENCODE_PATH = "/v1/encode"
_DESCRIPTION = f"""\
Answers `{SAFETENSORS}` unless `Accept` asks for `{JSON}`: tensors `embeddings.0`, `embeddings.1`, ...
of shape (tokens, width) in the order of the items, and in `__metadata__` the strings `request_id`, `model`
and `items`, the last a JSON list of what `ItemInfo` describes. Items stand or fall together; `param` names
the first bad one.

A caller on the server's own host may name `{SHARED_MEMORY}` in `Accept`, and itself in `{HOST_HEADER}`: where
there is room, the answer is a `SharedReply`, and the rows are in memory that the caller maps. Name
`{SAFETENSORS};q=0.9` beside it to get a body where there is none.
"""


class DocumentedApp(FastAPI):
    """FastAPI whose OpenAPI document has the models of the encode route, and the key if one is needed."""

    def __init__(self, *, needs_key: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self._needs_key = needs_key

    def openapi(self) -> dict[str, Any]:
        """The document; built once."""
        schema = super().openapi()
        schema["paths"] = {ENCODE_PATH: {"post": _encode_operation()}, **schema["paths"]}
        _, extra = models_json_schema(
            [
                (EncodeBody, "validation"),
                (EncodeReply, "serialization"),
                (SharedReply, "serialization"),
                (ErrorBody, "serialization"),
            ],
            ref_template="#/components/schemas/{model}",
        )
        schema["components"]["schemas"].update(extra["$defs"])
        if self._needs_key:
            _add_key(schema)
        return schema


def _add_key(schema: dict[str, Any]) -> None:
    """Every operation needs the key, and may answer 401, but the open ones."""
    scheme = {"type": "http", "scheme": SCHEME, "description": "A key of this service."}
    schema["components"]["securitySchemes"] = {"key": scheme}
    schema["security"] = [{"key": []}]
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            if path in OPEN_PATHS:
                operation["security"] = []
            else:
                operation["responses"][str(Unauthorized.status)] = _error(Unauthorized.status)


def _encode_operation() -> dict[str, Any]:
    return {
        "operationId": "encode",
        "summary": "Turn images and audio clips into embeddings",
        "description": _DESCRIPTION.rstrip(),
        "responses": _encode_responses(),
        "parameters": [
            _header("x-request-id", {"type": "string"}, "Up to 128 of `A-Z a-z 0-9 . _ : / + = @ -`."),
            _header(
                DEADLINE_HEADER,
                {"type": "number", "exclusiveMinimum": 0},
                "Seconds after which the answer is of no use, from when the request's head has arrived; "
                "at most queue.deadline_s, which is the default.",
            ),
            _header(
                HOST_HEADER,
                {"type": "string"},
                "The caller's host, for shared memory: `/proc/sys/kernel/random/boot_id`, the inode of "
                "`/proc/self/ns/net` and the effective user's number, joined by dots.",
            ),
            _query("model", {"type": "string"}),
            _query("encoding_format", {"enum": ["base64", "float"]}),
        ],
        "requestBody": {"required": True, "content": _request_content()},
    }


def _encode_responses() -> dict[str, dict[str, Any]]:
    """All statuses of the encode route: 200 and one for each class of error."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = {
        SAFETENSORS: binary,
        OCTETS: binary,
        JSON: {"schema": _ref("EncodeReply")},
        SHARED_MEMORY: {"schema": _ref("SharedReply")},
    }
    headers = _reply_headers("x-request-id", "Server-Timing")
    responses: dict[str, dict[str, Any]] = {
        "200": {"description": "One embedding for each item.", "content": content, "headers": headers}
    }
    for kind in ERROR_CODES:
        responses[str(kind.status)] = _error(kind.status)
    return responses


def _error(status: int) -> dict[str, Any]:
    kinds = [kind for kind in ERROR_CODES if kind.status == status]
    text = " ".join((kind.__doc__ or "").strip() for kind in kinds)
    codes = ", ".join(f"`{code}`" for kind in kinds for code in ERROR_CODES[kind])
    names = ["x-request-id"]
    if status in (Overloaded.status, Unavailable.status):
        names += ["Retry-After", "retry-after-ms"]
    if status == Unauthorized.status:
        names += ["WWW-Authenticate"]
    if status == EncodeFailed.status:
        names += ["x-should-retry"]
    return {
        "description": f"{text} Codes: {codes}.",
        "content": {JSON: {"schema": _ref("ErrorBody")}},
        "headers": _reply_headers(*names),
    }


def _request_content() -> dict[str, Any]:
    form = {
        "type": "object",
        "required": ["model", "files"],
        "properties": {
            "model": {"type": "string"},
            "encoding_format": {"enum": ["base64", "float"]},
            "files": {
                "type": "array",
                "items": {"type": "string", "format": "binary"},
                "description": "One field for each item. `file`, `image`, `audio` and `video` are other "
                "names for it; what an item is, its bytes say.",
            },
        },
    }
    one = {
        "schema": {"type": "string", "format": "binary", "description": "One item; `model` is in the query."}
    }
    return {
        JSON: {"schema": _ref("EncodeBody")},
        "multipart/form-data": {"schema": form},
        "image/*": one,
        "audio/*": one,
        "video/*": one,
    }


def _header(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": description}


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    description = "Read only if the body is an image, audio or video file."
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


def _reply_headers(*names: str) -> dict[str, Any]:
    return {name: {"description": _HEADERS[name], "schema": {"type": "string"}} for name in names}


def _ref(model: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model}"}
