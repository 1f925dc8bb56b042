"""What is made of the clients' reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from encoder_pool.bench.service import loads
from encoder_pool.bench.service.counted import Counted
from encoder_pool.bench.service.crew import Crew
from encoder_pool.bench.service.load import OK, REFUSED, Report, Sample, Share, Target
from encoder_pool.bench.service.loads import OUTSIDE, Bench, Load, Plan, bursts, poisson
from encoder_pool.bench.service.processes import (
    HAPROXY,
    PREPARERS,
    REPLICA,
    SHARD,
    ServiceProcesses,
    Usage,
)


def sample(due: float, done: float, status: int = OK) -> Sample:
    return Sample(0, due, due, done, status, {"queue": 100.0, "encode": 300.0, "total": 400.0})


CLOSED = Plan("closed", 2, 1.0, 10.0, 4)
OPEN = Plan("poisson", 1, 1.0, 10.0, 4, (0.5,), 3.0)
WINDOW = (1.0, 11.0)


def test_a_closed_loop_counts_what_ended_in_its_window() -> None:
    load = Load(CLOSED, [sample(0, 0.9), sample(0.5, 1.5), sample(10, 10.9), sample(10.5, 11.2)], WINDOW)
    assert load.latencies_ms == pytest.approx([1000, 900])
    assert load.items_s == pytest.approx(2 * 2 / 10)


def test_an_open_loop_counts_what_was_due_in_its_window_however_late_it_ended() -> None:
    load = Load(OPEN, [sample(0.9, 1.5), sample(2, 3), sample(10.9, 31)], WINDOW)
    assert load.latencies_ms == pytest.approx([1000, 20100])
    # The rate is of what was answered in the window, when it was due or not.
    assert load.items_s == pytest.approx(2 / 10)


def test_refusals_and_errors_have_no_part_in_latency_or_rate() -> None:
    load = Load(CLOSED, [sample(1, 2), sample(1, 3, REFUSED), sample(1, 4, 0)], WINDOW)
    assert (len(load.counted), len(load.good)) == (3, 1)
    assert load.items_s == pytest.approx(2 / 10)


def test_stages_and_what_a_client_waited_beyond_them_add_up_to_its_latency() -> None:
    load = Load(CLOSED, [sample(1, 1.5), sample(2, 2.7)], WINDOW)
    assert load.stages_ms == pytest.approx({"queue": 100, "encode": 300, OUTSIDE: 200})
    assert sum(load.stages_ms.values()) == pytest.approx(np.mean(load.latencies_ms))
    assert load.stages_off_ms == 0
    off = Sample(0, 1.0, 1.0, 2.0, OK, {"queue": 1.0, "total": 3.5})
    assert Load(CLOSED, [off], WINDOW).stages_off_ms == 2.5


class OneAnswer:
    """A crew of one client, whose only request is answered in the middle of every window."""

    def __init__(self) -> None:
        self.windows: list[tuple[float, float]] = []

    def __len__(self) -> int:
        return 1

    def begin(self, shares: Sequence[Share]) -> None:
        self.windows.append((shares[0].count_from, shares[0].end_at))

    def reports(self, count: int) -> list[Report]:
        middle = sum(self.windows[-1]) / 2
        return [Report([sample(middle, middle)], cpu_s=0.0)]


class Idle:
    """Processes of a service that use nothing."""

    def usage(self) -> Usage:
        roles: dict[str, dict[int, float]] = {role: {} for role in (REPLICA, PREPARERS, SHARD, HAPROXY)}
        return Usage(time.monotonic(), roles, 0.0, 0.0)


def test_a_load_whose_packs_were_not_counted_is_tried_again_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loads, "_LEAD_S", 0.0)
    crew, packs = OneAnswer(), iter((5, 5, 5, 6))
    bench = Bench(
        Target("127.0.0.1", 1, "", "toy"),
        cast(Crew, crew),
        cast(ServiceProcesses, Idle()),
        lambda: Counted(next(packs), 0, 0, 0, 0),
        num_cores=2,
    )
    load = bench.carry_out(Plan("closed", 1, 0.0, 0.02, 1), [], 1.0)
    first, second = (end - start for start, end in crew.windows)
    assert second == pytest.approx(2 * first)
    assert load.packs == 1


def test_poisson_arrivals_are_ascending_as_many_as_asked_for_and_as_scattered_as_chance() -> None:
    due = np.array(poisson(200.0, 100.0, seed=1))
    assert (np.diff(due) >= 0).all()
    assert 0 <= due[0] < due[-1] < 100
    a_second = np.bincount(due.astype(int), minlength=100)
    assert a_second.mean() == pytest.approx(200, rel=0.03)
    assert a_second.var() == pytest.approx(200, rel=0.5)
    assert poisson(200.0, 100.0, seed=1) == tuple(due.tolist())


def test_bursts_bring_a_seconds_worth_at_once() -> None:
    assert bursts(3.0, 2.5, every_s=1.0) == (0.0,) * 3 + (1.0,) * 3 + (2.0,) * 3
    assert bursts(0.1, 2.0, every_s=1.0) == (0.0, 1.0)
