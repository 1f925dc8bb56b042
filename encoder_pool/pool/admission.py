"""The door of a replica: how many tokens, bytes and requests it holds before it answers 429.

`Retry-After` is computed: what is held, over the tokens a second that were measured lately. Knows
nothing of queues or workers; whoever is let in gives back what it holds by leaving the `with` block, but
for what it handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from encoder_pool.config import QueueConfig
from encoder_pool.errors import Overloaded, TooLarge

RATE_HALF_LIFE_S = 10.0
"""The measured rate forgets half of what it knew in this time."""
LONGEST_RETRY_S = 60.0


class Rate(Protocol):
    """How fast a replica encodes."""

    @property
    def tokens_per_s(self) -> float:
        """Never zero."""
        ...


class TokenRate:
    """Tokens a second of one worker while there was work, as an average that forgets."""

    def __init__(self, tokens: float, busy_s: float) -> None:
        """Start from one measurement, which weighs as much as its seconds."""
        self._tokens = tokens
        self._seconds = busy_s

    def observe(self, tokens: int, busy_s: float) -> None:
        """Count tokens that took the worker so many seconds."""
        keep = 0.5 ** (busy_s / RATE_HALF_LIFE_S)
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + busy_s

    @property
    def tokens_per_s(self) -> float:
        """The rate; never zero."""
        return max(self._tokens / self._seconds, 1e-3)


class Reservation:
    """Bytes and tokens that one request holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.held_bytes = 0
        self.held_tokens = 0

    def add_bytes(self, num_bytes: int) -> None:
        """Hold so many bytes more. Raises Overloaded; TooLarge for more than a replica ever holds."""
        self._admission.take_bytes(num_bytes, self.held_bytes)
        self.held_bytes += num_bytes

    def add_tokens(self, tokens: int) -> None:
        """Hold so many tokens more. Raises Overloaded; TooLarge for more than the queue ever holds."""
        self._admission.take_tokens(tokens, self.held_tokens)
        self.held_tokens += tokens

    def hand_over(self, num_bytes: int, tokens: int) -> Callable[[], None]:
        """Let go of so much of it: it stays held until what is returned is called, once."""
        self.held_bytes -= num_bytes
        self.held_tokens -= tokens
        return partial(self._admission.give_back, num_bytes, tokens)


class Admission:
    """Counts what the replica holds."""

    def __init__(self, config: QueueConfig, rate: Rate) -> None:
        self._config = config
        self._rate = rate
        self.requests = 0
        self.tokens = 0
        self.bytes = 0
        self.admitted_requests = 0
        self.admitted_tokens = 0
        self.shed_requests = 0

    @contextmanager
    def request(self) -> Iterator[Reservation]:
        """Let a request in for the length of the block, or raise Overloaded."""
        self._refuse_beyond("requests", self.requests, 1, self._config.max_requests, "queue.max_requests")
        self._refuse_beyond("tokens", self.tokens, 1, self._config.max_tokens, "queue.max_tokens")
        reservation = Reservation(self)
        self.requests += 1
        self.admitted_requests += 1
        try:
            yield reservation
        finally:
            self.requests -= 1
            self.give_back(reservation.held_bytes, reservation.held_tokens)

    def take_bytes(self, num_bytes: int, own: int) -> None:
        """Count bytes in for a request that holds `own` already. Raises Overloaded or TooLarge."""
        self._refuse_beyond("bytes", self.bytes, num_bytes, self._config.max_bytes, "queue.max_bytes", own)
        self.bytes += num_bytes

    def take_tokens(self, tokens: int, own: int) -> None:
        """Count tokens in for a request that holds `own` already. Raises Overloaded or TooLarge."""
        self._refuse_beyond("tokens", self.tokens, tokens, self._config.max_tokens, "queue.max_tokens", own)
        self.tokens += tokens
        self.admitted_tokens += tokens

    def give_back(self, num_bytes: int, tokens: int) -> None:
        """Count out what was counted in."""
        self.bytes -= num_bytes
        self.tokens -= tokens

    @property
    def shed_tokens(self) -> float:
        """Tokens of the refused requests, were they like the admitted ones: most are refused unread."""
        return self.shed_requests * self.admitted_tokens / max(self.admitted_requests, 1)

    @property
    def retry_after_s(self) -> float:
        """Seconds until about half of what is held will be done."""
        return min(max(self.tokens / self._rate.tokens_per_s / 2, 1.0), LONGEST_RETRY_S)

    def _refuse_beyond(self, what: str, held: int, more: int, limit: int, setting: str, own: int = 0) -> None:
        if own + more > limit:
            raise TooLarge(
                f"the request needs {own + more} {what}; a replica holds at most {limit} ({setting})",
                code="request_too_large",
            )
        if held + more > limit:
            self.shed_requests += 1
            raise Overloaded(
                f"the replica holds {held} {what} and this request brings {more}; "
                f"the limit is {limit} ({setting})",
                retry_after_s=self.retry_after_s,
            )
