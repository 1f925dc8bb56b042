"""Which representation an Accept header asks for (RFC 9110, section 12.5.1).

The highest quality wins, then the most specific range, then safetensors before JSON (or the other way
round for a request that gave `encoding_format`). Parameters other than `q` are ignored, and a range
whose `q` is no number is dropped. Knows nothing of how the representations are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from encoder_pool.errors import NotAcceptable

SAFETENSORS = "application/vnd.safetensors"
OCTETS = "application/octet-stream"
JSON = "application/json"
"""OCTETS is safetensors under the name that generic tools ask for."""


class _Range(NamedTuple):
    pattern: str
    quality: float

    @property
    def specificity(self) -> int:
        if self.pattern == "*/*":
            return 0
        return 1 if self.pattern.endswith("/*") else 2

    def matches(self, media_type: str) -> bool:
        kind, _, subtype = self.pattern.partition("/")
        return self.pattern in ("*/*", media_type) or (subtype == "*" and media_type.startswith(f"{kind}/"))


def negotiate(accept: Sequence[str], *, prefers_json: bool) -> str:
    """The media type to answer with, given all Accept headers; NotAcceptable if none will do."""
    ranges = _parse(",".join(accept)) if any(value.strip() for value in accept) else [_Range("*/*", 1.0)]
    order = (JSON, SAFETENSORS, OCTETS) if prefers_json else (SAFETENSORS, JSON, OCTETS)
    # max() keeps the first of equals, so `order` decides ties.
    best = max(order, key=lambda media_type: _appeal(media_type, ranges))
    if _appeal(best, ranges) == (0.0, 0):
        raise NotAcceptable(f"Accept leaves none of {SAFETENSORS}, {OCTETS}, {JSON}", param="Accept")
    return best


def _appeal(media_type: str, ranges: Sequence[_Range]) -> tuple[float, int]:
    matching = [candidate for candidate in ranges if candidate.matches(media_type)]
    specificity = max((candidate.specificity for candidate in matching), default=0)
    quality = max((each.quality for each in matching if each.specificity == specificity), default=0.0)
    return (quality, specificity) if quality > 0 else (0.0, 0)


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
