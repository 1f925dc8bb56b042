"""A start between loading and serving: cold, warm, and with less memory or time than a ladder takes."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from encoder_pool.config import PoolConfig
from encoder_pool.core import Rung
from encoder_pool.graphs.cpu import CpuRunner
from encoder_pool.graphs.measure import measure
from encoder_pool.graphs.reach import Probe
from encoder_pool.graphs.runner import LadderRunner, Replay
from encoder_pool.pool.bring_up import BroughtUp, bring_up
from encoder_pool.pool.measured import Card, Subject, in_turn, load
from encoder_pool.pool.messages import Phase
from encoder_pool.towers.adapter import Metadata
from tests.graphs.towers import MERGE, ragged_ladder
from tests.graphs.tuned_tower import TunedTower

LADDER = ragged_ladder(4, 8, 16, 32)
CARD = Card(name="a card", driver="1.0")
GIB = 1 << 30


class TimedTower(TunedTower):
    """Takes 20 ms a row of output, on a clock of its own; fails at some sizes, in patch rows."""

    def __init__(self, *failing_rows: int) -> None:
        super().__init__()
        self.now_s = 0.0
        self.failing_rows = set(failing_rows)

    def clock(self) -> float:
        return self.now_s

    def forward(self, inputs: Mapping[str, torch.Tensor], metadata: Metadata) -> torch.Tensor:
        rows = len(inputs["patches"])
        if rows in self.failing_rows:
            raise RuntimeError("out of memory")
        self.now_s += rows / MERGE * 0.02
        return super().forward(inputs, metadata)


class SmallRunner(CpuRunner):
    """Of a device with so much memory, of which a captured ladder takes a GiB for four rows of output."""

    total_bytes = 1 << 40

    @property
    def free_bytes(self) -> int:
        largest = self.ladder[-1].budget if self.ladder else 0
        return self.total_bytes - largest // 4 * GIB

    def _peak_bytes(self, work: Replay) -> int:
        return int(len(work()) // 4 * GIB)


class Starts:
    """Starts of one configuration, one after the other, each in a tower and runner of its own."""

    def __init__(self, **ladder: Any) -> None:
        model = {"name": "toy", "adapter": "tests.toy:ToyAdapter", "checkpoint": "unused"}
        config = PoolConfig.model_validate({"model": model, "ladder": ladder})
        self.subject = Subject.of(config, Path(), LADDER)
        self.phases: list[Phase] = []
        self.runner: SmallRunner
        self.tower: TimedTower

    def __call__(self, *failing_rows: int, total_bytes: int = 1 << 40, **options: Any) -> BroughtUp:
        self.tower = TimedTower(*failing_rows)
        self.runner = SmallRunner(self.tower, LADDER)
        self.runner.total_bytes = total_bytes
        self.phases = []
        clock = self.tower.clock
        return bring_up(self.subject, CARD, self.tower, self.runner, clock, self._report, **options)

    @property
    def budgets(self) -> list[int]:
        return [rung.budget for rung in self.runner.ladder]

    def _report(self, phase: Phase, fraction: float) -> None:
        if phase not in self.phases:
            self.phases.append(phase)


@pytest.fixture(autouse=True)
def _alone_and_quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENCODER_POOL_MEASURED", str(tmp_path))
    monkeypatch.setattr("encoder_pool.graphs.measure.ROUNDS", 1)


def sharing(starts: Starts) -> Starts:
    """The same, on a share of a GPU."""
    starts.subject = starts.subject.model_copy(update={"gpus": 0.5})
    return starts


def is_taken() -> bool:
    """Whether somebody has the turn on the card."""
    with (Path(os.environ["ENCODER_POOL_MEASURED"]) / f"{CARD.digest}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rungs of each ladder that was measured."""
    counts: list[int] = []

    def watched(runner: CpuRunner, *others: Any, **options: Any) -> Any:
        counts.append(len(runner.ladder))
        return measure(runner, *others, **options)

    monkeypatch.setattr("encoder_pool.pool.bring_up.measure", watched)
    return counts


NUMBERS = {"budgets": [4, 8, 16, 32]}


def test_a_cold_start_measures_what_it_captured_and_tells_how_long_each_phase_took(
    measured: list[int],
) -> None:
    start = Starts(**NUMBERS)
    found = start()
    assert start.budgets == [4, 8, 16, 32]
    assert found.table.rung_ms == pytest.approx((80.0, 160.0, 320.0, 640.0))
    assert found.not_captured == ()
    assert start.phases == [Phase.CAPTURE, Phase.MEASURE]
    assert list(found.start_s) == ["capturing", "measuring", "tuning"]
    assert all(seconds > 0 for seconds in found.start_s.values())
    assert measured == [4]


