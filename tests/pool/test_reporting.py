"""A replica's reports and what it shows of its pool, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from encoder_pool.errors import Unavailable
from encoder_pool.pool import reporting
from encoder_pool.pool.ledger import STALE_S, PoolLedger, ReplicaReport, View
from encoder_pool.pool.pool import Pool
from encoder_pool.pool.reporting import Place, Reporter
from tests.pool.local_pool import assert_rows, attempt, config, encode, running, until
from tests.toy import RAISES, SLOW, TOKENS, UNDECODABLE, toy


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


class TestLedger:
    """A ledger that can be lost or hang."""

    __test__ = False

    def __init__(self, clock: Clock) -> None:
        self.book = PoolLedger(clock)
        self.is_lost = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def push(self, report: ReplicaReport, seen: View | None) -> View:
        if self.is_lost:
            raise RuntimeError("it is dead")
        await self.may_answer.wait()
        return self.book.push(report, seen)


@asynccontextmanager
async def two_replicas(clock: Clock, ledger: TestLedger) -> AsyncIterator[tuple[Pool, Pool]]:
    """Two pools that report to one ledger, when told to."""
    async with running(config()) as (a, _), running(config()) as (b, _):
        for name, pool in (("a", a), ("b", b)):
            pool.reporter.stop()
            pool.reporter = Reporter(pool, ledger, Place(name, "node", "host"), clock)
        yield a, b


def sample(pool: Pool, name: str, **labels: str) -> float:
    """One value of what the pool exports."""
    wanted = {"model": "toy", **labels}
    values = [
        each.value
        for family in text_string_to_metric_families(pool.metrics().decode())
        for each in family.samples
        if each.name == f"encoder_pool_{name}" and each.labels == wanted
    ]
    assert len(values) == 1, (name, labels)
    return values[0]


async def test_both_replicas_show_the_whole_pool() -> None:
    clock = Clock()
    async with two_replicas(clock, TestLedger(clock)) as (a, b):
        await encode(a, toy(1), toy(2))
        await encode(b, toy(3))
        await attempt(b, toy(4, RAISES))
        await attempt(b, toy(5), toy(6, UNDECODABLE))
        await a.reporter.report()
        await b.reporter.report()
        await a.reporter.report()
        for pool in (a, b):
            shown = pool.info()["pool"]
            assert [row["replica"] for row in shown["replicas"]] == ["a", "b"]
            assert shown["counters"]["items_ok"] == 3
            assert shown["counters"]["requests"] == 4
            assert [row["counters"]["items_ok"] for row in shown["replicas"]] == [2, 1]
            outcomes = {"ok": 3, "failed": 1, "rejected": 2}
            for outcome, count in outcomes.items():
                assert sample(pool, "items_total", modality="image", outcome=outcome) == count
            assert sample(pool, "tokens_total", modality="image") == 3 * TOKENS
            assert sample(pool, "workers_ready") == 2
            assert sample(pool, "replicas", state="live") == 2
            assert sample(pool, "queue_tokens") == 0
            assert sample(pool, "preprocess_seconds_count", modality="image") == 6
            assert sample(pool, "encode_seconds_count") == 3
            packs = sample(pool, "batch_items_count")
            replays = sum(sample(pool, "graph_replays_total", bucket=str(n)) for n in (1, 2, 4, 8))
            assert packs == replays == shown["counters"]["packs"]


async def test_a_replica_that_is_silent_is_marked_stale_and_no_longer_counted_as_ready() -> None:
    clock = Clock()
    async with two_replicas(clock, TestLedger(clock)) as (a, b):
        await encode(b, toy(1))
        await b.reporter.report()
        clock.now += STALE_S + 1
        await a.reporter.report()
        rows = {row["replica"]: row for row in a.info()["pool"]["replicas"]}
        assert {name: row["is_stale"] for name, row in rows.items()} == {"a": False, "b": True}
        assert sample(a, "items_total", modality="image", outcome="ok") == 1
        assert (sample(a, "replicas", state="live"), sample(a, "replicas", state="stale")) == (1, 1)
        assert sample(a, "workers_ready") == 1
        assert sample(a, "replica_report_age_seconds", replica="b") == STALE_S + 1


async def test_requests_do_not_wait_for_a_ledger_that_hangs_and_metrics_of_then_are_refused() -> None:
    clock = Clock()
    ledger = TestLedger(clock)
    async with two_replicas(clock, ledger) as (a, _):
        assert a.info()["pool"] is None
        with pytest.raises(Unavailable):
            a.metrics()
        await a.reporter.report()
        ledger.may_answer.clear()
        report = asyncio.create_task(a.reporter.report())
        assert_rows(await encode(a, toy(1)), 1)
        assert not report.done()
        assert a.info()["counters"]["items_ok"] == 1
        assert a.info()["pool"]["counters"]["items_ok"] == 0
        clock.now += STALE_S + 1
        with pytest.raises(Unavailable) as refused:
            a.metrics()
        assert refused.value.retry_after_s
        ledger.may_answer.set()
        await report
        await a.reporter.report()
        assert sample(a, "items_total", modality="image", outcome="ok") == 1


async def test_a_lost_ledger_is_one_warning_and_the_next_is_reported_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    ledger = TestLedger(clock)
    async with two_replicas(clock, ledger) as (a, _):
        ledger.is_lost = True
        await a.reporter.report()
        await a.reporter.report()
        told = [record.levelname for record in caplog.records if record.name == reporting.__name__]
        assert told == ["WARNING"]
        ledger.is_lost = False
        await a.reporter.report()
        assert sample(a, "replicas", state="live") == 1


async def test_what_a_replica_has_done_still_counts_when_it_has_left() -> None:
    clock = Clock()
    async with two_replicas(clock, TestLedger(clock)) as (a, b):
        await b.reporter.report()
        await encode(b, toy(1))
        await b.reporter.say_goodbye()
        await a.reporter.report()
        shown = a.info()["pool"]
        assert [row["replica"] for row in shown["replicas"]] == ["a"]
        assert (shown["replicas_gone"], shown["counters"]["items_ok"]) == (1, 1)


async def test_a_pool_of_one_replica_reports_to_itself_in_the_background() -> None:
    async with running(config()) as (pool, shards):
        await encode(pool, toy(1))
        shards[0].is_dead = True
        await encode(pool, toy(2, SLOW))
        await until(
            lambda: (pool.info()["pool"] or {"counters": {"items_ok": 0}})["counters"]["items_ok"] == 2
        )
        assert sample(pool, "worker_restarts_total") == 1
        runs = sum(sample(pool, "graph_replays_total", bucket=str(n)) for n in (1, 2, 4, 8))
        assert runs == 2  # of both shards
