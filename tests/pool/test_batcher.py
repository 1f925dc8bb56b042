import asyncio
import random
from collections.abc import Sequence

import numpy as np
import pytest

from encoder_pool.core import Cost, DType, Embedding, Grid, Modality, Pack, PreparedItem, Rung, Source
from encoder_pool.errors import DeadlineExceeded, EncodeFailed, Unavailable
from encoder_pool.graphs.plan import Planner, proportional
from encoder_pool.pool.batcher import WINDOW, Batcher, Job

LADDER = tuple(Rung(budget, Cost(budget, budget, budget)) for budget in (1, 2, 4, 8))
choose = Planner(LADDER, proportional(LADDER)).next_pack


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def ready() -> None:
    """A worker that is always ready."""


def item(rows: int = 1) -> PreparedItem:
    data = np.zeros(rows, np.uint8)
    return PreparedItem(
        Modality.IMAGE, data, Grid(1, 1, rows), Cost(rows, rows, rows), rows, "00", Source("PNG")
    )


def embedding(job: Job) -> Embedding:
    rows = np.zeros((job.item.tokens, 1), np.float32)
    return Embedding(
        rows, DType.FLOAT32, Modality.IMAGE, job.item.grid, 0, (), job.item.digest, job.item.source
    )


async def test_what_waits_is_taken_together_up_to_the_largest_rung() -> None:
    batcher = Batcher(Clock())
    jobs = [batcher.submit(item(), 10.0) for _ in range(10)]
    first, second = await batcher.take(choose, ready), await batcher.take(choose, ready)
    assert (len(first.jobs), len(second.jobs)) == (8, 2)
    assert [*first.jobs, *second.jobs] == jobs
    assert (first.rung, second.rung) == (3, 1)
    assert len(batcher) == 0


async def test_a_lone_job_is_taken_at_once_without_waiting_for_others() -> None:
    batcher = Batcher(Clock())
    taking = asyncio.create_task(batcher.take(choose, ready))
    await asyncio.sleep(0)
    job = batcher.submit(item(), 10.0)
    batch = await asyncio.wait_for(taking, timeout=60)
    assert batch.jobs == (job,)


async def test_the_head_of_the_queue_is_always_in_the_next_pack() -> None:
    batcher = Batcher(Clock())
    sizes = random.Random(1)
    waiting = [batcher.submit(item(sizes.choice([1, 2, 3, 5, 8])), 10.0) for _ in range(200)]
    while waiting:
        batch = await batcher.take(choose, ready)
        assert waiting[0] in batch.jobs
        waiting = [job for job in waiting if job not in batch.jobs]
    assert len(batcher) == 0


async def test_a_cancelled_job_is_dropped_before_it_costs_anything() -> None:
    batcher = Batcher(Clock())
    jobs = [batcher.submit(item(), 10.0) for _ in range(4)]
    jobs[0].future.cancel()
    jobs[2].future.cancel()
    batch = await batcher.take(choose, ready)
    assert batch.jobs == (jobs[1], jobs[3])


async def test_an_expired_job_ends_with_its_error_and_is_not_taken() -> None:
    clock = Clock()
    batcher = Batcher(clock)
    late, early = batcher.submit(item(), 1.0), batcher.submit(item(), 5.0)
    clock.now = 2.0
    batch = await batcher.take(choose, ready)
    assert batch.jobs == (early,)
    with pytest.raises(DeadlineExceeded):
        late.future.result()


async def test_a_job_that_has_waited_until_it_would_end_too_late_is_not_taken() -> None:
    clock = Clock()
    batcher = Batcher(clock)
    batcher.submit(item(), 100.0)
    pack = await batcher.take(choose, ready)
    clock.now = 3.0
    batcher.has_ended(pack)  # three seconds after it was taken
    late, in_time = batcher.submit(item(), 9.0), batcher.submit(item(), 11.0)
    clock.now = 7.0
    fresh = batcher.submit(item(), 8.0)  # nobody knows whether the next pack takes as long
    assert (await batcher.take(choose, ready)).jobs == (in_time, fresh)
    with pytest.raises(DeadlineExceeded):
        late.future.result()


async def test_a_whole_window_of_dead_jobs_does_not_hide_the_live_ones_behind_it() -> None:
    batcher = Batcher(Clock())
    for _ in range(3 * WINDOW):
        batcher.submit(item(), 10.0).future.cancel()
    alive = batcher.submit(item(), 10.0)
    assert (await batcher.take(choose, ready)).jobs == (alive,)


