"""How many GPUs some traffic needs: the least number that answers nearly all of it within a p99."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from encoder_pool.simulate.results import Result

LOST = 0.001
"""Share of requests that may get no embeddings."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked of the pool."""

    p99_ms: float

    def is_met(self, result: Result) -> bool:
        """Whether this many GPUs are enough."""
        return result.lost <= LOST * result.requests and result.p99_ms <= self.p99_ms


def fewest(goal: Goal, at_most: int, attempt: Callable[[int], Result]) -> list[Result]:
    """All that was tried, ascending; the first that meets the goal is the answer, if any does.

    Numbers are doubled until one is enough, then halved in between: more GPUs are taken to be no worse.
    """
    tried: dict[int, Result] = {}

    def is_enough(gpus: int) -> bool:
        tried[gpus] = attempt(gpus)
        return goal.is_met(tried[gpus])

    too_few, enough = 0, 1
    while not is_enough(enough):
        if enough == at_most:
            return _ascending(tried)
        too_few, enough = enough, min(2 * enough, at_most)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return _ascending(tried)


def _ascending(tried: dict[int, Result]) -> list[Result]:
    return [tried[gpus] for gpus in sorted(tried)]
