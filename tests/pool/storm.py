"""Requests in gusts: many at once, of which some leave and some miss their deadline while the shard is held.

Who does what is drawn beforehand and waits for what it needs: for items that are in the queue, not for a
moment. So in every run, on a fast machine and a slow one, some requests leave items in the queue, some miss
their deadline there, and equal items meet on their way. How threads take turns is left to the machine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from encoder_pool.core import Media
from encoder_pool.errors import PoolError
from encoder_pool.http.service import Encoded, Reservation
from encoder_pool.pool.flights import Flight
from encoder_pool.pool.places import Rows
from encoder_pool.pool.pool import Pool
from tests.pool.local_pool import HASTY_S, PATIENT_S, attempt, pass_time, until
from tests.pool.local_shard import LocalShard

TURNS = 60
"""Turns of the event loop, at most, by which requests of one gust are apart."""


class Fate(Enum):
    """The last three leave: when their items wait, at any moment, and while the shard works."""

    STAYS = auto()
    EXPIRES = auto()
    LEAVES = auto()
    SLIPS_AWAY = auto()
    LEAVES_LATE = auto()


FATES = [Fate.STAYS] * 8 + [Fate.EXPIRES, Fate.LEAVES, Fate.SLIPS_AWAY, Fate.LEAVES_LATE] * 2


class Request(NamedTuple):
    """It comes so many turns after its gust has begun."""

    items: tuple[bytes, ...]
    fate: Fate = Fate.STAYS
    turns: int = 0

    @staticmethod
    def drawn(items: Sequence[bytes], rng: random.Random) -> Request:
        return Request(tuple(items), rng.choice(FATES), rng.randrange(TURNS))


class Outcome(NamedTuple):
    """What a request got; None if it had left."""

    request: Request
    result: Encoded | PoolError | None


Attempt = asyncio.Task[Encoded | PoolError]


class Storm:
    """Over one pool and its shard, which is held from now until the first gust has waited."""

    def __init__(self, pool: Pool, shard: LocalShard) -> None:
        self._pool = pool
        self._shard = shard
        self._attempts: dict[Attempt, Request] = {}
        self._leaving: list[asyncio.Task[None]] = []
        self._launched: set[asyncio.Task[Any] | None] = set()
        self._launch = pool._launch
        pool._launch = self._note_launch  # type: ignore[method-assign]
        shard.hold()

    async def gust(self, requests: Sequence[Request]) -> None:
        """Returns while the shard is at the items, and those of the gusts before."""
        attempts = {asyncio.create_task(self._attempt(request)): request for request in requests}
        self._attempts |= attempts
        self._leave_in_turns(attempts, Fate.SLIPS_AWAY)
        await _turns(TURNS // 2)  # some come while the shard is still at the gust before
        self._shard.hold()
        await until(lambda: all(task.done() or task in self._launched for task in attempts))
        for task in _of_fate(attempts, Fate.LEAVES):
            task.cancel()
        pass_time(HASTY_S)
        await until(lambda: all(task.done() for task in _of_fate(attempts, Fate.EXPIRES)))
        self._leave_in_turns(attempts, Fate.LEAVES_LATE)
        self._shard.let_go()

    async def outcomes(self) -> list[Outcome]:
        """What became of all requests, once they have ended."""
        await until(lambda: all(task.done() for task in (*self._attempts, *self._leaving)))
        return [
            Outcome(request, None if task.cancelled() else task.result())
            for task, request in self._attempts.items()
        ]

    async def _attempt(self, request: Request) -> Encoded | PoolError:
        await _turns(request.turns)
        deadline_s = HASTY_S if request.fate is Fate.EXPIRES else PATIENT_S
        return await attempt(self._pool, *request.items, deadline_s=deadline_s)

    def _leave_in_turns(self, attempts: dict[Attempt, Request], fate: Fate) -> None:
        for task in _of_fate(attempts, fate):
            self._leaving.append(asyncio.create_task(_cancel_after(2 * attempts[task].turns, task)))

    def _note_launch(
        self,
        flights: Sequence[Flight],
        media: Sequence[Media],
        places: Sequence[Rows | None],
        reservation: Reservation,
    ) -> None:
        self._launched.add(asyncio.current_task())
        self._launch(flights, media, places, reservation)


def _of_fate(attempts: dict[Attempt, Request], fate: Fate) -> list[Attempt]:
    return [task for task, request in attempts.items() if request.fate is fate]


async def _cancel_after(turns: int, task: Attempt) -> None:
    await _turns(turns)
    task.cancel()


async def _turns(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
