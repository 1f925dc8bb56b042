"""Against `Qwen2VLImageProcessorPil` value for value, and what was recorded of the torchvision processors.

Here the data are normalised and cut into patches naively; the towers do that on their own.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Grid, Media, Modality, Source
from encoder_pool.errors import PoolError, TooLarge, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.smart_resize import Padded, Size, qwen_image_size, qwen_video_size
from encoder_pool.media.video import Clip, Selection
from encoder_pool.towers import grid_processing
from encoder_pool.towers.families import FAMILIES
from encoder_pool.towers.grid_processing import GridProcessor, Normalisation, Pixels, Processed
from encoder_pool.towers.grid_split import chunks
from tests.conftest import MEDIA
from tests.media.clips import gray_frames, shade
from tests.odd_media import photo, speechlike, wav
from tests.reference.cases import (
    CAPS,
    KIMI_IMAGE,
    KIMI_VIDEO,
    PIXEL_CASES,
    PIXELS,
    QWEN2_VIDEO,
    QWEN3_VIDEO,
    TABLES,
    PixelCase,
)
from tests.towers.processor_folders import HALF, QWEN3_IMAGE, folder, movie, png, qwen3_folder

LIMITS = LimitsConfig()
MODEL_TYPES = {
    KIMI_IMAGE: "kimi_k25",
    KIMI_VIDEO: "kimi_k25",
    QWEN2_VIDEO: "qwen2_5_vl",
    QWEN3_VIDEO: "qwen3_vl",
}


def refusal(processor: GridProcessor, media: Media, limits: LimitsConfig = LIMITS) -> PoolError:
    with pytest.raises(PoolError) as caught:
        processor(media, limits)
    assert caught.value.param == "input[4]"
    return caught.value


Values = TypeVar("Values", Pixels, npt.NDArray[np.float32])


def patches(data: Values, grid: Grid, processor: GridProcessor, is_merged: bool = True) -> Values:
    """(t * h * w, 3 * frames_per_row * patch * patch); those that are merged stand together if is_merged."""
    rows, patch = processor.frames_per_row, processor.patch_size
    merge = processor.merge_size if is_merged else 1
    whole = data if len(data) > 1 else np.repeat(data, rows, axis=0)
    blocks = whole.reshape(grid.t, rows, grid.h // merge, merge, patch, grid.w // merge, merge, patch, 3)
    return blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(grid.t * grid.h * grid.w, -1)


def normalised_patches(data: Pixels, grid: Grid, processor: GridProcessor) -> npt.NDArray[np.float32]:
    """As the Pillow backend computes: rescaled in double, normalised in single precision."""
    step = processor.normalisation
    scaled = (data.astype(np.float64) * step.rescale).astype(np.float32)
    mean, std = (np.array(each, np.float32) for each in (step.mean, step.std))
    values: npt.NDArray[np.float32] = (scaled - mean) / std
    return patches(values, grid, processor)


def assert_equal_to_reference(ours: Processed, processor: GridProcessor, stock: Any, pixels: Pixels) -> None:
    reference = stock(images=Image.fromarray(pixels), return_tensors="np")
    assert [list(ours.grid)] == reference["image_grid_thw"].tolist()
    assert ours.data.dtype == np.uint8
    assert len(ours.data) == 1
    assert ours.data.flags.carray
    values = normalised_patches(ours.data, ours.grid, processor)
    np.testing.assert_array_equal(values, reference["pixel_values"])


QWEN_IMAGES: dict[str, dict[str, Any]] = {
    "qwen2_vl": {},
    "qwen2_5_vl": {"min_pixels": 3136, "max_pixels": 602_112},
    "qwen3_vl": QWEN3_IMAGE,
    "qwen3_5": {**QWEN3_IMAGE, "size": {"shortest_edge": 1024, "longest_edge": 200_000}},
}
SIDES = [
    (8, 8),
    (8, 1600),
    (1600, 8),
    (13, 14),
    (28, 28),
    (56, 84),
    (64, 96),
    (97, 211),
    (640, 480),
    (1021, 771),
]


@pytest.fixture(params=QWEN_IMAGES)
def qwen(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[GridProcessor, Any]:
    """Ours and the stock image processor, from the same file."""
    stock = Qwen2VLImageProcessorPil(**QWEN_IMAGES[request.param])
    stock.save_pretrained(tmp_path)
    video = HALF if "qwen3" in request.param else {}
    return GridProcessor(folder(tmp_path, request.param, video=video)), stock


def test_images_of_any_size_are_equal_to_the_reference(qwen: tuple[GridProcessor, Any]) -> None:
    processor, stock = qwen
    rng = np.random.default_rng(11)
    random_sides = [
        tuple(int(side) for side in np.exp(rng.uniform(np.log(8), np.log(900), 2))) for _ in range(12)
    ]
    for width, height in (*SIDES, *random_sides):
        pixels = photo(width, height, seed=width)
        ours = processor(png(pixels), LIMITS)
        assert ours.source == Source("png", width=width, height=height)
        assert_equal_to_reference(ours, processor, stock, pixels)


@pytest.mark.parametrize("name", sorted(path.name for path in MEDIA.glob("*.jpg")))
def test_photos_are_equal_to_the_reference(name: str, qwen: tuple[GridProcessor, Any]) -> None:
    processor, stock = qwen
    data = (MEDIA / name).read_bytes()
    pixels = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    ours = processor(Media(Modality.IMAGE, data, "p"), LIMITS)
    assert_equal_to_reference(ours, processor, stock, pixels)


def processor_of(case: PixelCase, path: Path) -> GridProcessor:
    """Ours with the settings of the case."""
    if case.processor == KIMI_IMAGE:
        return GridProcessor(folder(path, "kimi_k25", case.settings, {}))
    image = {"patch_size": 16, **HALF} if case.processor == QWEN3_VIDEO else {}
    return GridProcessor(folder(path, MODEL_TYPES[case.processor], image, case.settings))


def pass_by_the_codec(frames: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding gives these frames, all of which are sampled: a codec would lose some of each."""

    def decoded(_: Media, __: LimitsConfig, select: Callable[[Clip], Selection]) -> tuple[Pixels, Source]:
        count, height, width, _ = frames.shape
        selection = select(Clip(count, 2.0, Size(height, width)))
        kept = np.stack([selection.resize(frames[index]) for index in selection.indices])
        assert kept.shape == (count, *selection.shape)
        return kept, Source("mp4", width=width, height=height, seconds=count / 2)

    monkeypatch.setattr(grid_processing, "decode_video", decoded)


