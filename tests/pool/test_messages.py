from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_pool.core import Cost, Grid, Modality, PreparedItem, Source
from encoder_pool.pool.messages import ALIGNMENT, ItemLayout, PackRequest, alignment_slack, lay_out

Array = npt.NDArray[np.generic]
Shapes = list[tuple[int, ...]]

shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
dtypes = st.sampled_from(["uint8", "float16", "float32", "int64", "float64"])


def prepared(data: Array, rows: int = 1) -> PreparedItem:
    grid, source = Grid(1, rows, 1), Source("TOY")
    return PreparedItem(Modality.IMAGE, data, grid, Cost(rows, rows, 1), rows, "digest", source)


def random_array(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    raw = np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return np.frombuffer(raw, dtype).reshape(shape)


def region_for(arrays: list[Array]) -> npt.NDArray[np.uint8]:
    """A region of exactly the size that a slot is given for such items."""
    return np.full(sum(each.nbytes for each in arrays) + alignment_slack(len(arrays)), 0xAA, np.uint8)


def read(layout: ItemLayout, region: npt.NDArray[np.uint8]) -> Array:
    dtype = np.dtype(layout.dtype)
    return np.frombuffer(region, dtype, int(np.prod(layout.shape)), layout.offset).reshape(layout.shape)


@given(st.lists(st.tuples(shapes, dtypes), max_size=6))
def test_items_of_mixed_types_are_read_back_bit_for_bit(kinds: list[tuple[tuple[int, ...], str]]) -> None:
    arrays = [random_array(shape, dtype, seed) for seed, (shape, dtype) in enumerate(kinds)]
    region = region_for(arrays)
    layouts = lay_out([prepared(array) for array in arrays], region)
    for array, layout in zip(arrays, layouts, strict=True):
        back = read(layout, region)
        assert (back.shape, back.dtype) == (array.shape, array.dtype)
        assert back.tobytes() == array.tobytes()


@given(st.lists(st.tuples(shapes, dtypes), max_size=6))
def test_items_lie_aligned_in_order_and_apart(kinds: list[tuple[tuple[int, ...], str]]) -> None:
    arrays = [random_array(shape, dtype) for shape, dtype in kinds]
    layouts = lay_out([prepared(array) for array in arrays], region_for(arrays))
    ends = [layout.offset + array.nbytes for layout, array in zip(layouts, arrays, strict=True)]
    assert all(layout.offset % ALIGNMENT == 0 for layout in layouts)
    assert all(end <= layout.offset for end, (_, layout) in zip(ends, pairwise(layouts), strict=False))


def test_an_alignment_serves_every_element_type() -> None:
    assert all(ALIGNMENT % np.dtype(name).alignment == 0 for name in ("float64", "int64", "complex128"))


def test_only_the_items_own_bytes_are_written() -> None:
    region = np.full(2 * ALIGNMENT, 0xAA, np.uint8)
    lay_out([prepared(np.zeros(3, np.uint8)), prepared(np.zeros(2, np.uint8))], region)
    written = np.flatnonzero(region != 0xAA).tolist()
    assert written == [0, 1, 2, ALIGNMENT, ALIGNMENT + 1]


def test_an_item_that_ends_on_a_boundary_wastes_nothing() -> None:
    items = [prepared(np.zeros(ALIGNMENT, np.uint8))] * 2
    assert [each.offset for each in lay_out(items, np.zeros(2 * ALIGNMENT, np.uint8))] == [0, ALIGNMENT]


def test_a_layout_tells_the_tower_what_it_must_know() -> None:
    item = prepared(np.zeros((2, 3), np.float32), rows=5)
    (layout,) = lay_out([item], np.zeros(64, np.uint8))
    assert layout == ItemLayout(0, (2, 3), "<f4", Grid(1, 5, 1), Cost(5, 5, 1))


def test_a_pack_that_does_not_fit_its_slot_is_our_fault_and_not_written_over_the_next() -> None:
    region = np.full(8, 0xAA, np.uint8)
    with pytest.raises(AssertionError, match="fits its slot"):
        lay_out([prepared(np.zeros(9, np.uint8))], region)
    assert (region == 0xAA).all()


def test_no_items_have_no_layout() -> None:
    assert lay_out([], np.zeros(0, np.uint8)) == ()


def test_a_request_crosses_a_process_without_the_bytes() -> None:
    item = prepared(np.zeros((1000, 1000), np.uint8))
    request = PackRequest(1, None, lay_out([item], np.zeros(1_000_000, np.uint8)))
    sent = pickle.dumps(request)
    assert pickle.loads(sent) == request
    assert len(sent) < 1000
