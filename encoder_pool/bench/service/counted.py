"""What a service counted between two looks at its `/info`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Counted:
    """Sums since the replica started, or what came to them between two looks.

    rows_asked, rows_run  patch rows of items, and those that were computed
    """

    packs: int
    items: int
    tokens: int
    cached: int
    rows_asked: int
    rows_run: int

    @staticmethod
    def of(info: Mapping[str, Any]) -> Counted:
        """From a document of `/info`."""
        counters = info["counters"]
        shard = counters["shard"] or {"replays": {}, "eager": {}}
        tallies = [*shard["replays"].values(), *shard["eager"].values()]
        return Counted(
            counters["packs"],
            counters["items_packed"],
            counters["tokens"],
            counters["items_cached"],
            sum(tally["rows_asked"] for tally in tallies),
            sum(tally["rows_run"] for tally in tallies),
        )

    def since(self, before: Counted) -> Counted:
        """What came since."""
        return Counted(
            self.packs - before.packs,
            self.items - before.items,
            self.tokens - before.tokens,
            self.cached - before.cached,
            self.rows_asked - before.rows_asked,
            self.rows_run - before.rows_run,
        )

    @property
    def mean_batch(self) -> float:
        """Items of a pack; zero without packs."""
        return self.items / self.packs if self.packs else 0.0

    @property
    def padding(self) -> float:
        """Share of the computed rows that belonged to no item."""
        return 1 - self.rows_asked / self.rows_run if self.rows_run else 0.0

    @property
    def tokens_an_item(self) -> float:
        """On average; zero without items."""
        return self.tokens / self.items if self.items else 0.0
