from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Cost, Grid, Media, Modality, Part, PreparedItem, Rung
from encoder_pool.errors import UndecodableMedia
from encoder_pool.media.smart_resize import Size
from encoder_pool.towers.adapter import Foreseen
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.weights import ensure
from tests.media.clips import film

from .cases import assert_close, run, staged
from .grid_checkpoints import FAMILIES, TEXT, GridCase


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GridCase:
    return GridCase.at(request.param, tmp_path_factory.mktemp(request.param))


KIMI = pytest.mark.parametrize("case", ["kimi_k25"], indirect=True)
QWEN = pytest.mark.parametrize("case", [name for name in FAMILIES if name != "kimi_k25"], indirect=True)


def png(width: int, height: int) -> Media:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return Media(Modality.IMAGE, buffer.getvalue(), "input[0]")


@pytest.mark.parametrize("size", [(28, 28), (224, 300), (1001, 333), (17, 900), (1200, 1100)])
def test_what_an_image_will_be_is_known_by_its_size(case: GridCase, size: tuple[int, int]) -> None:
    foreseen = case.adapter.foresee_image(*size)
    item = case.adapter.prepare(png(*size), LimitsConfig())
    assert foreseen == Foreseen(item.cost, item.data.nbytes)


@QWEN
def test_an_image_too_narrow_to_be_prepared_is_not_foreseen(case: GridCase) -> None:
    with pytest.raises(UndecodableMedia, match="aspect ratio"):
        case.adapter.foresee_image(4, 4000)


def test_a_prepared_image_gets_the_stock_models_rows(case: GridCase) -> None:
    item = case.adapter.prepare(png(300, 200), LimitsConfig())
    assert item.cost == case.adapter.cost(item.grid)
    assert item.tokens == item.cost.out_rows > 0
    assert item.data.nbytes <= case.adapter.input_bytes(item.cost)
    rows = run(case.tower, [staged(item)])
    assert rows.shape == (item.tokens, case.adapter.width)
    assert_close(rows, case.reference(staged(item)))


def video(frames: int) -> Media:
    """Twice as many frames as are sampled of it, each of them noise."""
    pixels = np.random.default_rng(1).integers(0, 256, (2 * frames, 120, 160, 3), np.uint8)
    return Media(Modality.VIDEO, film(pixels, rate=4), "input[0]")


def ladder(case: GridCase, *budgets: int) -> list[Rung]:
    return [Rung(budget, case.adapter.capacity(budget)) for budget in budgets]


def assert_is_cut(item: PreparedItem, pieces: tuple[PreparedItem, ...]) -> None:
    """Views of the item's frames, in order, that cost and give what it does."""
    np.testing.assert_array_equal(np.concatenate([piece.data for piece in pieces]), item.data)
    assert all(np.shares_memory(piece.data, item.data) for piece in pieces)
    assert all(piece.data.flags.c_contiguous for piece in pieces)
    assert Cost.total(piece.cost for piece in pieces) == item.cost
    assert sum(piece.tokens for piece in pieces) == item.tokens
    assert {(piece.digest, piece.source) for piece in pieces} == {(item.digest, item.source)}


@QWEN
def test_pieces_of_a_video_get_the_rows_of_the_stock_model(case: GridCase) -> None:
    item = case.adapter.prepare(video(12), LimitsConfig())
    two_frames = 2 * item.tokens // item.grid.t
    pieces = case.adapter.split(item, ladder(case, 8, two_frames))
    assert [piece.grid.t for piece in pieces] == [2, 2, 2]
    assert_is_cut(item, pieces)
    rows = torch.cat([run(case.tower, [staged(piece)]) for piece in pieces])
    assert_close(rows, case.reference(staged(item)))


@KIMI
def test_chunks_of_a_video_get_the_rows_of_the_stock_model_together_and_apart(case: GridCase) -> None:
    item = case.adapter.prepare(video(13), LimitsConfig())
    assert item.grid.t == 13
    pieces = case.adapter.split(item, ladder(case, 8))
    assert [piece.grid.t for piece in pieces] == [4, 4, 4, 1]
    assert_is_cut(item, pieces)
    reference = torch.cat([case.reference(staged(piece)) for piece in pieces])
    assert_close(torch.cat([run(case.tower, [staged(piece)]) for piece in pieces]), reference)
    assert_close(run(case.tower, [staged(piece) for piece in pieces]), reference)


@KIMI
def test_chunks_are_cut_no_further_and_not_joined(case: GridCase) -> None:
    item = case.adapter.prepare(video(6), LimitsConfig())
    for budgets in ((1,), (4096,)):
        assert [piece.grid.t for piece in case.adapter.split(item, ladder(case, *budgets))] == [4, 2]


