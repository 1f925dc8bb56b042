from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality, Part
from encoder_pool.towers.grid import GridAdapter

from .cases import assert_close, run, staged
from .grid_checkpoints import FAMILIES, TEXT, GridCase


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GridCase:
    return GridCase.at(request.param, tmp_path_factory.mktemp(request.param))


def png(width: int, height: int) -> Media:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return Media(Modality.IMAGE, buffer.getvalue(), "input[0]")


def test_a_prepared_image_gets_the_stock_models_rows(case: GridCase) -> None:
    item = case.adapter.prepare(png(300, 200), LimitsConfig())
    assert item.cost == case.adapter.cost(item.grid)
    assert item.tokens == item.cost.out_rows > 0
    assert item.data.nbytes <= case.adapter.input_bytes(item.cost)
    rows = run(case.tower, [staged(item)])
    assert rows.shape == (item.tokens, case.adapter.width)
    assert_close(rows, case.reference(staged(item)))


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
