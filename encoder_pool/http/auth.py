"""Lets nobody in without a key, before anything of the body is read.

Pure ASGI, like `errors.Edge`, which stands around it and answers what it raises. `/health` and `/ready` are
open, because load balancers have no keys; all else is closed, unknown paths included.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from encoder_pool.auth import Keys
from encoder_pool.errors import Unauthorized

OPEN_PATHS = ("/health", "/ready")
SCHEME = "bearer"


class KeyGuard:
    """The ASGI layer. There are no websockets, so that what is no request is the application's lifespan."""

    def __init__(self, app: ASGIApp, *, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or raise Unauthorized."""
        if scope["type"] == "http" and _route_path(scope) not in OPEN_PATHS:
            self._check(Headers(scope=scope).getlist("authorization"))
        await self._app(scope, receive, send)

    def _check(self, given: list[str]) -> None:
        if len(given) != 1:
            raise Unauthorized("a key is needed: Authorization: Bearer <key>", code="missing_api_key")
        scheme, _, key = given[0].partition(" ")
        # Headers decodes latin-1, so that this is what was sent.
        if scheme.lower() != SCHEME or not self._keys.accept(key.strip().encode("latin-1")):
            raise Unauthorized("the key is not one of this service's")


def _route_path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/"))