def test_what_fits_a_rung_is_whole_and_so_is_every_image(case: GridCase) -> None:
    clip = case.adapter.prepare(video(4), LimitsConfig())
    image = case.adapter.prepare(png(300, 200), LimitsConfig())
    assert case.adapter.split(clip, ladder(case, 4096)) == (clip,)
    assert case.adapter.split(image, ladder(case, 1)) == (image,)


def test_a_tower_whose_positions_do_not_reach_a_chunk_is_refused(tmp_path: Path) -> None:
    GridCase.at("kimi_k25", tmp_path)
    file = tmp_path / "video_preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "temporal_patch_size": 5}))
    with pytest.raises(ValueError, match=r"chunks of 5 frames \(temporal_patch_size\).* 4 \(pos_emb_time"):
        GridAdapter(tmp_path)


def test_a_grid_without_whole_units_is_refused_before_it_is_cut(case: GridCase) -> None:
    for grid in (Grid(0, 2, 2), Grid(9, 3, 4)):
        with pytest.raises(UndecodableMedia, match="positive multiples of 2"):
            case.adapter.cost(grid)


def test_columns_are_named_where_there_are_several_things(case: GridCase) -> None:
    parts = case.adapter.parts
    if case.family == "qwen3_vl":
        assert parts == (Part("merger", TEXT), Part("deepstack.0", TEXT), Part("deepstack.1", TEXT))
    else:
        assert parts == ()
    assert case.adapter.width == sum(part.width for part in parts) or TEXT


def test_budgets_count_tokens(case: GridCase) -> None:
    capacity = case.adapter.capacity(100)
    assert (capacity.patch_rows, capacity.out_rows, capacity.longest) == (400, 100, 400)


def test_a_processor_that_cuts_other_patches_is_refused(tmp_path: Path) -> None:
    GridCase.at("qwen2_vl", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["patch_size"] = 16
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"the processor has patch_size 14, but config\.json makes it 16"):
        GridAdapter(tmp_path)


def test_the_replicas_half_imports_no_torch(tmp_path: Path) -> None:
    GridCase.at("qwen3_vl", tmp_path)
    code = (
        "import sys; from pathlib import Path; from encoder_pool.towers.grid import GridAdapter; "
        f"GridAdapter(Path({str(tmp_path)!r})).capacity(64); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tensors_of_an_item_are_the_reference_processors(case: GridCase) -> None:
    item = staged(case.adapter.prepare(png(150, 90), LimitsConfig()))
    patches = case.tower.stage([item])["patches"].float()
    normalised = (patches - case.tower._mean) / case.tower._std
    expected = case.pixel_values(item).flatten(1)
    torch.testing.assert_close(normalised, expected, rtol=0, atol=5e-7)


@pytest.mark.parametrize("name", ["qwen2-vl-7b", "qwen2.5-vl-tiny", "qwen3-vl-8b", "kimi-k2.5"])
@settings(deadline=None, max_examples=150)
@given(shorter=st.integers(8, 4000), stretch=st.floats(1.0, 199.0), is_tall=st.booleans())
def test_no_picture_is_larger_than_the_largest_item(
    name: str, shorter: int, stretch: float, is_tall: bool
) -> None:
    adapter = GridAdapter(ensure(f"config:{name}"))
    processor = adapter._processor
    unit = processor.patch_size * processor.merge_size
    sides = (shorter, round(shorter * stretch))
    size = Size(*(sides[::-1] if is_tall else sides))
    image = processor._rules.image_size(size).padded
    frame = processor._rules.video_size(size, 4).padded
    most = processor.most_units
    assert (image.height // unit) * (image.width // unit) <= most.image
    assert (frame.height // unit) * (frame.width // unit) <= most.frame
    assert adapter.largest(LimitsConfig()) >= max(most)


def test_the_largest_item_of_qwen_is_its_processors_bound_or_that_of_the_limits() -> None:
    adapter = GridAdapter(ensure("config:qwen2.5-vl-7b"))
    assert adapter.largest(LimitsConfig()) == 12_845_056 // 28**2
    assert adapter.largest(LimitsConfig(max_prepared_bytes=3 * 28**2 * 100)) == 100


def test_the_largest_item_of_kimi_is_a_chunk_of_a_video() -> None:
    adapter = GridAdapter(ensure("config:kimi-k2.5"))
    largest = adapter.capacity(adapter.largest(LimitsConfig()))
    assert adapter.cost(Grid(4, 64, 64)).fits(largest)
    assert adapter.cost(Grid(1, 128, 128)).fits(largest)