async def test_a_queue_of_only_dead_jobs_waits_for_a_live_one() -> None:
    batcher = Batcher(Clock())
    batcher.submit(item(), 10.0).future.cancel()
    taking = asyncio.create_task(batcher.take(choose, ready))
    await asyncio.sleep(0)
    assert not taking.done()
    alive = batcher.submit(item(), 10.0)
    assert (await taking).jobs == (alive,)


async def test_jobs_of_a_failed_pack_run_next_one_by_one_in_their_order() -> None:
    batcher = Batcher(Clock())
    for _ in range(4):
        batcher.submit(item(), 10.0)
    failed = await batcher.take(choose, ready)
    later = [batcher.submit(item(), 10.0) for _ in range(2)]
    batcher.retry_alone(failed.jobs)
    retried = [await batcher.take(choose, ready) for _ in range(len(failed.jobs))]
    assert [batch.jobs for batch in retried] == [(job,) for job in failed.jobs]
    assert (await batcher.take(choose, ready)).jobs == tuple(later)


async def test_jobs_before_a_retry_are_packed_without_it() -> None:
    batcher = Batcher(Clock())
    first = batcher.submit(item(), 10.0)
    second = batcher.submit(item(), 10.0)
    second.is_retry = True
    third = batcher.submit(item(), 10.0)
    assert [(await batcher.take(choose, ready)).jobs for _ in range(3)] == [(first,), (second,), (third,)]


async def test_several_takers_get_disjoint_jobs_and_none_is_lost() -> None:
    batcher = Batcher(Clock())
    taken: list[Job] = []

    async def work() -> None:
        while True:
            taken.extend((await batcher.take(choose, ready)).jobs)
            await asyncio.sleep(0)

    workers = [asyncio.create_task(work()) for _ in range(3)]
    jobs = []
    for _ in range(100):
        jobs.append(batcher.submit(item(), 10.0))
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    for worker in workers:
        worker.cancel()
    assert sorted(map(id, taken)) == sorted(map(id, jobs))


async def test_closing_ends_every_queued_job_and_every_later_one() -> None:
    batcher = Batcher(Clock())
    jobs = [batcher.submit(item(), 10.0) for _ in range(3)]
    batcher.close(Unavailable("gone"))
    jobs.append(batcher.submit(item(), 10.0))
    for job in jobs:
        with pytest.raises(Unavailable):
            job.future.result()
    assert len(batcher) == 0


async def test_a_job_ends_once_whatever_comes_after() -> None:
    batcher = Batcher(Clock())
    job = batcher.submit(item(), 10.0)
    job.finish(embedding(job))
    job.fail(EncodeFailed("too late"))
    assert job.future.result().rows.shape == (1, 1)


async def test_a_retry_after_closing_ends_too() -> None:
    batcher = Batcher(Clock())
    batcher.submit(item(), 10.0)
    taken = await batcher.take(choose, ready)
    batcher.close(Unavailable("gone"))
    batcher.retry_alone(taken.jobs)
    with pytest.raises(Unavailable):
        taken.jobs[0].future.result()


async def test_an_error_in_choosing_loses_no_job() -> None:
    def fail(costs: Sequence[Cost]) -> Pack:
        raise RuntimeError("no choice")

    batcher = Batcher(Clock())
    jobs = [batcher.submit(item(), 10.0) for _ in range(3)]
    with pytest.raises(RuntimeError, match="no choice"):
        await batcher.take(fail, ready)
    assert [job for _ in range(2) for job in (await batcher.take(choose, ready)).jobs] == jobs


async def test_nothing_is_taken_while_the_worker_is_not_ready_and_who_leaves_meanwhile_is_dropped() -> None:
    is_ready = asyncio.Event()
    is_ready.set()

    async def worker_ready() -> None:
        await is_ready.wait()

    batcher = Batcher(Clock())
    taking = asyncio.create_task(batcher.take(choose, worker_ready))
    await asyncio.sleep(0)
    is_ready.clear()
    jobs = [batcher.submit(item(), 10.0) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not taking.done()
    jobs[0].future.cancel()
    is_ready.set()
    assert (await taking).jobs == (jobs[1],)
