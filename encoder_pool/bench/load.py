"""A load that rises and falls, and what its callers saw of a running pool, second by second.

Requests arrive when they arrive (an open loop), whatever became of those before; each is sent by the
project's own client, which comes again when it is told to. Knows the pool by HTTP alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from encoder_pool.bench.paced import LEAST_TOKENS, paced_item
from encoder_pool.client import AsyncEncoderClient, EncoderError

_SEED = 1
_SIZES = tuple(range(LEAST_TOKENS, 513, 64))
_CLIENTS = 16
"""Each keeps a hundred connections at most; a burst has more requests on their way."""


class Phase(NamedTuple):
    """So many tokens a second, for so many seconds."""

    tokens_per_s: float
    seconds: float


class Arrival(NamedTuple):
    """A request of one item: when it is sent, in seconds from the start, and its tokens."""

    at: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Second:
    """What happened in one second of the run.

    offered, answered  tokens of the requests that were sent, and of those that were answered
    started            replicas that have a process, also those that do not serve yet
    replicas           that report to the pool's ledger; held_tokens is the sum of theirs
    p50_ms, p99_ms     from sending to the answer, of the requests sent in this second; None without any
    lost               requests sent in this second that ended without embeddings
    """

    second: int
    offered: int
    answered: int
    started: int
    replicas: int
    held_tokens: int
    p50_ms: float | None
    p99_ms: float | None
    lost: int


@dataclass
class _Tally:
    offered: int = 0
    answered: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    lost: int = 0


def arrivals(phases: Sequence[Phase]) -> Iterator[Arrival]:
    """Requests at random times, with these rates on average; the same ones every time."""
    draw = random.Random(_SEED)
    mean_tokens = sum(_SIZES) / len(_SIZES)
    begin = 0.0
    for phase in phases:
        end = begin + phase.seconds
        at = begin + draw.expovariate(phase.tokens_per_s / mean_tokens)
        while at < end:
            yield Arrival(at, draw.choice(_SIZES))
            at += draw.expovariate(phase.tokens_per_s / mean_tokens)
        begin = end


async def drive(
    url: str, phases: Sequence[Phase], count_started: Callable[[], int], say: Callable[[str, float], None]
) -> tuple[Second, ...]:
    """Send the load and watch the pool, until the load is over and every request has ended.

    count_started  the replicas that have a process
    """
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncEncoderClient(url, timeout_s=120, max_retries=20))
            for _ in range(_CLIENTS)
        ]
        while (view := (await clients[0].info())["pool"]) is None:
            await asyncio.sleep(0.1)
        run = _Run(clients, count_started, view, time.monotonic())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run.watch(sum(phase.seconds for phase in phases), say))
            for serial, arrival in enumerate(arrivals(phases)):
                await asyncio.sleep(arrival.at - run.elapsed_s)
                tasks.create_task(run.request(serial, arrival))
        return tuple(run.seconds())


class _Run:
    def __init__(
        self,
        clients: Sequence[AsyncEncoderClient],
        count_started: Callable[[], int],
        view: dict[str, Any],
        begun: float,
    ) -> None:
        self._clients = clients
        self._count_started = count_started
        self._view = view
        self._begun = begun
        self._tallies: dict[int, _Tally] = defaultdict(_Tally)
        self._seen = {0: (count_started(), view)}

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    async def request(self, serial: int, arrival: Arrival) -> None:
        begun = self.elapsed_s
        sent = self._tallies[int(begun)]
        sent.offered += arrival.tokens
        client = self._clients[serial % len(self._clients)]
        try:
            await client.encode(paced_item(serial, arrival.tokens))
        except EncoderError:
            sent.lost += 1
        else:
            ended = self.elapsed_s
            sent.latencies_ms.append((ended - begun) * 1e3)
            self._tallies[int(ended)].answered += arrival.tokens

    async def watch(self, total_s: float, say: Callable[[str, float], None]) -> None:
        """Look at the pool each second, or as often as this process gets to it."""
        while (second := int(self.elapsed_s)) < total_s:
            # A replica that has just begun knows nothing of the others yet.
            view = self._view = (await self._clients[0].info())["pool"] or self._view
            started = await asyncio.to_thread(self._count_started)
            self._seen[second] = (started, view)
            seen = f"{started} replicas, {_live(view)} of them serve, {_held(view)} tokens held"
            say(f"{self._tallies[max(second - 1, 0)].offered} tokens offered; {seen}", second / total_s)
            await asyncio.sleep(max(second + 1 - self.elapsed_s, 0))

    def seconds(self) -> Iterator[Second]:
        """All in which anything was sent or answered; the pool as it was seen last where nobody looked."""
        started, view = self._seen[0]
        for second in range(max(*self._seen, *self._tallies) + 1):
            started, view = self._seen.get(second, (started, view))
            tally = self._tallies[second]
            yield Second(
                second=second,
                offered=tally.offered,
                answered=tally.answered,
                started=started,
                replicas=_live(view),
                held_tokens=_held(view),
                p50_ms=quantile(tally.latencies_ms, 0.5),
                p99_ms=quantile(tally.latencies_ms, 0.99),
                lost=tally.lost,
            )


def _live(view: dict[str, Any]) -> int:
    return sum(not row["is_stale"] for row in view["replicas"])


def _held(view: dict[str, Any]) -> int:
    return int(view["held"].get("tokens", 0))


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value that so large a share of them does not exceed; None of none."""
    if not values:
        return None
    return round(sorted(values)[math.ceil(share * len(values)) - 1], 1)
