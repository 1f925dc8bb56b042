from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from encoder_pool.media.image import decode_image
from encoder_pool.media.resize import Pixels, ShortestEdgeThenCrop
from tests.odd_media import photo


def reference(pixels: Pixels, rule: ShortestEdgeThenCrop, processor: type = BitImageProcessorPil) -> Pixels:
    """What the transformers processor has before it rescales and normalises."""
    settings = {
        "size": {"shortest_edge": rule.shortest_edge},
        "crop_size": {"height": rule.crop_height, "width": rule.crop_width},
        "resample": rule.resample,
        "do_rescale": False,
        "do_normalize": False,
    }
    planes = processor(**settings).preprocess(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
    assert planes.dtype == np.uint8
    return np.moveaxis(planes, 0, -1)


def assert_equal_to_reference(pixels: Pixels, rule: ShortestEdgeThenCrop) -> None:
    ours = rule(Image.fromarray(pixels))
    assert ours.dtype == np.uint8
    assert ours.flags.carray
    assert ours.flags.owndata
    np.testing.assert_array_equal(ours, reference(pixels, rule))


DINO = ShortestEdgeThenCrop(256, 224, 224, Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [(640, 480), (480, 640), (224, 224), (256, 256), (1021, 771), (97, 100)])
def test_photos_are_equal_to_the_reference(size: tuple[int, int]) -> None:
    assert_equal_to_reference(photo(*size), DINO)


@pytest.mark.parametrize("size", [(8, 1600), (1600, 8), (9, 1799), (27, 1400), (8, 8), (13, 14)])
def test_thin_and_small_images_are_equal_to_the_reference(size: tuple[int, int]) -> None:
    assert_equal_to_reference(photo(*size), DINO)


def test_random_sizes_and_rules_are_equal_to_the_reference() -> None:
    rng = np.random.default_rng(5)
    filters = (Image.Resampling.BICUBIC, Image.Resampling.BILINEAR, Image.Resampling.LANCZOS)
    for case in range(60):
        width, height = (int(side) for side in np.exp(rng.uniform(np.log(8), np.log(600), 2)))
        edge, crop_height, crop_width = (int(side) for side in rng.integers(16, 120, 3))
        rule = ShortestEdgeThenCrop(edge, crop_height, crop_width, filters[case % 3])
        assert_equal_to_reference(photo(width, height, seed=case), rule)


@pytest.mark.parametrize("crop", [(40, 40), (41, 64), (64, 41), (33, 50), (50, 33), (32, 33)])
def test_a_crop_larger_than_the_image_is_padded_as_the_reference_pads(crop: tuple[int, int]) -> None:
    for size in ((32, 32), (32, 45), (45, 32)):
        assert_equal_to_reference(photo(*size), ShortestEdgeThenCrop(32, *crop, Image.Resampling.BILINEAR))


def test_clip_has_the_same_rule() -> None:
    pixels = photo(300, 211)
    rule = ShortestEdgeThenCrop(224, 224, 224, Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(
        rule(Image.fromarray(pixels)), reference(pixels, rule, CLIPImageProcessorPil)
    )


def test_a_real_photo_is_equal_to_the_reference(photo: bytes) -> None:
    ours, _ = decode_image(Media(Modality.IMAGE, photo, "input[0]"), LimitsConfig())
    pillows = np.array(Image.open(io.BytesIO(photo)).convert("RGB"))
    np.testing.assert_array_equal(ours, pillows)
    np.testing.assert_array_equal(DINO(ours), reference(pillows, DINO))
