from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_pool.config import LimitsConfig, PoolConfig
from encoder_pool.core import Cost, Media, Modality
from encoder_pool.pool.messages import ALIGNMENT, lay_out
from encoder_pool.pool.sizing import Sizing, size_pool
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.weights import ensure
from tests.pool.split_toy import SplitToyAdapter
from tests.toy import TOKENS, WIDTH, ToyAdapter, toy


def sized(
    model: dict[str, Any] | None = None, adapter: type[ToyAdapter] = ToyAdapter, **sections: Any
) -> Sizing:
    named = {"name": "toy", "adapter": "tests.toy:ToyAdapter", "checkpoint": "unused", **(model or {})}
    document = {"model": named, "ladder": {"min": 1, "max": 8}, **sections}
    return size_pool(PoolConfig.model_validate(document), adapter(Path()))


def test_the_largest_item_is_the_top_rung_unless_more_may_run_eagerly() -> None:
    assert sized().largest_item == Cost(8, 8 * TOKENS, 8)
    assert sized(ladder={"min": 1, "max": 8, "eager_max": 8}).largest_item == Cost(8, 8 * TOKENS, 8)
    assert sized(ladder={"min": 1, "max": 8, "eager_max": 11}).largest_item == Cost(11, 11 * TOKENS, 11)


def test_an_eager_item_does_not_change_the_ladder() -> None:
    budgets = [rung.budget for rung in sized(ladder={"min": 1, "max": 8, "eager_max": 11}).ladder]
    assert budgets == [1, 2, 4, 8]


def test_a_slot_holds_the_largest_item_and_its_rows() -> None:
    sizing = sized(ladder={"min": 1, "max": 8, "eager_max": 10})
    assert sizing.input_bytes == 10 * 2 + 10 * ALIGNMENT
    assert sizing.output_bytes == 10 * TOKENS * WIDTH * 4


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_rows_take_the_bytes_of_their_type(dtype: str, size: int) -> None:
    assert sized({"dtype": dtype}).output_bytes == 8 * TOKENS * WIDTH * size


def test_a_ring_has_a_slot_for_every_pack_in_flight() -> None:
    sizing = sized(queue={"packs_in_flight": 3})
    assert sizing.slots == 3
    assert sizing.ring_bytes == 3 * (sizing.input_bytes + sizing.output_bytes)


def test_a_pack_that_fills_the_top_rung_fits_its_slot() -> None:
    sizing = sized()
    item = ToyAdapter(Path()).prepare(Media(Modality.IMAGE, toy(1), ""), LimitsConfig())
    layouts = lay_out([item] * 8, np.zeros(sizing.input_bytes, np.uint8))
    assert Cost.total(layout.cost for layout in layouts) == sizing.largest_item


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"ladder": {"min": 1, "max": 8, "eager_max": 4}},
            r"ladder\.eager_max \(4\) is below the largest budget \(8\)",
        ),
        (
            {"queue": {"max_tokens": 8 * TOKENS - 1}},
            r"queue\.max_tokens \(23\) is below the largest item \(24 tokens\)",
        ),
        (
            {"queue": {"max_tokens": 24}, "ladder": {"min": 1, "max": 8, "eager_max": 9}},
            r"queue\.max_tokens \(24\) is below the largest item \(27 tokens\)",
        ),
        ({"ladder": {"min": 8, "max": 4}}, r"ladder\.min \(8\) is above ladder\.max \(4\)"),
        ({"ladder": {"budgets": [4, 2]}}, r"ladder\.budgets must be ascending"),
    ],
)
def test_what_cannot_work_is_refused_with_the_key(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sized(**sections)


def test_ranks_that_an_adapter_cannot_have_are_refused() -> None:
    toys = r"model\.adapter 'tests\.toy:ToyAdapter' does not split its tower: .* must be 1 \(it is 2\)"
    with pytest.raises(ValueError, match=toys):
        sized({"tensor_parallel_size": 2})
    with pytest.raises(ValueError, match=r"model\.tensor_parallel_size 3: toys are split over 2"):
        sized({"tensor_parallel_size": 3}, SplitToyAdapter)
    assert sized({"tensor_parallel_size": 2}, SplitToyAdapter) == sized()


def test_a_queue_that_just_holds_the_largest_item_is_enough() -> None:
    assert sized(queue={"max_tokens": 8 * TOKENS}).largest_item.out_rows == 8 * TOKENS


class BoundedAdapter(ToyAdapter):
    """Whose items are of as many values as a request may have items."""

    def largest(self, limits: LimitsConfig) -> int:
        return limits.max_items


def bounded(**sections: Any) -> Sizing:
    model = {"name": "toy", "adapter": "tests.pool.test_sizing:BoundedAdapter", "checkpoint": "unused"}
    return size_pool(PoolConfig.model_validate({"model": model, **sections}), BoundedAdapter(Path()))


def test_a_ladder_without_numbers_is_sized_for_the_largest_item() -> None:
    sizing = bounded(limits={"max_items": 24})
    assert sizing.ladder[-1].budget == 24
    assert sizing.largest_item == Cost(24, 24 * TOKENS, 24)
    assert sizing.input_bytes == 24 * 2 + 24 * ALIGNMENT


def test_a_ladder_without_numbers_stays_within_what_the_queue_holds() -> None:
    sizing = bounded(limits={"max_items": 24}, queue={"max_tokens": 10 * TOKENS + 1})
    assert sizing.largest_item == Cost(10, 10 * TOKENS, 10)
    assert bounded(queue={"max_tokens": TOKENS}).ladder[-1].budget == 1


def test_more_than_the_largest_rung_may_run_eagerly_without_numbers_too() -> None:
    sizing = bounded(limits={"max_items": 24}, ladder={"eager_max": 30})
    assert sizing.ladder[-1].budget == 24
    assert sizing.largest_item == Cost(30, 30 * TOKENS, 30)
    with pytest.raises(ValueError, match=r"ladder\.eager_max \(4\) is below the largest budget \(24\)"):
        bounded(limits={"max_items": 24}, ladder={"eager_max": 4})


def test_an_adapter_that_knows_no_largest_item_needs_numbers() -> None:
    with pytest.raises(ValueError, match=r"needs 'min' and 'max'.*ToyAdapter' does not say how large"):
        sized(ladder={})


def test_the_rungs_of_a_ladder_without_numbers_are_for_a_gpu_or_a_cpu() -> None:
    model = {"name": "tiny", "adapter": "grid", "checkpoint": "config:qwen2.5-vl-7b", "load_format": "dummy"}
    sizes = {}
    for device in ("cpu", "cuda"):
        document = {"model": {**model, "device": device}, "queue": {"max_tokens": 131_072}}
        sizing = size_pool(PoolConfig.model_validate(document), GridAdapter(ensure(model["checkpoint"])))
        assert (sizing.ladder[0].budget, sizing.largest_item.out_rows) == (64, 16384)
        sizes[device] = {rung.capacity.longest for rung in sizing.ladder if rung.budget == 16384}
    assert sizes == {"cpu": {65536}, "cuda": {1024, 4096, 65536}}
