"""Serve's part of autoscaling around the pool's own policy: reports, look-back, delays, bounds.

Replicas report each second and the policy sees the largest value of the last five, as `builder` configures
it; more (or fewer) must be wanted for the whole of a delay before the number changes. A replica that is added
serves when it has started.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from encoder_pool.config import ScalingConfig
from encoder_pool.pool.scaling import WorkPolicy
from encoder_pool.simulate.fleet import Fleet, Placed

REPORT_S, LOOK_BACK_S = 1.0, 5.0
"""`metrics_interval_s` and `look_back_period_s` of `builder`."""


class Report(NamedTuple):
    """What a replica said of its work, and when."""

    timestamp: float
    values: Mapping[str, float]


@dataclass(slots=True)
class _Situation:
    """What the policy is shown."""

    current_num_replicas: int
    target_num_replicas: int
    current_time: float | None
    aggregated_metrics: Mapping[str, Mapping[Any, float]]
    raw_metrics: Mapping[str, Mapping[Any, Sequence[Report]]]


class Autoscaler:
    """Keeps the number of a fleet's replicas; `target` is what it is about to be."""

    def __init__(self, fleet: Fleet, config: ScalingConfig, start_s: float) -> None:
        """A replica that is added takes `start_s` to start."""
        self.target = len(fleet.serving)
        self._fleet = fleet
        self._config = config
        self._start_s = start_s
        self._reports: dict[Placed, deque[Report]] = {}
        self._direction, self._since = 0, 0.0
        self._changes: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        policy = WorkPolicy(self._config.target_drain_s)
        while True:
            await asyncio.sleep(REPORT_S)
            self._collect()
            wanted, _ = policy(self._situation())
            self._follow(min(max(wanted, self._config.min_replicas), self._config.max_replicas))

    def _situation(self) -> _Situation:
        names = {name for reports in self._reports.values() for name in reports[-1].values}
        return _Situation(
            current_num_replicas=len(self._fleet.serving),
            target_num_replicas=self.target,
            current_time=asyncio.get_running_loop().time(),
            aggregated_metrics={name: self._largest(name) for name in names},
            raw_metrics=dict.fromkeys(names, self._reports),
        )

    def _largest(self, name: str) -> Mapping[Any, float]:
        """By replica, the largest value of the look-back."""
        return {
            placed: max(each.values[name] for each in reports) for placed, reports in self._reports.items()
        }

    def _collect(self) -> None:
        longest, now = round(LOOK_BACK_S / REPORT_S), asyncio.get_running_loop().time()
        kept, self._reports = self._reports, {}
        for placed in self._fleet.serving:
            self._reports[placed] = kept.get(placed, deque(maxlen=longest))
            self._reports[placed].append(Report(now, placed.replica.report()))

    def _follow(self, wanted: int) -> None:
        """Change the number if this has been wanted for long enough."""
        now, direction = asyncio.get_running_loop().time(), (wanted > self.target) - (wanted < self.target)
        if direction != self._direction:
            self._direction, self._since = direction, now
        lasts_s = now - self._since
        if direction > 0 and lasts_s >= self._config.upscale_delay_s:
            self._do(self._fleet.add(self._start_s) for _ in range(wanted - self.target))
            self.target = wanted
        elif direction < 0 and lasts_s >= self._config.downscale_delay_s:
            # One that still starts cannot be removed; the next tick wants the same again.
            fewer = min(self.target - wanted, len(self._fleet.serving) - 1)
            self._do(self._fleet.remove() for _ in range(fewer))
            self.target -= fewer

    def _do(self, changes: Iterable[Coroutine[Any, Any, None]]) -> None:
        for change in changes:
            task = asyncio.create_task(change)
            self._changes.add(task)
            task.add_done_callback(self._changes.discard)