@pytest.mark.parametrize("ladder", [NUMBERS, {"max_pack_ms": 400.0}])
def test_a_warm_start_measures_nothing_and_has_the_same(ladder: dict[str, Any], measured: list[int]) -> None:
    start = Starts(**ladder)
    cold, budgets, choices = start(), start.budgets, start.tower.choices
    warm = start()
    assert (warm.table, warm.not_captured, warm.measured_at) == (
        cold.table,
        cold.not_captured,
        cold.measured_at,
    )
    assert start.budgets == budgets
    assert start.phases == [Phase.CAPTURE]
    assert start.tower.tuned == []
    assert start.tower.choices == choices
    assert len(measured) == 1


def test_what_an_earlier_start_kept_is_taken_by_all_ranks_or_by_none(measured: list[int]) -> None:
    start = Starts(**NUMBERS)
    told: list[str] = []

    def differ(text: str) -> bool:
        told.append(text)
        return False

    start(agreed=differ)
    start(agreed=differ)
    assert start.phases == [Phase.CAPTURE, Phase.MEASURE]
    assert measured == [4, 4]
    nothing, kept = told
    assert not nothing
    assert kept


def test_a_damaged_file_is_measured_anew_and_then_found(measured: list[int], tmp_path: Path) -> None:
    start = Starts(**NUMBERS)
    start()
    (file,) = tmp_path.iterdir()
    file.write_text("{")
    start()
    start()
    assert measured == [4, 4]


def test_a_rung_that_fails_is_told_with_the_reason_and_the_others_have_their_times(
    measured: list[int],
) -> None:
    start = Starts(**NUMBERS)
    for _ in range(2):
        found = start(MERGE * 32)
        assert start.budgets == [4, 8, 16]
        assert [(lost.rung.budget, lost.why) for lost in found.not_captured] == [(32, "out of memory")]
        assert found.table.rung_ms == pytest.approx((80.0, 160.0, 320.0))
    assert measured == [3]


def test_a_rung_that_fails_in_a_warm_start_is_left_out_of_the_table(measured: list[int]) -> None:
    start = Starts(**NUMBERS)
    start()
    found = start(MERGE * 8)
    assert start.budgets == [4, 16, 32]
    assert found.table.rung_ms == pytest.approx((80.0, 320.0, 640.0))
    assert [lost.rung.budget for lost in found.not_captured] == [8]
    assert measured == [4]


def test_a_rung_that_is_there_again_has_all_measured_again(measured: list[int]) -> None:
    start = Starts(**NUMBERS)
    start(MERGE * 32)
    found = start()
    assert found.table.rung_ms == pytest.approx((80.0, 160.0, 320.0, 640.0))
    assert measured == [3, 4]


def test_a_ladder_without_numbers_ends_where_a_pack_takes_too_long() -> None:
    start = Starts(max_pack_ms=400.0)
    found = start()
    assert start.budgets == [4, 8, 16]
    assert found.table.rung_ms == pytest.approx((80.0, 160.0, 320.0))
    assert [(lost.rung.budget, lost.why) for lost in found.not_captured] == [
        (32, "about 640 ms; ladder.max_pack_ms is 400")
    ]
    assert start.phases == [Phase.PROBE, Phase.CAPTURE, Phase.MEASURE]


def test_a_rung_that_takes_longer_than_was_estimated_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CpuRunner, "probe", lambda *given: Probe(0.0, 0))
    start = Starts(max_pack_ms=200.0)
    found = start()
    assert start.budgets == [4, 8]
    assert found.table.rung_ms == pytest.approx((80.0, 160.0))
    assert [(lost.rung.budget, lost.why) for lost in found.not_captured] == [
        (16, "measured 320.0 ms; ladder.max_pack_ms is 200"),
        (32, "measured 640.0 ms; ladder.max_pack_ms is 200"),
    ]
    assert "the rungs of budget 32 are given up" in caplog.text


def test_a_ladder_without_numbers_ends_where_memory_does() -> None:
    start = Starts(reserve_bytes=GIB, max_pack_ms=1e4)
    found = start(total_bytes=6 * GIB)
    assert start.budgets == [4, 8, 16]
    (lost,) = found.not_captured
    assert lost.rung.budget == 32
    assert "MiB are free beside ladder.reserve_bytes" in lost.why


def test_rungs_that_leave_less_than_the_reserve_are_given_up_and_the_others_captured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CpuRunner, "probe", lambda *given: Probe(0.0, 0))
    start = Starts(reserve_bytes=3 * GIB, max_pack_ms=1e4)
    found = start(total_bytes=6 * GIB)
    assert start.budgets == [4, 8]
    assert start.runner.free_bytes >= 3 * GIB
    assert [(lost.rung.budget, lost.why) for lost in found.not_captured] == [
        (16, "with it 2048 MiB are free; ladder.reserve_bytes is 3072 MiB"),
        (32, "with it -2048 MiB are free; ladder.reserve_bytes is 3072 MiB"),
    ]


