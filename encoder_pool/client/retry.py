"""When to repeat a request. Encoding is pure, so repeating one is always safe.

Knows nothing of clocks or connections: it answers with seconds to wait, or None to give up.
"""

from __future__ import annotations

from dataclasses import dataclass

from encoder_pool.client.errors import EncoderError

FIRST_WAIT_S = 0.5
LONGEST_BACKOFF_S = 8.0
LONGEST_WAIT_S = 60.0
"""A server that asks for more patience than this is better told to the caller."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Up to `max_retries` repetitions of a request."""

    max_retries: int

    def wait_s(self, failure: EncoderError, attempt: int, jitter: float) -> float | None:
        """Seconds to wait before the next attempt, None to give up.

        attempt  failures before this one
        jitter   uniform in [0, 1), so that clients who failed together do not come back together
        """
        if not failure.is_retryable or attempt >= self.max_retries:
            return None
        asked_s = failure.retry_after_s
        if asked_s is None:
            return min(FIRST_WAIT_S * 2.0**attempt, LONGEST_BACKOFF_S) * (1 + jitter) / 2
        return asked_s * (1 + jitter / 10) if asked_s <= LONGEST_WAIT_S else None
