"""What a service counted between two looks at its `/info`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Counted:
    """Sums since the service started, or what came to them between two looks.

    padding_tokens  that replays computed and that belonged to no item
    """

    packs: int
    items: int
    tokens: int
    cached: int
    padding_tokens: int

    @staticmethod
    def of(info: Mapping[str, Any]) -> Counted:
        """From a document of `/info`. What others than its replica have counted is as of a second ago."""
        replicas = (info["pool"] or {"replicas": []})["replicas"]
        counters = info["counters"] if len(replicas) < 2 else info["pool"]["counters"]
        return Counted(
            counters["packs"],
            counters["items_packed"],
            counters["tokens"],
            counters["items_cached"],
            counters["padding_tokens"],
        )

    def since(self, before: Counted) -> Counted:
        """What came since."""
        return Counted(
            self.packs - before.packs,
            self.items - before.items,
            self.tokens - before.tokens,
            self.cached - before.cached,
            self.padding_tokens - before.padding_tokens,
        )

    @property
    def mean_batch(self) -> float:
        """Items of a pack; zero without packs."""
        return self.items / self.packs if self.packs else 0.0

    @property
    def padding(self) -> float:
        """Share of the computed tokens that belonged to no item."""
        return self.padding_tokens / computed if (computed := self.tokens + self.padding_tokens) else 0.0

    @property
    def tokens_an_item(self) -> float:
        """On average; zero without items."""
        return self.tokens / self.items if self.items else 0.0
