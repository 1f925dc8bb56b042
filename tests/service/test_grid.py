"""A grid tower as a service: images of many sizes and a video, packed, against the stock model."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import yaml
from PIL import Image

from encoder_pool.client import AsyncEncoderClient, EncodedItem, EncoderClient
from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from tests.media.clips import film, gray_frames
from tests.service.running import Service, serving
from tests.service.toys import toy_file
from tests.towers.cases import staged
from tests.towers.grid_checkpoints import GridCase

pytestmark = pytest.mark.service

TOLERANCE = 1e-5


class Grid(NamedTuple):
    service: Service
    case: GridCase

    def reference(self, media: Media) -> np.ndarray:
        item = self.case.adapter.prepare(media, LimitsConfig())
        rows: np.ndarray = self.case.reference(staged(item)).numpy()
        return rows


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """Qwen3-VL's tower at a small random size, from a full sharded checkpoint."""
    checkpoint = tmp_path_factory.mktemp("qwen3_vl")
    case = GridCase.at("qwen3_vl", checkpoint)
    file = toy_file(tmp_path_factory.mktemp("service"), ladder={"min": 64, "max": 1024})
    document = yaml.safe_load(file.read_text())
    model = {"name": "tiny", "adapter": "grid", "checkpoint": str(checkpoint)}
    document["applications"][0]["args"]["model"] = model
    file.write_text(yaml.safe_dump(document))
    with serving(file) as service:
        yield Grid(service, case)


def picture(width: int, height: int, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def assert_same(item: EncodedItem, reference: np.ndarray) -> None:
    assert item.embedding.shape == reference.shape
    assert np.abs(item.embedding - reference).max() <= TOLERANCE * np.abs(reference).max()


def test_images_of_many_sizes_at_once_get_the_stock_models_rows(grid: Grid) -> None:
    rng = np.random.default_rng(1)
    sides = rng.integers(120, 700, (40, 2)).tolist()
    pictures = [picture(width, height, seed) for seed, (width, height) in enumerate(sides)]

    async def run() -> list[EncodedItem]:
        async with AsyncEncoderClient(grid.service.image) as client:
            answers = await asyncio.gather(*(client.encode(each) for each in pictures))
        return [answer[0] for answer in answers]

    items = asyncio.run(run())
    for data, item in zip(pictures, items, strict=True):
        assert_same(item, grid.reference(Media(Modality.IMAGE, data, "")))
    counters = grid.service.info(grid.service.image)["counters"]
    assert counters["items_ok"] == 40
    assert counters["mean_batch"] > 1
    assert sum(tally["items"] for tally in counters["shard"]["replays"].values()) > 0


def test_the_parts_of_a_row_are_named(grid: Grid) -> None:
    with EncoderClient(grid.service.image) as client:
        item = client.encode(picture(200, 200, 0))[0]
    assert [part.name for part in item.parts] == ["merger", "deepstack.0", "deepstack.1"]
    assert item.part("merger").shape == (item.tokens, item.width // 3)


def test_a_video_gets_the_stock_models_rows(grid: Grid) -> None:
    data = film(gray_frames(24, 120, 160), rate=4)
    with EncoderClient(grid.service.image) as client:
        item = client.encode(data)[0]
    assert item.modality is Modality.VIDEO
    assert item.grid.t > 1
    assert_same(item, grid.reference(Media(Modality.VIDEO, data, "")))
