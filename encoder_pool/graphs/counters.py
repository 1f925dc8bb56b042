"""What a runner has done, as numbers that add up: every item is counted once, under a rung or a reason.

`Counters` is a frozen snapshot; `Ledger` is the runner's own book. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from encoder_pool.core import Cost, Rung

K = TypeVar("K", bound=Hashable)


class EagerReason(StrEnum):
    """Why a batch ran at its own shape instead of a rung's."""

    NO_LADDER = "no_ladder"
    FITS_NO_RUNG = "fits_no_rung"
    RUNG_DROPPED = "rung_dropped"
    CHEAPER = "cheaper"


@dataclass(frozen=True, slots=True)
class Tally:
    """Runs, the items in them, the patch rows of the items, and the patch rows that were computed."""

    runs: int = 0
    items: int = 0
    rows_asked: int = 0
    rows_run: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(
            self.runs + other.runs,
            self.items + other.items,
            self.rows_asked + other.rows_asked,
            self.rows_run + other.rows_run,
        )

    @property
    def padding(self) -> float:
        """Share of the computed rows that belonged to no item; 0 when nothing ran."""
        return 1 - self.rows_asked / self.rows_run if self.rows_run else 0.0


@dataclass(frozen=True, slots=True)
class Counters:
    """Successful runs since the start: by budget, its tiers together, and eager ones by reason."""

    replays: Mapping[int, Tally]
    eager: Mapping[EagerReason, Tally]

    def __add__(self, other: Counters) -> Counters:
        """Both together."""
        return Counters(_both(self.replays, other.replays), _both(self.eager, other.eager))

    @property
    def total(self) -> Tally:
        """All runs, captured and eager."""
        return sum((*self.replays.values(), *self.eager.values()), Tally())


class Ledger:
    """Counts runs. Not thread-safe: the runner's lock guards it."""

    def __init__(self) -> None:
        self._replays: dict[int, Tally] = {}
        self._eager: dict[EagerReason, Tally] = {}

    def replayed(self, rung: Rung, items: int, cost: Cost) -> None:
        """One replay of a rung."""
        run = Tally(1, items, cost.patch_rows, rung.capacity.patch_rows)
        self._replays[rung.budget] = self._replays.get(rung.budget, Tally()) + run

    def ran_eagerly(self, reason: EagerReason, items: int, cost: Cost) -> None:
        """One run at the batch's own shape."""
        run = Tally(1, items, cost.patch_rows, cost.patch_rows)
        self._eager[reason] = self._eager.get(reason, Tally()) + run

    def snapshot(self, ladder: Iterable[Rung]) -> Counters:
        """The counts until now; the rungs of the ladder are listed even if they never ran."""
        replays = {rung.budget: Tally() for rung in ladder} | self._replays
        return Counters(replays, dict(self._eager))


def _both(one: Mapping[K, Tally], other: Mapping[K, Tally]) -> Mapping[K, Tally]:
    return {key: one.get(key, Tally()) + other.get(key, Tally()) for key in {**one, **other}}
