from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from encoder_pool.demo.draw import SIDE, Floats, centre, draw, principal_colours

WIDTH = 16
EDGE = 8
"""Pixels at the border of a view that resampling mixes with what is beyond it."""


def patches(height: int, width: int, seed: int = 0) -> Floats:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(height, width, WIDTH)).astype(np.float32)


def two_kinds(height: int, width: int, axis: int) -> Floats:
    """Left half of one kind, right half of another, with a little noise."""
    grid = patches(height, width, axis) * 0.01
    grid[:, : width // 2, 0] += 10
    grid[:, width // 2 :, 1] += 10
    return grid


def test_every_photo_gets_colours_on_its_own_grid() -> None:
    colours = principal_colours([patches(4, 6), patches(3, 2, 1)])
    assert [each.shape for each in colours] == [(4, 6, 3), (3, 2, 3)]
    assert all(each.dtype == np.uint8 for each in colours)


def test_every_component_spans_the_whole_range_of_its_colour_however_small_it_is() -> None:
    (colours,) = principal_colours([patches(20, 20) * np.geomspace(100, 1, WIDTH, dtype=np.float32)])
    assert (colours.min(axis=(0, 1)) == 0).all()
    assert (colours.max(axis=(0, 1)) == 255).all()


def test_like_patches_have_like_colours_across_photos_and_unlike_ones_do_not() -> None:
    one, other = principal_colours([two_kinds(8, 8, 0), two_kinds(8, 8, 1)])
    first = [photo[..., 0].astype(int) for photo in (one, other)]
    left = [colours[:, :4].mean() for colours in first]
    right = [colours[:, 4:].mean() for colours in first]
    assert left[0] == pytest.approx(left[1], abs=20)
    assert right[0] == pytest.approx(right[1], abs=20)
    assert abs(left[0] - right[0]) > 150


def test_the_same_patch_has_the_same_colour_wherever_it_lies() -> None:
    grid = patches(5, 4)
    one, other = principal_colours([grid, grid[::-1, ::-1]])
    assert (one == other[::-1, ::-1]).all()


def test_colours_do_not_depend_on_what_all_patches_have_in_common() -> None:
    grid = patches(6, 6)
    common = np.full(WIDTH, 3, dtype=np.float32)
    (plain,), (shifted,) = principal_colours([grid]), principal_colours([grid + common])
    # The sign of a component is arbitrary.
    same = np.abs(plain.astype(int) - shifted.astype(int)).max(axis=(0, 1))
    mirrored = np.abs(plain.astype(int) - (255 - shifted.astype(int))).max(axis=(0, 1))
    assert (np.minimum(same, mirrored) <= 2).all()


@pytest.mark.parametrize("size", [(400, 200), (200, 400), (200, 200)])
def test_the_centre_is_the_middle_square_of_a_share_of_the_shorter_side(size: tuple[int, int]) -> None:
    photo = Image.new("RGB", size, "black")
    width, height = size
    photo.paste("red", (width // 2 - 50, height // 2 - 50, width // 2 + 50, height // 2 + 50))
    view = np.asarray(centre(photo, 0.5))
    assert view.shape == (SIDE, SIDE, 3)
    assert (view[EDGE:-EDGE, EDGE:-EDGE] == (255, 0, 0)).all()
    assert view[0].mean() < 200


def test_the_whole_shorter_side_is_seen_with_a_share_of_one() -> None:
    photo = Image.new("RGB", (300, 100), "black")
    photo.paste("red", (100, 0, 200, 100))
    middle = np.asarray(centre(photo, 1.0))[:, EDGE:-EDGE]
    assert (middle == (255, 0, 0)).all()


def test_a_drawing_has_a_column_for_each_photo_with_its_colours_below_it() -> None:
    photos = [Image.new("RGB", (64, 48), "red"), Image.new("RGB", (48, 64), "blue")]
    sheet = draw(photos, [patches(4, 4), patches(4, 4, 1)], 1.0)
    assert sheet.size == (2 * SIDE, 2 * SIDE)
    pixels = np.asarray(sheet)
    assert (pixels[:SIDE, :SIDE] == (255, 0, 0)).all()
    assert (pixels[:SIDE, SIDE:] == (0, 0, 255)).all()
    assert pixels[SIDE:].std(axis=(0, 1)).min() > 5


def test_every_photo_needs_its_patches() -> None:
    with pytest.raises(ValueError, match="zip"):
        draw([Image.new("RGB", (8, 8))], [patches(2, 2), patches(2, 2)], 1.0)
