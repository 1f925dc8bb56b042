from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Dinov2Model
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Cost, DType, Grid, Media, Modality, PreparedItem
from encoder_pool.errors import UnsupportedMedia
from encoder_pool.towers.adapter import StagedItem
from encoder_pool.towers.dinov2 import Dinov2Adapter, ImageProcessorConfig
from encoder_pool.towers.dinov2_tower import Normalise, PixelEncoder

from .cases import Case, assert_close, assert_packing_changes_nothing, model_config, nan_after, run, staged

CASES = ["vit_s14", "tiny_dinov2"]
SIZES = [(320, 240), (240, 320), (300, 300), (20, 30), (500, 260)]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case[Dinov2Adapter]:
    found: Case[Dinov2Adapter] = request.getfixturevalue(request.param)
    return found


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth image with grain on it."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (5, 7, 3), np.uint8)).resize((width, height))
    grain = random.integers(-20, 21, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8))


def png(image: Image.Image) -> Media:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return Media(Modality.IMAGE, buffer.getvalue(), "input[0]")


def prepared(case: Case[Dinov2Adapter], image: Image.Image) -> PreparedItem:
    return case.adapter.prepare(png(image), LimitsConfig())


def noise(case: Case[Dinov2Adapter], items: int) -> list[StagedItem]:
    height, width, channels = case.adapter.sequence.data
    generator = torch.Generator().manual_seed(1)
    shape = (1, height, width, channels)
    grid = case.tower.fill(case.adapter.capacity(1))[0]
    return [
        StagedItem(torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator), grid)
        for _ in range(items)
    ]


def reference_pixels(folder: Path, image: Image.Image) -> torch.Tensor:
    """BitImageProcessorPil's pixel_values, (1, 3, height, width)."""
    values: torch.Tensor = BitImageProcessorPil.from_pretrained(folder)(image, return_tensors="pt")[
        "pixel_values"
    ]
    return values


def reference_rows(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    """The stock model's last hidden state as rows."""
    model: torch.nn.Module = Dinov2Model.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        rows: torch.Tensor = model.eval()(pixels).last_hidden_state.flatten(0, 1)
    return rows


def normalise(case: Case[Dinov2Adapter], pixels: npt.NDArray[np.generic]) -> torch.Tensor:
    text = (case.folder / "preprocessor_config.json").read_text()
    normalised: torch.Tensor = Normalise(ImageProcessorConfig.model_validate_json(text), "cpu")(
        torch.from_numpy(pixels)
    )
    return normalised


def test_shapes_come_from_the_checkpoint(vit_s14: Case[Dinov2Adapter]) -> None:
    adapter = vit_s14.adapter
    assert (adapter.width, adapter.prefix, adapter.unit) == (384, 1, "images")
    assert adapter.capacity(3) == Cost(patch_rows=3 * 256, out_rows=3 * 257, sequences=3)
    assert adapter.input_bytes(adapter.capacity(3)) == 3 * 224 * 224 * 3


def test_a_prepared_image_travels_as_bytes_with_its_cost(vit_s14: Case[Dinov2Adapter]) -> None:
    item = prepared(vit_s14, photo(320, 240))
    assert item.data.shape == (1, 224, 224, 3)
    assert item.data.dtype == np.uint8
    assert item.data.flags.c_contiguous
    assert (item.grid, item.tokens) == (Grid(1, 16, 16), 257)
    assert item.cost == vit_s14.adapter.capacity(1)
    assert (item.source.width, item.source.height) == (320, 240)
    assert item.digest == prepared(vit_s14, photo(320, 240)).digest
    assert item.digest != prepared(vit_s14, photo(320, 241)).digest


@pytest.mark.parametrize("size", SIZES)
def test_preparing_and_normalising_equal_the_reference_bit_for_bit(
    case: Case[Dinov2Adapter], size: tuple[int, int]
) -> None:
    image = photo(*size)
    pixels = normalise(case, prepared(case, image).data)
    assert torch.equal(pixels, reference_pixels(case.folder, image))


def test_every_level_is_normalised_as_in_the_reference(case: Case[Dinov2Adapter]) -> None:
    levels = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1), (1, 16, 16, 3)).copy()
    processor = BitImageProcessorPil.from_pretrained(case.folder, do_resize=False, do_center_crop=False)
    reference = processor(Image.fromarray(levels[0]), return_tensors="pt")["pixel_values"]
    assert torch.equal(normalise(case, levels), reference)


