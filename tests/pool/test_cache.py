from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_pool.config import CacheConfig, LimitsConfig
from encoder_pool.core import DType, Embedding, Grid, Media, Modality, Source
from encoder_pool.pool.cache import ENTRY_BYTES, EmbeddingCache
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.weights import ensure
from tests.odd_media import photo, picture

WIDTH = 4


def embedding(tokens: int = 2, value: float = 0.0, width: int = WIDTH) -> Embedding:
    rows = np.full((tokens, width), value, np.float32)
    return Embedding(rows, DType.FLOAT32, Modality.IMAGE, Grid(1, 1, tokens), 0, (), "00", Source("PNG"))


def size(tokens: int) -> int:
    return tokens * WIDTH * 4 + ENTRY_BYTES


def cache(max_bytes: int = 1 << 20) -> EmbeddingCache:
    return EmbeddingCache(max_bytes, WIDTH, DType.FLOAT32)


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


def test_what_was_put_is_found_uncopied_and_nobody_can_write_to_it() -> None:
    held, made = cache(), embedding(3, 7.0)
    held.put(key(1), made, 3)
    found = held.get(key(1))
    assert found is made
    assert found.rows.base is None  # its memory is its own and no larger
    with pytest.raises(ValueError, match="read-only"):
        found.rows[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        found.rows[1:].setflags(write=True)


def test_a_view_of_a_pack_is_not_taken() -> None:
    pack = embedding(8)
    with pytest.raises(AssertionError, match="memory of others"):
        cache().put(key(1), replace(pack, rows=pack.rows[2:4]), 2)


def test_the_least_recently_used_make_room() -> None:
    held = cache(3 * size(2))
    for number in range(3):
        held.put(key(number), embedding(value=number), 2)
    assert held.get(key(0)) is not None
    held.put(key(3), embedding(), 2)
    assert [number for number in range(4) if held.get(key(number)) is not None] == [0, 2, 3]
    assert held.describe() == {
        "max_bytes": 3 * size(2),
        "bytes": 3 * size(2),
        "entries": 3,
        "hits": 4,
        "misses": 1,
        "evictions": 1,
    }


def test_an_entry_at_the_bound_is_kept_and_one_beyond_it_drops_nothing() -> None:
    held = cache(size(8))
    held.put(key(1), embedding(8), 8)
    held.put(key(2), embedding(9), 9)
    assert held.get(key(1)) is not None
    assert held.get(key(2)) is None
    assert held.counters.evictions == 0


def test_the_default_is_as_many_images_as_it_says() -> None:
    adapter = GridAdapter(ensure("config:qwen2.5-vl-7b"))
    image = Media(Modality.IMAGE, picture("JPEG", photo(1024, 1024)), "")
    tokens = adapter.prepare(image, LimitsConfig()).tokens
    description = CacheConfig.model_fields["max_bytes"].description or ""
    for rows, width, bytes_each in ((tokens, adapter.width, 2), (257, 384, 4)):
        held = CacheConfig().max_bytes // (rows * width * bytes_each + ENTRY_BYTES)
        assert f" {held} " in description


def test_nothing_is_held_in_no_bytes() -> None:
    held = cache(0)
    assert not held.is_on
    held.put(key(1), embedding(0), 0)
    assert (len(held), held.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("made", "tokens"),
    [
        (embedding(2), 3),
        (embedding(2, width=WIDTH + 1), 2),
        (replace(embedding(2), dtype=DType.FLOAT16), 2),
        (replace(embedding(2), rows=np.zeros((2, WIDTH), np.float64)), 2),
    ],
)
def test_an_entry_that_is_not_what_is_expected_is_dropped_and_a_miss(made: Embedding, tokens: int) -> None:
    held = cache()
    held.put(key(1), made, tokens)
    assert held.get(key(1)) is None
    assert (len(held), held.bytes) == (0, 0)
    assert (held.counters.hits, held.counters.misses) == (0, 1)


def test_an_entry_that_somebody_made_writable_is_dropped() -> None:
    held, made = cache(), embedding()
    held.put(key(1), made, 2)
    made.rows.setflags(write=True)
    assert held.get(key(1)) is None


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(1, 400)), max_size=120),
)
def test_it_is_the_simplest_lru_and_never_above_its_bound(
    capacity: int, steps: list[tuple[bool, int, int]]
) -> None:
    held = cache(capacity * 1200)
    model: OrderedDict[int, int] = OrderedDict()
    for at, (is_put, number, tokens) in enumerate(steps):
        if is_put:
            held.put(key(number), embedding(tokens, at), tokens)
            if size(tokens) <= held.max_bytes:
                model.pop(number, None)
                while sum(map(size, model.values())) + size(tokens) > held.max_bytes:
                    model.popitem(last=False)
                model[number] = tokens
        else:
            found = held.get(key(number))
            assert (None if found is None else len(found.rows)) == model.get(number)
            if number in model:
                model.move_to_end(number)
        assert held.bytes == sum(map(size, model.values())) <= held.max_bytes
        assert len(held) == len(model)
