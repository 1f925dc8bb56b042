"""Whether a request may have shared memory: the caller names its host, and it is this one.

Knows nothing of how memory changes hands.
"""

from __future__ import annotations

from starlette.requests import Request

from encoder_pool.config import DeliveryConfig
from encoder_pool.delivery.handle import is_neighbour

HOST_HEADER = "x-encoder-pool-host"


def why_not_shared(request: Request, config: DeliveryConfig) -> str | None:
    """What keeps the request from shared memory, for people; None if nothing does."""
    if not config.is_on:
        return "shared memory is switched off here (delivery.max_bytes)"
    if not is_neighbour(request.headers.get(HOST_HEADER, ""), of_any_user=config.other_users):
        return f"shared memory is for callers on this host, of this user, and {HOST_HEADER} names no such one"
    return None
