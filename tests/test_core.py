from __future__ import annotations

from dataclasses import FrozenInstanceError, astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoder_pool.core import Cost, DType, Grid, Media, Modality, Pack, Rung

counters = st.integers(0, 1000)
costs = st.builds(Cost, counters, counters, counters, counters, counters)


@given(costs, costs)
def test_costs_add_counter_by_counter_and_the_longest_segment_is_the_longer(one: Cost, other: Cost) -> None:
    *summed, longest = astuple(one + other)
    assert summed == [a + b for a, b in zip(astuple(one)[:4], astuple(other)[:4], strict=True)]
    assert longest == max(one.longest, other.longest)


@given(st.lists(costs, max_size=5))
def test_the_total_of_costs_is_their_sum_in_any_order(several: list[Cost]) -> None:
    columns = zip(*(astuple(cost) for cost in several), strict=True)
    *summed, longest = list(columns) or [(0,)] * 5
    expected = [*(sum(column) for column in summed), max(longest)]
    assert list(astuple(Cost.total(several))) == expected
    assert Cost.total(reversed(several)) == Cost.total(several)


@given(costs, costs)
def test_a_cost_fits_what_it_is_a_part_of(part: Cost, rest: Cost) -> None:
    assert part.fits(part + rest)
    assert part.fits(part)


@pytest.mark.parametrize("counter", ["patch_rows", "out_rows", "sequences", "windows", "longest"])
def test_one_counter_too_many_does_not_fit(counter: str) -> None:
    numbers = {"patch_rows": 8, "out_rows": 8, "sequences": 8, "windows": 8, "longest": 8}
    capacity = Cost(**numbers)
    assert not Cost(**{**numbers, counter: 9}).fits(capacity)
    assert Cost(**{**numbers, counter: 7}).fits(capacity)


def test_a_tower_without_windows_and_lengths_asks_for_none() -> None:
    assert (Cost(1, 1, 1).windows, Cost(1, 1, 1).longest) == (0, 0)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_an_element_type_is_stored_in_its_own_size(dtype: str, size: int) -> None:
    assert DType(dtype).storage.itemsize == size


def test_bfloat16_is_stored_as_its_bits_and_the_others_as_floats() -> None:
    assert DType.BFLOAT16.storage == np.uint16
    assert DType.FLOAT16.storage == np.float16
    assert DType.FLOAT32.storage == np.float32


def test_nouns_cannot_be_changed() -> None:
    rung = Rung(4, Cost(4, 4, 4))
    with pytest.raises(FrozenInstanceError):
        rung.budget = 5  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        rung.capacity.patch_rows = 5  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        Media(Modality.IMAGE, b"", "").data = b"other"  # type: ignore[misc]


def test_modalities_and_grids_are_written_as_plain_json() -> None:
    assert f"{Modality.IMAGE}, {Modality.VIDEO}, {Modality.AUDIO}" == "image, video, audio"
    assert tuple(Grid(1, 2, 3)) == (1, 2, 3)


def test_costs_rungs_and_packs_are_equal_by_value_and_usable_as_keys() -> None:
    assert {Rung(1, Cost(1, 2, 3)): "here"}[Rung(1, Cost(1, 2, 3))] == "here"
    assert Pack((0, 1), None) == Pack((0, 1), None)
