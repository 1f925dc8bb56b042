from __future__ import annotations

from asyncio import AbstractEventLoop, CancelledError, Future, get_running_loop

from encoder_pool.core import Media, Modality
from encoder_pool.errors import DeadlineExceeded, EncodeFailed, PoolError, UndecodableMedia
from encoder_pool.graphs.counters import Counters, EagerReason, Tally
from encoder_pool.pool.counters import Ending, PoolCounters, RunHistory, with_ratios

ENDINGS = ("items_ok", "items_failed", "items_expired", "items_cancelled", "items_rejected")


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
        counters.count_ending(Modality.IMAGE, future, is_expired=False)
        assert endings(counters) == {ending: 1}


def test_items_that_were_never_queued_are_counted_by_what_ended_their_request() -> None:
    media = [Media(Modality.IMAGE, b"", ""), Media(Modality.AUDIO, b"", "")]
    cases: list[tuple[BaseException, bool, str]] = [
        (UndecodableMedia("bad"), False, "items_rejected"),
        (CancelledError(), False, "items_cancelled"),
        (CancelledError(), True, "items_expired"),
    ]
    for reason, is_expired, ending in cases:
        counters = PoolCounters()
        counters.count_unqueued(media, reason, is_expired=is_expired)
        assert endings(counters) == {ending: 2}


def test_totals_hold_every_counter_and_do_not_follow_them() -> None:
    counters = PoolCounters(packs=3, items_packed=7)
    counters.count_all([Media(Modality.IMAGE, b"", "")] * 7, Ending.OK)
    totals = counters.totals()
    counters.packs += 1
    assert (totals["items_ok"], totals["packs"], totals["items_packed"]) == (7, 3, 7)
    assert set(ENDINGS) <= set(totals)


def test_the_mean_batch_is_of_packs_that_came_back() -> None:
    assert with_ratios(PoolCounters(packs=3, items_packed=7).totals())["mean_batch"] == 2.333
    assert with_ratios(PoolCounters().totals())["mean_batch"] == 0


def runs(budget: int, number: int) -> Counters:
    return Counters(
        {budget: Tally(number, number, number, 2 * number)}, {EagerReason.CHEAPER: Tally(1, 1, 1, 1)}
    )


def test_the_runs_of_shards_before_this_one_still_count() -> None:
    history = RunHistory()
    assert history.total.total == Tally()
    history.note(0, runs(8, 3))
    history.note(0, runs(8, 5))
    history.note(0, runs(8, 4))  # of a pack before, whose rows took longer to copy
    assert history.last == runs(8, 5)
    history.note(1, runs(8, 1))
    history.note(2, runs(4, 2))
    assert history.last == runs(4, 2)
    assert {budget: tally.runs for budget, tally in history.total.replays.items()} == {8: 6, 4: 2}
    assert history.total.eager[EagerReason.CHEAPER].runs == 3
