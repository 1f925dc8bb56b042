"""What a pool counts. Plain numbers that only grow; every item that was let in is in exactly one ending."""

from __future__ import annotations

from asyncio import CancelledError, Future
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from encoder_pool.core import Media, Modality
from encoder_pool.errors import DeadlineExceeded
from encoder_pool.graphs.counters import Counters


class Ending(StrEnum):
    """How an item of an admitted request ended.

    OK, FAILED  by the tower
    EXPIRED     its deadline passed
    CANCELLED   its request left, or gave up because of another item
    CACHED      found in the cache; one that shared an equal item's way is in one of the others
    REJECTED    never queued: it, or another of its request, was undecodable, too large, or too much
    """

    OK = "ok"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    CACHED = "cached"
    REJECTED = "rejected"


@dataclass(slots=True)
class PoolCounters:
    """Counters of one replica since it started.

    endings  of the items of admitted requests
    tokens   rows of embeddings that were encoded
    packs, packs_failed, items_retried  packs that came back, those that did not, and their items
    items_packed  items in the packs that came back, and pieces of items
    items_split, pieces  items that entered in pieces, and the pieces that these were cut into
    reply_bytes, copied_bytes  rows that answers were made of, and rows that were copied, for requests that
        left, too: out of the ring, or into shared memory. Safetensors leave as these rows lie; JSON is
        written anew, which is not counted.
    padding_tokens  rows that rungs had room for and no item filled
    probes  items that were run once more, for nobody, after another's rows were not finite

    A pack knows nothing of where its pieces come from: they are items to it, and to the shard's counters.
    """

    endings: Counter[tuple[Modality, Ending]] = field(default_factory=Counter)
    tokens: Counter[Modality] = field(default_factory=Counter)
    packs: int = 0
    packs_failed: int = 0
    items_packed: int = 0
    items_retried: int = 0
    items_split: int = 0
    pieces: int = 0
    reply_bytes: int = 0
    copied_bytes: int = 0
    padding_tokens: int = 0
    probes: int = 0

    def count_all(self, media: Sequence[Media], ending: Ending) -> None:
        """Count all these items by one ending."""
        self.endings.update((one.modality, ending) for one in media)

    def count_unqueued(self, media: Sequence[Media], reason: BaseException, *, is_expired: bool) -> None:
        """Count the items of a request that ended before any of them was queued, by what ended it."""
        gave_up = Ending.EXPIRED if is_expired else Ending.CANCELLED
        self.count_all(media, gave_up if isinstance(reason, CancelledError) else Ending.REJECTED)

    def count_ending(self, modality: Modality, future: Future[Any], *, is_expired: bool) -> None:
        """Count an item by the way its future ended; one without an end was given up by its request.

        is_expired  whether the request gave up because its deadline had passed
        """
        self.endings[modality, _ending(future, is_expired)] += 1

    @property
    def items_ok(self) -> int:
        """Items that were encoded."""
        return self._ended(Ending.OK)

    @property
    def items_failed(self) -> int:
        """Items that the tower failed on."""
        return self._ended(Ending.FAILED)

    @property
    def items_expired(self) -> int:
        """Items whose deadline passed."""
        return self._ended(Ending.EXPIRED)

    @property
    def items_cancelled(self) -> int:
        """Items that were given up."""
        return self._ended(Ending.CANCELLED)

    @property
    def items_cached(self) -> int:
        """Items that were found in the cache."""
        return self._ended(Ending.CACHED)

    @property
    def items_rejected(self) -> int:
        """Items that were never queued."""
        return self._ended(Ending.REJECTED)

    def totals(self) -> dict[str, int]:
        """All counters by name."""
        return {
            **{f"items_{ending}": self._ended(ending) for ending in Ending},
            "tokens": self.tokens.total(),
            "packs": self.packs,
            "packs_failed": self.packs_failed,
            "items_packed": self.items_packed,
            "items_retried": self.items_retried,
            "items_split": self.items_split,
            "pieces": self.pieces,
            "padding_tokens": self.padding_tokens,
            "probes": self.probes,
            "reply_bytes": self.reply_bytes,
            "copied_bytes": self.copied_bytes,
        }

    def _ended(self, ending: Ending) -> int:
        return sum(count for (_, its), count in self.endings.items() if its is ending)


def with_ratios(totals: Mapping[str, int]) -> dict[str, int | float]:
    """Counters of one replica or of several, the mean batch, and how often a reply's byte was copied."""
    mean_batch = totals["items_packed"] / totals["packs"] if totals["packs"] else 0.0
    copies = totals["copied_bytes"] / totals["reply_bytes"] if totals["reply_bytes"] else 0.0
    return {**totals, "mean_batch": round(mean_batch, 3), "copies_per_reply_byte": round(copies, 3)}


def _ending(future: Future[Any], is_expired: bool) -> Ending:
    if not future.done() or future.cancelled():
        return Ending.EXPIRED if is_expired else Ending.CANCELLED
    if (error := future.exception()) is None:
        return Ending.OK
    return Ending.EXPIRED if isinstance(error, DeadlineExceeded) else Ending.FAILED


NOTHING_RUN = Counters({}, {})


class RunHistory:
    """The runs of all shards that a worker has had, of which each counts from zero again.

    last  of the shard that runs, or ran last; None before its first pack came back
    """

    def __init__(self) -> None:
        self.last: Counters | None = None
        self._before = NOTHING_RUN
        self._shard = 0

    def note(self, shard: int, counters: Counters) -> None:
        """What the shard of this number had run; what a later pack said before stands."""
        if self.last is not None and (shard, counters.total.runs) < (self._shard, self.last.total.runs):
            return
        if shard != self._shard and self.last is not None:
            self._before += self.last
        self._shard, self.last = shard, counters

    @property
    def total(self) -> Counters:
        """Of all of them."""
        return self._before if self.last is None else self._before + self.last
