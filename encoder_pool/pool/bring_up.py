"""From a loaded tower to captured rungs whose times are known: what a shard does between loading and serving.

    cold  find the largest rung, if the configuration does not name it -> tune and capture -> measure -> keep
    warm  what an earlier start kept -> capture

Estimates are verified: a ladder without numbers loses its largest rungs until `ladder.reserve_bytes` are
free and none takes longer than `ladder.max_pack_ms`; one with numbers loses only what fails to capture.
Cold starts on a card that is shared take turns, so that none is timed beside another; of the same subject
the second finds what the first kept. Knows no Ray and no ring.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from encoder_pool.graphs.ladder import NotCaptured
from encoder_pool.graphs.measure import measure
from encoder_pool.graphs.plan import CostTable
from encoder_pool.graphs.reach import MIB, Bounds, reach
from encoder_pool.graphs.runner import LadderRunner
from encoder_pool.pool.measured import Card, Measured, Subject, in_turn, load, save
from encoder_pool.pool.messages import Phase
from encoder_pool.towers.adapter import Tower, Tunes

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
Report = Callable[[Phase, float], None]
"""Called with the phase, and the fraction of it that is done."""

Agreed = Callable[[str], bool]
"""Whether all ranks of a split tower, each of which asks, have the same text."""

MEMORY_GROWN = 1.05
"""With more memory free than by this factor, a ladder that want of it ended is found again."""
TUNE = "tuning"
"""Of `start_s`: what choosing kernels took, which is a part of no phase there."""


class BroughtUp(NamedTuple):
    """A runner that is ready, in figures: see `ShardReport`."""

    table: CostTable
    not_captured: tuple[NotCaptured, ...]
    measured_at: datetime
    start_s: Mapping[str, float]


def _alone(text: str) -> bool:
    """For a tower that is not split."""
    return True


def bring_up(
    subject: Subject,
    card: Card,
    tower: Tower,
    runner: LadderRunner,
    clock: Clock,
    report: Report,
    wall: Clock = time.perf_counter,
    agreed: Agreed = _alone,
) -> BroughtUp:
    """Have the runner capture what may be, and know its times. Raises RuntimeError if no rung can be.

    clock   seconds, read when the device has done all that it was asked to
    wall    seconds by which is decided how long to measure
    agreed  what an earlier start kept is taken only by all ranks: one that measures waits for the others
    """
    return _Start(subject, card, tower, runner, clock, report, wall, agreed).through()


class _Start:
    """One start.

    lost             rungs that are not captured, growing
    memory_bound_at  see `Measured`
    start_s          seconds by phase, growing
    """

    def __init__(
        self,
        subject: Subject,
        card: Card,
        tower: Tower,
        runner: LadderRunner,
        clock: Clock,
        report: Report,
        wall: Clock,
        agreed: Agreed,
    ) -> None:
        self._subject = subject
        self._card = card
        self._tower = tower
        self._runner = runner
        self._clock = clock
        self._report = report
        self._wall = wall
        self._agreed = agreed
        self._config = subject.ladder
        self._free_bytes: int
        self._lost: list[NotCaptured] = []
        self._memory_bound_at: int | None = None
        self._start_s: dict[str, float] = {}

    def through(self) -> BroughtUp:
        """All of it."""
        with self._turn():
            self._free_bytes = self._runner.free_bytes
            known = self._known()
            if known is None:
                return self._cold()
        return self._warm(known)

    def _cold(self) -> BroughtUp:
        """Find the ladder, capture and measure."""
        if self._config.is_automatic:
            self._find_ladder()
        self._capture()
        measured = self._measured()
        return self._through(measured, measured.table)

    def _warm(self, known: Measured) -> BroughtUp:
        """Capture what is known; measure if there are rungs whose times are not."""
        self._take_over(known)
        self._capture()
        table = known.table_of(self._runner.ladder)
        if table is not None:
            return self._through(known, table)
        with self._turn():
            measured = self._measured()
        return self._through(measured, measured.table)

    def _through(self, measured: Measured, table: CostTable) -> BroughtUp:
        self._start_s[TUNE] = self._runner.tune_s
        return BroughtUp(table, self._not_captured, measured.at, self._start_s)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """In the block nobody else measures on the card, where it is shared."""
        if not 0 < self._subject.gpus < 1:
            yield
            return
        self._report(Phase.WAIT, 0.0)
        with in_turn(self._card):
            yield

    def _known(self) -> Measured | None:
        """What an earlier start kept, unless that was short of memory that there is now, or ranks differ."""
        known = load(self._subject, self._card)
        if not self._agreed("" if known is None else known.digest):
            return None
        bound = None if known is None else known.memory_bound_at
        return known if bound is None or self._free_bytes <= bound * MEMORY_GROWN else None

    def _take_over(self, known: Measured) -> None:
        if isinstance(self._tower, Tunes):
            self._tower.adopt(known.choices)
        if self._config.is_automatic:
            self._runner.ask(known.ladder)
            self._lost = list(known.not_captured)

    def _find_ladder(self) -> None:
        bounds = Bounds(self._config.max_pack_ms, self._config.reserve_bytes)
        with self._phase(Phase.PROBE):
            found = reach(self._runner, self._subject.rungs, bounds, self._clock)
        self._runner.ask(found.ladder)
        self._lost = list(found.beyond)
        if found.is_memory_bound:
            self._memory_bound_at = self._free_bytes

    def _capture(self) -> None:
        """As much as fits; of a ladder without numbers, beside the reserve."""
        with self._phase(Phase.CAPTURE):
            self._capture_once()
            if not self._config.is_automatic:
                return
            while (free := self._runner.free_bytes) < self._config.reserve_bytes and self._has_lower():
                limit = self._config.reserve_bytes
                self._memory_bound_at = self._free_bytes
                why = f"with it {free // MIB} MiB are free; ladder.reserve_bytes is {limit // MIB} MiB"
                self._lose_largest(why)
                self._capture_once()

    def _capture_once(self) -> None:
        self._runner.capture(lambda done, total: self._report(Phase.CAPTURE, done / total))
        self._lost = [*self._runner.failed, *self._lost]
        if self._config.is_automatic and self._runner.failed:
            self._memory_bound_at = self._free_bytes

    def _measured(self) -> Measured:
        """Measure, of a ladder without numbers lose what takes too long, and keep what is found."""
        with self._phase(Phase.MEASURE):
            table = measure(self._runner, self._tower, self._clock, wall=self._wall)
        while (
            self._config.is_automatic and table.rung_ms[-1] > self._config.max_pack_ms and self._has_lower()
        ):
            limit = self._config.max_pack_ms
            self._lose_largest(f"measured {table.rung_ms[-1]:.1f} ms; ladder.max_pack_ms is {limit:g}")
            table = replace(table, rung_ms=table.rung_ms[: len(self._runner.ladder)])
        measured = Measured(
            subject=self._subject,
            card=self._card,
            at=datetime.now(UTC),
            ladder=self._runner.ladder,
            table=table,
            choices=self._tower.choices if isinstance(self._tower, Tunes) else (),
            not_captured=self._not_captured,
            memory_bound_at=self._memory_bound_at,
        )
        save(measured)
        return measured

    @property
    def _not_captured(self) -> tuple[NotCaptured, ...]:
        order = {rung: position for position, rung in enumerate(self._subject.rungs)}
        return tuple(sorted(self._lost, key=lambda lost: order[lost.rung]))

    def _has_lower(self) -> bool:
        """Whether there is a budget below the largest."""
        return self._runner.ladder[0].budget < self._runner.ladder[-1].budget

    def _lose_largest(self, why: str) -> None:
        """Give up all rungs of the largest budget."""
        largest = self._runner.ladder[-1].budget
        lost = [rung for rung in self._runner.ladder if rung.budget == largest]
        logger.warning("the rungs of budget %d are given up: %s", largest, why)
        self._lost = [*(NotCaptured(rung, why) for rung in lost), *self._lost]
        self._runner.keep(len(self._runner.ladder) - len(lost))

    @contextmanager
    def _phase(self, phase: Phase) -> Iterator[None]:
        """Tell of a phase, and add its seconds to those of the start, but for those of tuning."""
        self._report(phase, 0.0)
        began, tuned = time.perf_counter(), self._runner.tune_s
        yield
        seconds = time.perf_counter() - began - (self._runner.tune_s - tuned)
        self._start_s[phase.value] = self._start_s.get(phase.value, 0.0) + seconds
