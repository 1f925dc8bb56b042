"""A work-conserving FIFO batcher by cost, in pure asyncio.

A pack is formed when a worker asks for one and not before: no timer, no early binding. (Serve's own
`@serve.batch` cuts batches on a timer while the worker is busy, sends misfits to the back of the queue,
and hangs for ever when its size function raises.) The head of the queue is always in the next pack, so
nothing starves. Jobs whose caller left, or whose deadline passed, are dropped before they cost anything; so
are those that have less time left than the last pack took. Else, of a queue as long as its deadlines, a
worker would encode all the time what nobody waits for any more when it ends. Every job ends exactly once.

Knows nothing of GPUs, towers, Ray or HTTP. How a pack is chosen and what time it is are handed in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from encoder_pool.core import Cost, Embedding, Pack, PreparedItem
from encoder_pool.errors import DeadlineExceeded, PoolError

WINDOW = 64
"""Jobs from the head of the queue that one plan looks at."""
OLD = 0.25
"""Of the time that a job has in the queue."""


Choose = Callable[[Sequence[Cost]], Pack]
"""Given the costs at the head of the queue, the next pack; it holds the first of them."""


@dataclass(slots=True, eq=False)
class Job:
    """One item on its way through the pool.

    deadline   on the batcher's clock; it may be moved
    rows       (tokens, width), where the item's rows are to go; None for an array of their own
    is_retry   its pack failed: it runs alone, once
    copy_s     seconds of the time with a worker in which bytes were copied into the ring and out of it
    """

    item: PreparedItem
    deadline: float
    future: asyncio.Future[Embedding] = field(repr=False)
    rows: npt.NDArray[np.generic] | None = field(default=None, repr=False)
    is_retry: bool = False
    queued_at: float = 0.0
    taken_at: float = 0.0
    ended_at: float = 0.0
    copy_s: float = 0.0

    @property
    def is_taken(self) -> bool:
        """Whether a worker has had it."""
        return self.taken_at > 0

    def has_expired(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.deadline <= now

    def is_old(self, now: float) -> bool:
        """Whether it has waited for long. What has not is tried, however long the last pack took."""
        return now - self.queued_at > OLD * (self.deadline - self.queued_at)

    def keep(self, rows: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """A copy of the item's rows, which lie in memory that is soon used again. Called in a thread."""
        if self.rows is None:
            return rows.copy()
        np.copyto(self.rows, rows)
        return self.rows

    def finish(self, embedding: Embedding) -> None:
        """End with a result, unless it has ended already."""
        if not self.future.done():
            self.future.set_result(embedding)

    def fail(self, error: PoolError) -> None:
        """End with an error, unless it has ended already."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that go to a worker together; `rung` as in Pack."""

    jobs: tuple[Job, ...]
    rung: int | None

    @property
    def is_retry(self) -> bool:
        """Whether it is one job whose first pack failed."""
        return self.jobs[0].is_retry


class Batcher:
    """The queue of one replica."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: deque[Job] = deque()
        self._arrival = asyncio.Event()
        self._closed: PoolError | None = None
        self._pack_s = 0.0

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, item: PreparedItem, deadline: float, rows: npt.NDArray[np.generic] | None = None) -> Job:
        """Queue an item. Its job's future ends with an Embedding or a PoolError; `rows` as in Job."""
        job = Job(item, deadline, asyncio.get_running_loop().create_future(), rows)
        self.enter(job)
        return job

    def enter(self, job: Job) -> None:
        """Queue a job; in a closed queue it ends at once."""
        job.queued_at = self._clock()
        if self._closed is not None:
            job.fail(self._closed)
            return
        self._queue.append(job)
        self._arrival.set()

    async def take(self, choose: Choose, worker_ready: Callable[[], Awaitable[None]]) -> Batch:
        """The next pack for a worker that chooses like this, once there are jobs and the worker is ready."""
        await worker_ready()
        while not self._drop_dead_jobs():
            self._arrival.clear()
            await self._arrival.wait()
            await worker_ready()
        batch = self._form(choose)
        now = self._clock()
        for job in batch.jobs:
            job.taken_at = now
        return batch

    def has_ended(self, batch: Batch) -> None:
        """A pack is encoded: the next ones are expected to take as long from here to there."""
        self._pack_s = self._clock() - batch.jobs[0].taken_at

    def retry_alone(self, jobs: Sequence[Job]) -> None:
        """Put the jobs of a failed pack back to the head of the queue, each to run by itself."""
        for job in jobs:
            job.is_retry = True
        self.put_back(jobs)

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Put the jobs of a pack that was not begun back to the head of the queue, for whoever is free."""
        for job in reversed(jobs):
            if self._closed is not None:
                job.fail(self._closed)
            else:
                self._queue.appendleft(job)
        self._arrival.set()

    def close(self, error: PoolError) -> None:
        """End everything that is queued, and whatever is submitted from now on, with this error."""
        self._closed = error
        for job in self._queue:
            job.fail(error)
        self._queue.clear()

    def _drop_dead_jobs(self) -> bool:
        """Forget jobs at the head that have ended or expired; whether any job is left."""
        while self._queue:
            alive = [job for job in self._pop_window() if not self._is_dead(job)]
            self._queue.extendleft(reversed(alive))
            if alive:
                return True
        return False

    def _is_dead(self, job: Job) -> bool:
        if job.future.done():
            return True
        now = self._clock()
        if job.has_expired(now) or (job.is_old(now) and job.has_expired(now + self._pack_s)):
            job.fail(DeadlineExceeded("the item waited in the queue until its deadline could not be kept"))
            return True
        return False

    def _pop_window(self) -> list[Job]:
        return [self._queue.popleft() for _ in range(min(WINDOW, len(self._queue)))]

    def _form(self, choose: Choose) -> Batch:
        window = list(islice(self._queue, WINDOW))
        together = _packable_prefix(window)
        pack = choose([job.item.cost for job in together])
        self._pop_window()  # not before the choice is made: an error there must lose no job
        members = set(pack.members)
        rest = [job for position, job in enumerate(window) if position not in members]
        self._queue.extendleft(reversed(rest))
        return Batch(tuple(window[position] for position in pack.members), pack.rung)


def _packable_prefix(window: list[Job]) -> list[Job]:
    """The head alone if it is a retry, else all jobs before the first retry."""
    if window[0].is_retry:
        return window[:1]
    first_retry = next((position for position, job in enumerate(window) if job.is_retry), len(window))
    return window[:first_retry]
