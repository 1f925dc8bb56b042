"""What a pool counts. Plain numbers that only grow; every item that was let in is in exactly one ending."""

from __future__ import annotations

from asyncio import Future
from dataclasses import asdict, dataclass
from typing import Any

from encoder_pool.errors import DeadlineExceeded


@dataclass(slots=True)
class PoolCounters:
    """Counters of one replica since it started.

    items_ok, items_failed, items_expired, items_cancelled, items_cached  the endings of an admitted item; one
        that was found in the cache is in the last, one that shared an equal item's way in one of the others
    packs, packs_failed, items_retried  packs that came back, those that did not, and their items
    items_packed  items in the packs that came back, and pieces of items
    items_split, pieces  items that entered in pieces, and the pieces that these were cut into
    reply_bytes, copied_bytes  rows that answers were made of, and rows that were copied, for requests that
        left, too: out of the ring, or into shared memory. Safetensors leave as these rows lie; JSON is
        written anew, which is not counted.

    A pack knows nothing of where its pieces come from: they are items to it, and to the shard's counters.
    """

    items_ok: int = 0
    items_failed: int = 0
    items_expired: int = 0
    items_cancelled: int = 0
    items_cached: int = 0
    tokens: int = 0
    packs: int = 0
    packs_failed: int = 0
    items_packed: int = 0
    items_retried: int = 0
    items_split: int = 0
    pieces: int = 0
    reply_bytes: int = 0
    copied_bytes: int = 0

    def count_ending(self, future: Future[Any], *, is_expired: bool) -> None:
        """Count an item by the way its future ended; one without an end was given up by its request.

        is_expired  whether the request gave up because its deadline had passed
        """
        if not future.done() or future.cancelled():
            self.items_expired += is_expired
            self.items_cancelled += not is_expired
        elif (error := future.exception()) is None:
            self.items_ok += 1
        elif isinstance(error, DeadlineExceeded):
            self.items_expired += 1
        else:
            self.items_failed += 1

    def snapshot(self) -> dict[str, int | float]:
        """All counters, the mean batch, and how often a reply's byte was copied."""
        mean_batch = self.items_packed / self.packs if self.packs else 0.0
        copies = self.copied_bytes / self.reply_bytes if self.reply_bytes else 0.0
        return {
            **asdict(self),
            "mean_batch": round(mean_batch, 3),
            "copies_per_reply_byte": round(copies, 3),
        }
