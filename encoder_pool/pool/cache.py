"""Embeddings that were made before, by what made them: least recently used, bounded in bytes.

Every entry owns its rows: an array that were a view would hold its whole pack. Whoever gets an entry gets
the array itself, which nobody can write to any more. An entry that is not what this pool would make now is
dropped when it is met, and the item encoded again. Knows nothing of keys, of media or of the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import NamedTuple

from encoder_pool.core import DType, Embedding

ENTRY_BYTES = 1024
"""What an entry takes beside its rows: its key, its place, its description; rounded up."""


class Entry(NamedTuple):
    """An embedding, and the rows it must have."""

    embedding: Embedding
    tokens: int

    @property
    def num_bytes(self) -> int:
        """What it counts for."""
        return self.embedding.rows.nbytes + ENTRY_BYTES


@dataclass(slots=True)
class CacheCounters:
    """Look-ups that found something and that did not, and entries that made room for others."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0


class EmbeddingCache:
    """Rows of `width` columns in one type, in `max_bytes` at most; holds nothing if that is zero."""

    def __init__(self, max_bytes: int, width: int, dtype: DType) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.counters = CacheCounters()
        self._width = width
        self._dtype = dtype
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_on(self) -> bool:
        """Whether it may hold anything."""
        return self.max_bytes > 0

    def get(self, key: bytes) -> Embedding | None:
        """The embedding of this key, which now is the most recently used; None if there is none."""
        entry = self._entries.get(key)
        if entry is not None and not self._is_valid(entry):
            self._drop(key)
            entry = None
        if entry is None:
            self.counters.misses += 1
            return None
        self._entries.move_to_end(key)
        self.counters.hits += 1
        return entry.embedding

    def put(self, key: bytes, embedding: Embedding, tokens: int) -> None:
        """Keep the embedding of an item of so many tokens, if it fits; nobody writes to its rows any more.

        They must own their memory.
        """
        assert embedding.rows.base is None, "a view would hold the memory of others"
        embedding.rows.setflags(write=False)
        entry = Entry(embedding, tokens)
        if entry.num_bytes > self.max_bytes:
            return
        if key in self._entries:
            self._drop(key)
        while self.bytes + entry.num_bytes > self.max_bytes:
            self._drop(next(iter(self._entries)))
            self.counters.evictions += 1
        self._entries[key] = entry
        self.bytes += entry.num_bytes

    def describe(self) -> dict[str, int]:
        """Bound, content and counters, for `/info`."""
        held = {"max_bytes": self.max_bytes, "bytes": self.bytes, "entries": len(self)}
        return held | asdict(self.counters)

    def _drop(self, key: bytes) -> None:
        self.bytes -= self._entries.pop(key).num_bytes

    def _is_valid(self, entry: Entry) -> bool:
        embedding, rows = entry.embedding, entry.embedding.rows
        return (
            rows.shape == (entry.tokens, self._width)
            and rows.dtype == self._dtype.storage
            and embedding.dtype is self._dtype
            and not rows.flags.writeable
        )
