"""Which representation an Accept header asks for (RFC 9110, section 12.5.1).

The highest quality wins, then the most specific range, then safetensors before JSON (or the other way
round for a request that gave `encoding_format`). Shared memory is chosen by its own name only, never by a
range, and only over a body that is wanted less. Parameters other than `q` are ignored, and a range whose `q`
is no number is dropped. Knows nothing of how the representations are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from encoder_pool.errors import NotAcceptable
from encoder_pool.http.service import Sharing

SAFETENSORS = "application/vnd.safetensors"
OCTETS = "application/octet-stream"
JSON = "application/json"
"""OCTETS is safetensors under the name that generic tools ask for."""
SHARED_MEMORY = "application/vnd.encoder-pool.shared-memory+json"
BY_NAME = 2
"""The specificity of a range that is one media type."""
NOTHING = (0.0, 0)
"""The appeal of what is not wanted."""


class _Range(NamedTuple):
    pattern: str
    quality: float

    @property
    def specificity(self) -> int:
        if self.pattern == "*/*":
            return 0
        return 1 if self.pattern.endswith("/*") else BY_NAME

    def matches(self, media_type: str) -> bool:
        kind, _, subtype = self.pattern.partition("/")
        return self.pattern in ("*/*", media_type) or (subtype == "*" and media_type.startswith(f"{kind}/"))


class Choice(NamedTuple):
    """What to answer with.

    body     the media type of a body; None where only shared memory will do
    sharing  whether to share memory instead
    """

    body: str | None
    sharing: Sharing


@lru_cache(maxsize=64)
def negotiate(accept: tuple[str, ...], *, prefers_json: bool, why_not_shared: str | None) -> Choice:
    """What all Accept headers ask for; NotAcceptable if nothing will do.

    why_not_shared  what keeps this request from shared memory, for people; None if nothing does
    """
    ranges = _parse(",".join(accept)) if any(value.strip() for value in accept) else [_Range("*/*", 1.0)]
    order = (JSON, SAFETENSORS, OCTETS) if prefers_json else (SAFETENSORS, JSON, OCTETS)
    # max() keeps the first of equals, so `order` decides ties.
    best = max(order, key=lambda media_type: _appeal(media_type, ranges))
    appeal, shared = _appeal(best, ranges), _appeal(SHARED_MEMORY, ranges)
    body = best if appeal > NOTHING else None
    asks_to_share = shared[1] == BY_NAME and shared > appeal
    if asks_to_share and why_not_shared is None:
        return Choice(body, Sharing.ALWAYS if body is None else Sharing.IF_ROOM)
    if body is None:
        why = f"; {why_not_shared}" if asks_to_share else ""
        raise NotAcceptable(f"Accept leaves none of {SAFETENSORS}, {OCTETS}, {JSON}{why}", param="Accept")
    return Choice(body, Sharing.NEVER)


def _appeal(media_type: str, ranges: Sequence[_Range]) -> tuple[float, int]:
    matching = [candidate for candidate in ranges if candidate.matches(media_type)]
    specificity = max((candidate.specificity for candidate in matching), default=0)
    quality = max((each.quality for each in matching if each.specificity == specificity), default=0.0)
    return (quality, specificity) if quality > 0 else NOTHING


def _parse(accept: str) -> list[_Range]:
    ranges = []
    for element in accept.split(","):
        pattern, *parameters = (piece.strip().lower() for piece in element.split(";"))
        weights = [value for name, _, value in (p.partition("=") for p in parameters) if name.strip() == "q"]
        quality = _weight(weights[0]) if weights else 1.0
        if pattern and quality is not None:
            ranges.append(_Range(pattern, quality))
    return ranges


def _weight(text: str) -> float | None:
    whole, _, fraction = text.strip().partition(".")
    if not (whole + fraction).isdecimal() or whole not in ("0", "1"):
        return None
    return min(float(f"{whole}.{fraction or 0}"), 1.0)