def test_with_numbers_neither_time_nor_reserve_counts() -> None:
    start = Starts(**NUMBERS, max_pack_ms=1.0, reserve_bytes=64 * GIB)
    start(total_bytes=8 * GIB)
    assert start.budgets == [4, 8, 16, 32]


def test_the_smallest_budget_is_kept_whatever_it_takes() -> None:
    start = Starts(max_pack_ms=1.0, reserve_bytes=GIB)
    start(total_bytes=GIB)
    assert start.budgets == [4]


def test_out_of_memory_drops_the_largest_rung_and_the_start_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    start = Starts(max_pack_ms=1e4)
    with caplog.at_level(logging.WARNING):
        found = start(MERGE * 32)
    assert start.budgets == [4, 8, 16]
    assert [(lost.rung.budget, lost.why) for lost in found.not_captured] == [(32, "out of memory")]


def test_nothing_that_can_be_captured_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no rung could be captured; budget 4: out of memory"):
        Starts()(*(MERGE * rung.budget for rung in LADDER))


def test_a_ladder_that_memory_ended_is_found_again_when_there_is_more(measured: list[int]) -> None:
    start = Starts(reserve_bytes=GIB, max_pack_ms=1e4)
    start(total_bytes=6 * GIB)
    start(total_bytes=6 * GIB)
    assert (start.budgets, measured) == ([4, 8, 16], [3])
    start(total_bytes=32 * GIB)
    assert (start.budgets, measured) == ([4, 8, 16, 32], [3, 4])
    start(total_bytes=48 * GIB)
    assert measured == [3, 4]


def test_what_is_kept_is_what_was_found() -> None:
    start = Starts(max_pack_ms=400.0)
    found = start()
    kept = load(start.subject, CARD)
    assert kept is not None
    assert (kept.ladder, kept.table) == (start.runner.ladder, found.table)
    assert kept.choices == start.tower.choices
    assert kept.not_captured == found.not_captured
    assert kept.memory_bound_at is None


def test_tiers_of_a_budget_go_together() -> None:
    tiered = tuple(
        Rung(rung.budget, replace(rung.capacity, longest=longest)) for rung in LADDER for longest in (8, 99)
    )
    start = Starts(max_pack_ms=400.0)
    start.subject = start.subject.model_copy(update={"rungs": tiered})
    start.tower = TimedTower()
    start.runner = SmallRunner(start.tower, tiered)
    found = bring_up(start.subject, CARD, start.tower, start.runner, start.tower.clock, lambda *given: None)
    assert start.runner.ladder == tiered[:6]
    assert tuple(lost.rung for lost in found.not_captured) == tiered[6:]


def test_a_start_on_a_shared_card_waits_for_its_turn_and_finds_what_the_one_before_has_kept(
    measured: list[int],
) -> None:
    first, second = sharing(Starts()), sharing(Starts())
    with ThreadPoolExecutor(1) as thread:
        with in_turn(CARD):
            waiting = thread.submit(second)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)
            assert second.phases == [Phase.WAIT]
            with pytest.MonkeyPatch.context() as patch:  # it has the turn already
                patch.setattr("encoder_pool.pool.bring_up.in_turn", lambda card: nullcontext())
                found = first()
        assert waiting.result(timeout=30).table == found.table
    assert len(measured) == 1
    assert Phase.MEASURE not in second.phases


def test_a_start_that_knows_its_times_lets_others_measure_while_it_captures() -> None:
    starts = sharing(Starts())
    starts()
    took_turns: list[bool] = []

    def capture(runner: CpuRunner, progress: Any) -> None:
        with in_turn(CARD):
            took_turns.append(True)
        LadderRunner.capture(runner, progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuRunner, "capture", capture)
        starts()
    assert took_turns == [True]


def test_a_start_with_a_card_of_its_own_waits_for_nobody() -> None:
    with in_turn(CARD):
        assert Starts()().table.rung_ms


def test_rungs_that_are_new_to_a_warm_start_are_measured_in_turn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = sharing(Starts(budgets=(4, 8, 16, 32)))
    starts(MERGE * 32)
    turns: list[bool] = []

    def watched(runner: CpuRunner, *others: Any, **options: Any) -> Any:
        turns.append(is_taken())
        return measure(runner, *others, **options)

    monkeypatch.setattr("encoder_pool.pool.bring_up.measure", watched)
    starts()
    assert turns == [True]
    assert not is_taken()
