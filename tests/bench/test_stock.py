"""The yardstick of what is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from encoder_pool.bench.stock import attending_with, relative_error

from .towers import Tower


def test_pixels_are_those_of_the_image_processor(tower: Tower) -> None:
    values = tower.geometry.patch_values
    patches = torch.randint(0, 256, (3, values), dtype=torch.uint8)
    pixels = tower.stock.pixels(patches)
    normalisation = tower.adapter._processor.normalisation
    for colour in range(3):
        columns = slice(colour * values // 3, (colour + 1) * values // 3)
        expected = patches[:, columns].double() / 255 - normalisation.mean[colour]
        torch.testing.assert_close(
            pixels[:, columns].double(), expected / normalisation.std[colour], rtol=1e-5, atol=1e-5
        )


def test_rows_of_a_call_are_those_of_its_images_one_by_one(tower: Tower) -> None:
    items = [tower.seed_item(item) for item in tower.images([tower.grid(2, 3), tower.grid(4, 4)])]
    together = tower.stock.rows(torch.cat([item.pixels for item in items]), [item.grid for item in items])
    alone = torch.cat([tower.stock.rows(item.pixels, [item.grid]) for item in items])
    assert together.shape == (6 + 16, tower.geometry.width)
    assert relative_error(together, alone) < 1e-5


def test_a_wider_copy_leaves_the_tower_as_it_is(tower: Tower) -> None:
    half = type(tower.stock)(tower.stock.tower, tower.stock._normalisation)
    exact = half.in_float32()
    assert exact.dtype == torch.float32
    assert exact.tower is not half.tower


def test_the_attention_is_put_back_even_after_a_failure(tower: Tower) -> None:
    before = _attention(tower)
    with attending_with(tower.stock.tower, "eager"):
        assert _attention(tower) == "eager"
    with pytest.raises(ZeroDivisionError):
        _fail_while_attending(tower)
    assert _attention(tower) == before


def _fail_while_attending(tower: Tower) -> None:
    with attending_with(tower.stock.tower, "eager"):
        _ = 1 / 0


def _attention(tower: Tower) -> str:
    config: Any = tower.stock.tower.config
    name: str = config._attn_implementation
    return name


def test_the_error_is_relative_to_the_reference_over_all_values() -> None:
    reference = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert relative_error(reference, reference) == 0
    assert relative_error(reference * 1.5, reference) == pytest.approx(0.5)