def test_a_packed_batch_equals_the_stock_model_from_image_to_rows(case: Case[Dinov2Adapter]) -> None:
    images = [photo(*size, seed=seed) for seed, size in enumerate(SIZES[:2])]
    rows = run(case.tower, [staged(prepared(case, image)) for image in images])
    pixels = torch.cat([reference_pixels(case.folder, image) for image in images])
    assert_close(rows, reference_rows(case.folder, pixels))


def test_an_item_does_not_depend_on_its_batch(case: Case[Dinov2Adapter]) -> None:
    assert_packing_changes_nothing(case.tower, noise(case, 4))


def test_nan_in_the_padding_reaches_no_real_row(case: Case[Dinov2Adapter]) -> None:
    items = noise(case, 2)
    encoder = case.tower.encode  # type: ignore[attr-defined]
    with nan_after(encoder.model.embeddings, real=1):
        rows = run(case.tower, items)
    real = case.adapter.sequence.out_rows
    assert rows[real:].isnan().all()
    assert_close(rows[:real], run(case.tower, items[:1]))


def test_the_captured_region_never_waits_for_the_device(tiny_dinov2: Case[Dinov2Adapter]) -> None:
    inputs = tiny_dinov2.tower.stage(noise(tiny_dinov2, 2))
    with FakeTensorMode(allow_non_fake_inputs=True):
        rows = tiny_dinov2.tower.forward(inputs, {})
    assert rows.shape == (2 * 17, 32)


def test_positions_are_interpolated_once(tiny_dinov2: Case[Dinov2Adapter]) -> None:
    encoder: PixelEncoder = tiny_dinov2.tower.encode  # type: ignore[attr-defined]
    assert encoder.model.embeddings.position_embeddings.shape[1] == 17


def test_half_precision_gives_half_precision_rows(tiny_dinov2: Case[Dinov2Adapter]) -> None:
    items = noise(tiny_dinov2, 2)
    rows = run(tiny_dinov2.adapter.load(model_config(DType.BFLOAT16)), items)
    assert rows.dtype == torch.bfloat16
    reference = run(tiny_dinov2.tower, items)
    # bfloat16 has 8 bits of mantissa: half a percent per operation.
    assert (rows.float() - reference).abs().max() < 0.05 * reference.abs().max()


def with_processor(folder: Path, to: Path, **changes: Any) -> Path:
    """A copy of the checkpoint with other keys in preprocessor_config.json."""
    shutil.copytree(folder, to)
    path = to / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return to


def test_a_crop_that_is_not_square_has_a_grid_that_is_not(tiny_dinov2_folder: Path, tmp_path: Path) -> None:
    folder = with_processor(tiny_dinov2_folder, tmp_path / "c", crop_size={"height": 42, "width": 56})
    adapter = Dinov2Adapter(folder)
    wide = Case(folder, adapter, adapter.load(model_config()))
    image = photo(320, 240)
    item = prepared(wide, image)
    assert (item.grid, item.tokens) == (Grid(1, 3, 4), 13)
    assert_close(run(wide.tower, [staged(item)]), reference_rows(folder, reference_pixels(folder, image)))


def test_a_crop_below_one_patch_is_refused(tiny_dinov2_folder: Path, tmp_path: Path) -> None:
    folder = with_processor(tiny_dinov2_folder, tmp_path / "c", crop_size={"height": 42, "width": 13})
    with pytest.raises(ValueError, match="a crop of 42 x 13 pixels holds no patch of 14"):
        Dinov2Adapter(folder)


def test_a_processor_that_does_not_crop_is_refused(tiny_dinov2_folder: Path, tmp_path: Path) -> None:
    folder = with_processor(tiny_dinov2_folder, tmp_path / "c", do_center_crop=False)
    with pytest.raises(ValueError, match=r"preprocessor_config\.json: key 'do_center_crop'"):
        Dinov2Adapter(folder)


def test_another_model_type_is_refused(tiny_whisper_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json: key 'model_type'"):
        Dinov2Adapter(tiny_whisper_folder)


def test_sound_is_unsupported(tiny_dinov2: Case[Dinov2Adapter]) -> None:
    with pytest.raises(UnsupportedMedia, match="takes image"):
        tiny_dinov2.adapter.prepare(Media(Modality.AUDIO, b"RIFF", "input[0]"), LimitsConfig())
