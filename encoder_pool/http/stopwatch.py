"""Where the time of a request goes, for its `Server-Timing` header (https://www.w3.org/TR/server-timing).

Stages follow each other without a gap: each begins where the one before ended, so that they add up to the
total, whatever happens in between. Reads the monotonic clock, as the pool does.
"""

from __future__ import annotations

import time

from encoder_pool.http.service import Timings


class Stopwatch:
    """The stages of one request.

    receive     the head is routed, the request admitted, the body read
    parse       the body is taken apart
    identify, prepare, queue, copy, encode   as in `Timings`
    resume      what the pool's call took beside: mostly waiting for the event loop
    serialise   the reply is made
    """

    def __init__(self, started_s: float) -> None:
        """From when the request's head came, on the monotonic clock."""
        self._last_s = started_s
        self._stages: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """The stage ends now, and the next begins."""
        self._stages[stage] = self._since_last()

    def lap_in_pool(self, timings: Timings) -> None:
        """The pool's call ends now: its stages, and what it took beside."""
        inside = {
            "identify": timings.identify_s,
            "prepare": timings.prepare_s,
            "queue": timings.queue_s,
            "copy": timings.copy_s,
            "encode": timings.encode_s,
        }
        self._stages |= inside
        self._stages["resume"] = max(self._since_last() - sum(inside.values()), 0.0)

    def header(self) -> str:
        """All stages and their total, in milliseconds."""
        named = {**self._stages, "total": sum(self._stages.values())}
        return ", ".join(f"{name};dur={seconds * 1e3:.3f}" for name, seconds in named.items())

    def _since_last(self) -> float:
        now = time.monotonic()
        seconds, self._last_s = now - self._last_s, now
        return seconds