@pytest.mark.parametrize("name", PIXEL_CASES)
def test_pixels_are_as_the_torchvision_processors_have_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal where nothing is resized; elsewhere Pillow's filter has finer weights than torchvision's."""
    case = PIXEL_CASES[name]
    processor = processor_of(case, tmp_path)
    pass_by_the_codec(case.input(), monkeypatch)
    is_image = case.processor == KIMI_IMAGE
    data, grid, _ = processor(png(case.input()[0], Modality.IMAGE if is_image else Modality.VIDEO), LIMITS)
    with np.load(PIXELS) as file:
        expected, grids = file[f"{name}/patches"], file[f"{name}/grids"]
    assert [Grid(*each) for each in grids.tolist()] == [*chunks(grid, processor.frames_per_chunk)]
    ours = patches(data, grid, processor, is_merged="qwen" in name)
    difference = np.abs(ours.astype(int) - expected)
    assert difference.max() <= (2 if case.is_resized else 0)
    assert (difference > 0).mean() < 0.01


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("name", [QWEN2_VIDEO, QWEN3_VIDEO, KIMI_VIDEO, KIMI_IMAGE])
def test_sizes_are_those_of_the_torchvision_processors(name: str, cap: bool, tmp_path: Path) -> None:
    settings = {"cap_pixels_per_frame": cap} if "Qwen" in name else {}
    rules = FAMILIES[MODEL_TYPES[name]].rules(folder(tmp_path, MODEL_TYPES[name], {}, settings))
    rows = json.loads(TABLES.read_text())["sizes"][name][str(cap)]
    assert len(rows) > 8
    for height, width, count, *expected in rows:
        size = Size(height, width)
        ours = rules.image_size(size) if name == KIMI_IMAGE else rules.video_size(size, count)
        assert list(ours.padded) == expected, (height, width, count)


@pytest.mark.parametrize("name", [QWEN2_VIDEO, QWEN3_VIDEO])
def test_no_frame_of_a_capped_video_falls_below_the_least_size(name: str, tmp_path: Path) -> None:
    """As `resize` of both has it: 1.05 times the lower bound, however many frames share the upper."""
    settings = {"cap_pixels_per_frame": True, "max_video_tokens": 8}
    rules = FAMILIES[MODEL_TYPES[name]].rules(folder(tmp_path, MODEL_TYPES[name], {}, settings))
    if name == QWEN2_VIDEO:
        least = int(128 * 28 * 28 * 1.05)
        expected = qwen_image_size(Size(1080, 1920), 28, 128 * 28 * 28, least)
    else:
        least = int(128 * 32 * 32 * 1.05)
        expected = qwen_video_size(Size(1080, 1920), 600, 2, 32, 128 * 32 * 32, least * 600)
    assert rules.video_size(Size(1080, 1920), 600).padded == expected


def test_a_video_is_sampled_and_its_last_frame_repeated_to_whole_rows(tmp_path: Path) -> None:
    size = {"shortest_edge": 1024, "longest_edge": 64 * 64 * 8}
    processor = GridProcessor(qwen3_folder(tmp_path, {"size": size}))
    data, grid, source = processor(movie(gray_frames(50, 64, 64), rate=20), LIMITS)
    assert source == Source("mp4", width=64, height=64, seconds=2.5)
    assert grid == Grid(3, 4, 4)
    assert data.shape == (6, 64, 64, 3)
    assert data.flags.c_contiguous
    np.testing.assert_array_equal(data[4], data[5])
    for frame, index in zip(data, (0, 12, 24, 37, 49), strict=False):
        assert abs(frame[-16:, -16:].mean() - shade(index)) < 5


def test_a_single_frame_fills_a_row(tmp_path: Path) -> None:
    for name, path in (("qwen2_vl", tmp_path / "two"), ("qwen3_vl", tmp_path / "three")):
        path.mkdir()
        image = {"patch_size": 16, **HALF} if name == "qwen3_vl" else {}
        processor = GridProcessor(folder(path, name, image, {}))
        data, grid, _ = processor(movie(gray_frames(1, 64, 64)), LIMITS)
        assert grid.t == 1
        np.testing.assert_array_equal(data[0], data[1])


def test_kimi_sees_single_frames_in_chunks_and_pads_with_zeros(tmp_path: Path) -> None:
    processor = GridProcessor(folder(tmp_path, "kimi_k25", {}, {}))
    assert (processor.frames_per_row, processor.frames_per_chunk) == (1, 4)
    data, grid, _ = processor(movie(gray_frames(100, 40, 64), rate=20), LIMITS)
    assert grid == Grid(10, 4, 6)
    assert data.shape == (10, 56, 84, 3)
    assert not data[:, 40:].any()
    assert not data[:, :, 64:].any()
    assert data[:, :40, :64].any()


@pytest.mark.parametrize("size", [(50, 50), (56, 56), (40, 64)])
def test_a_frame_is_fitted_as_an_image_is_whatever_size_it_has(size: tuple[int, int]) -> None:
    frame, bicubic = photo(*size), Image.Resampling.BICUBIC
    target = Padded(Size(50, 50), Size(56, 56))
    expected = np.zeros((56, 56, 3), np.uint8)
    expected[:50, :50] = np.asarray(Image.fromarray(frame).resize((50, 50), bicubic))
    for fitted in (
        grid_processing._fit_frame(frame, target, bicubic),
        grid_processing._fit(Image.fromarray(frame), target, bicubic),
    ):
        np.testing.assert_array_equal(fitted, expected)
        assert fitted.flags.carray
        assert fitted.flags.owndata


def test_the_tower_learns_what_it_must_know(tmp_path: Path) -> None:
    processor = GridProcessor(qwen3_folder(tmp_path))
    assert (processor.patch_size, processor.merge_size, processor.frames_per_row) == (16, 2, 2)
    assert processor.frames_per_chunk is None
    assert processor.normalisation == Normalisation(1 / 255, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_sound_is_no_modality_of_these_models(tmp_path: Path) -> None:
    error = refusal(
        GridProcessor(qwen3_folder(tmp_path)), Media(Modality.AUDIO, wav(speechlike(0.1)), "input[4]")
    )
    assert isinstance(error, UnsupportedMedia)
    assert error.code == "wrong_modality"


def test_an_aspect_ratio_that_the_model_cannot_take_is_a_422(tmp_path: Path) -> None:
    limits = LimitsConfig(max_aspect_ratio=1000)
    error = refusal(GridProcessor(qwen3_folder(tmp_path)), png(photo(8, 1608)), limits)
    assert isinstance(error, UndecodableMedia)
    assert error.code == "aspect_ratio"
    assert "201.0; the model takes 200 at most" in error.message


def test_what_would_be_too_large_when_resized_is_refused_before_it_is(tmp_path: Path) -> None:
    processor = GridProcessor(
        qwen3_folder(tmp_path, {"size": {"shortest_edge": 1024, "longest_edge": 10**9}})
    )
    media = movie(gray_frames(9, 64, 96), rate=2)
    size = 10 * 64 * 96 * 3
    assert processor(media, LimitsConfig(max_prepared_bytes=size)).data.nbytes == size
    error = refusal(processor, media, LimitsConfig(max_prepared_bytes=size - 1))
    assert isinstance(error, TooLarge)
    assert (
        f"has {size} bytes once it is resized; the limit is {size - 1} (limits.max_prepared" in error.message
    )
    assert isinstance(refusal(processor, png(photo(64, 64)), LimitsConfig(max_prepared_bytes=1)), TooLarge)


def test_processing_starts_without_torch() -> None:
    code = "import sys, encoder_pool.towers.grid_processing; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
