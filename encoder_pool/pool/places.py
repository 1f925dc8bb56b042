"""Where a reply's rows go: into arrays of their own, or one item after the other into memory that is shared.

An item that nobody else can want goes from the ring straight to its place, one copy. One that the cache has,
or will keep, is copied to its place from the cache's array, which stays the cache's: consumers may write to
what they get. Knows nothing of how memory changes hands.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from encoder_pool.core import Embedding
from encoder_pool.delivery.leases import Leases, Promise
from encoder_pool.errors import TooLarge, Unavailable
from encoder_pool.http.service import Shared, Sharing

Rows = npt.NDArray[np.generic]
Shape = tuple[int, int]

ALIGNMENT = 64
"""Of each item's first row, in bytes: a cache line, and the widest vector load."""


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a reply's items, in order.

    rows    each item's array in the shared memory; None for one of its own
    shared  the memory, if it is shared
    """

    rows: tuple[Rows | None, ...]
    shared: Shared | None = None

    async def fill(self, embeddings: Sequence[Embedding]) -> tuple[Embedding, ...]:
        """The embeddings at their places; those that lie elsewhere are copied, in a thread."""
        if not self.copied_bytes(embeddings):
            return tuple(embeddings)
        return await asyncio.to_thread(lambda: tuple(map(_place, embeddings, self.rows)))

    def copied_bytes(self, embeddings: Iterable[Embedding]) -> int:
        """Bytes that `fill` copies."""
        pairs = zip(embeddings, self.rows, strict=True)
        return sum(each.rows.nbytes for each, rows in pairs if rows is not None and each.rows is not rows)


@asynccontextmanager
async def places_for(
    leases: Leases, sharing: Sharing, shapes: Sequence[Shape], dtype: np.dtype[np.generic]
) -> AsyncIterator[Places]:
    """Places for items of these shapes; shared memory is its consumer's when the block ends well.

    Raises TooLarge or Unavailable where only shared memory will do and there is none.
    """
    places = Places((None,) * len(shapes))
    async with AsyncExitStack() as stack:
        if sharing is not Sharing.NEVER:
            offsets = _offsets(shapes, dtype.itemsize)
            try:
                promise = await stack.enter_async_context(leases.reserved(offsets.pop()))
                places = _in_memory(promise, offsets, shapes, dtype)
            except (TooLarge, Unavailable):
                leases.counters.refused += 1
                if sharing is Sharing.ALWAYS:
                    raise
        yield places


def _in_memory(
    promise: Promise, offsets: Sequence[int], shapes: Sequence[Shape], dtype: np.dtype[np.generic]
) -> Places:
    arrays = (promise.segment.array(*place, dtype) for place in zip(offsets, shapes, strict=True))
    return Places(tuple(arrays), Shared(promise.handle, tuple(offsets)))


def _offsets(shapes: Sequence[Shape], itemsize: int) -> list[int]:
    """Where each item starts, and where the last ends."""
    sizes = [-(-tokens * width * itemsize // ALIGNMENT) * ALIGNMENT for tokens, width in shapes]
    return list(accumulate(sizes, initial=0))


def _place(embedding: Embedding, rows: Rows | None) -> Embedding:
    assert rows is not None, "either all rows are in shared memory, or none"
    if embedding.rows is rows:
        return embedding
    np.copyto(rows, embedding.rows)
    return replace(embedding, rows=rows)
