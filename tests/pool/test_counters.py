from __future__ import annotations

from asyncio import AbstractEventLoop, Future, get_running_loop

from encoder_pool.errors import DeadlineExceeded, EncodeFailed, PoolError
from encoder_pool.pool.counters import PoolCounters

ENDINGS = ("items_ok", "items_failed", "items_expired", "items_cancelled")


def endings(counters: PoolCounters) -> dict[str, int]:
    """The endings that were counted, and how often."""
    return {name: count for name in ENDINGS if (count := getattr(counters, name))}


def failed(loop: AbstractEventLoop, error: PoolError) -> Future[None]:
    future: Future[None] = loop.create_future()
    future.set_exception(error)
    return future


async def test_every_item_is_counted_under_the_one_ending_it_had() -> None:
    loop = get_running_loop()
    ok: Future[int] = loop.create_future()
    ok.set_result(1)
    cancelled: Future[int] = loop.create_future()
    cancelled.cancel()
    given_up: Future[int] = loop.create_future()
    cases: list[tuple[Future[int] | Future[None], str]] = [
        (ok, "items_ok"),
        (failed(loop, EncodeFailed("raised")), "items_failed"),
        (failed(loop, DeadlineExceeded("late")), "items_expired"),
        (cancelled, "items_cancelled"),
        (given_up, "items_cancelled"),
    ]
    for future, ending in cases:
        counters = PoolCounters()
        counters.count_ending(future, is_expired=False)
        assert endings(counters) == {ending: 1}


def test_a_snapshot_holds_every_counter_and_the_mean_batch() -> None:
    counters = PoolCounters(items_ok=7, packs=3, items_packed=7)
    snapshot = counters.snapshot()
    assert (snapshot["items_ok"], snapshot["packs"], snapshot["items_packed"]) == (7, 3, 7)
    assert snapshot["mean_batch"] == 2.333
    assert set(ENDINGS) <= set(snapshot)


def test_the_mean_batch_of_no_pack_is_zero() -> None:
    assert PoolCounters().snapshot()["mean_batch"] == 0


def test_a_snapshot_does_not_follow_its_counters() -> None:
    counters = PoolCounters()
    snapshot = counters.snapshot()
    counters.packs += 1
    assert snapshot["packs"] == 0
