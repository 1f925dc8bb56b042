"""What both clients do alike, as pure functions: URLs, requests, and what an outcome means.

An outcome is an answer of any status, or the error that stands for a request without one.
Knows nothing of sending and waiting.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import httpx

from encoder_pool.client.errors import (
    EncoderError,
    InvalidReplyError,
    UnauthorizedError,
    UnavailableError,
    error_of_reply,
)
from encoder_pool.client.inputs import Upload
from encoder_pool.client.reply import EncodedItem, items_of, shared_items_of
from encoder_pool.delivery.handle import host_identity
from encoder_pool.http.service import Readiness

Outcome: TypeAlias = httpx.Response | EncoderError
Delivery: TypeAlias = Literal["body", "shared_memory"]
"""How embeddings come: shared memory where the server is on this host and has room, else in the body."""

SAFETENSORS = "application/vnd.safetensors"
SHARED_MEMORY = "application/vnd.encoder-pool.shared-memory+json"

KEY_VARIABLE = "ENCODER_POOL_API_KEY"
POLL_S = 0.25
"""Between two looks at a server that is not ready yet."""
READY_TIMEOUT_S = 5.0
"""/ready asks nobody, so a server that answers at all answers at once."""


def root_of(base_url: str) -> str:
    """The application's URL, without the "/v1" that OpenAI's clients want in theirs."""
    return base_url.rstrip("/").removesuffix("/v1")


def key_headers(api_key: str | None) -> dict[str, str]:
    """What tells the server the key, the environment's if none is given; nothing if there is none at all.

    Raises UnauthorizedError for what no header can carry: the HTTP library's own error would show it.
    """
    key = (api_key or os.environ.get(KEY_VARIABLE, "")).strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UnauthorizedError(f"api_key ({KEY_VARIABLE}) is no key: it is not of printable ASCII")
    return {"authorization": f"Bearer {key}"} if key else {}


def encode_request(
    http: httpx.Client | httpx.AsyncClient,
    model: str,
    uploads: Sequence[Upload],
    timeout_s: float,
    delivery: Delivery,
) -> httpx.Request:
    """A multipart request: files travel as they are, without base64."""
    headers = {"accept": SAFETENSORS, "x-deadline-seconds": f"{timeout_s:g}"}
    if delivery == "shared_memory":
        headers |= {
            "accept": f"{SHARED_MEMORY}, {SAFETENSORS};q=0.9",
            "x-encoder-pool-host": host_identity(),
        }
    return http.build_request(
        "POST",
        "/v1/encode",
        data={"model": model},
        files=[("files", (upload.name, upload.data)) for upload in uploads],
        headers=headers,
    )


def items_of_reply(reply: httpx.Response) -> list[EncodedItem]:
    """The items of a good answer. Raises HandleGoneError if its memory cannot be had, InvalidReplyError."""
    is_shared = reply.headers.get("content-type") == SHARED_MEMORY
    return shared_items_of(reply.content) if is_shared else items_of(reply.content)


def ready_request(http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
    """A look at /ready."""
    return http.build_request("GET", "/ready", timeout=READY_TIMEOUT_S)


def settled(outcome: Outcome) -> Outcome:
    """The answer if it is a good one, else the error that it stands for."""
    if isinstance(outcome, httpx.Response) and not outcome.is_success:
        return error_of_reply(outcome)
    return outcome


def document_of(reply: httpx.Response) -> dict[str, Any]:
    """The JSON object of an answer; InvalidReplyError if it is none."""
    try:
        document = json.loads(reply.content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidReplyError("the answer is no JSON object", status_code=reply.status_code)
    return document


def model_names(reply: httpx.Response) -> list[str]:
    """The names in an answer of /v1/models, of which there is at least one."""
    try:
        names = [str(card["id"]) for card in document_of(reply)["data"]]
    except (KeyError, TypeError):
        names = []
    if not names:
        raise InvalidReplyError("the answer lists no models", status_code=reply.status_code)
    return names


def readiness_of(outcome: Outcome) -> Readiness | EncoderError:
    """What /ready said, or why nobody knows."""
    if isinstance(outcome, EncoderError):
        return outcome
    try:
        document = document_of(outcome)
        workers = document["workers"]
        return Readiness(str(document["status"]), int(workers["ready"]), int(workers["total"]))
    except (InvalidReplyError, KeyError, TypeError, ValueError):
        # Ray Serve answers in its own words until the application is up.
        return error_of_reply(outcome)


def is_ready(seen: Readiness | EncoderError) -> bool:
    """Whether a look at /ready found a server that can encode."""
    return isinstance(seen, Readiness) and seen.is_ready


def never_ready(timeout_s: float, seen: Readiness | EncoderError) -> UnavailableError:
    """The error of whoever waited in vain."""
    last = seen.state if isinstance(seen, Readiness) else str(seen)
    return UnavailableError(f"not ready after {timeout_s:g} s; seen last: {last}")
