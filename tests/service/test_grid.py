"""Grid towers as a service: images of many sizes and videos of any length, against the stock models."""

from __future__ import annotations

import asyncio
import io
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from encoder_pool.client import AsyncEncoderClient, EncodedItem, EncoderClient
from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from tests.media.clips import film, gray_frames
from tests.service.conftest import GridCases
from tests.service.running import Service
from tests.towers.cases import staged

pytestmark = pytest.mark.service

TOLERANCE = 1e-5


class Grid(NamedTuple):
    service: Service
    cases: GridCases

    @property
    def url(self) -> str:
        return f"{self.service.root}/grid"

    @property
    def kimi_url(self) -> str:
        return f"{self.service.root}/kimi"

    @property
    def info(self) -> dict[str, Any]:
        return self.service.info(self.url)

    def reference(self, media: Media) -> np.ndarray:
        item = self.cases.qwen.adapter.prepare(media, LimitsConfig())
        rows: np.ndarray = self.cases.qwen.reference(staged(item)).numpy()
        return rows


@pytest.fixture
def grid(several: Service, grid_cases: GridCases) -> Grid:
    return Grid(several, grid_cases)


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
        async with AsyncEncoderClient(grid.url) as client:
            answers = await asyncio.gather(*(client.encode(each) for each in pictures))
        return [answer[0] for answer in answers]

    items = asyncio.run(run())
    for data, item in zip(pictures, items, strict=True):
        assert_same(item, grid.reference(Media(Modality.IMAGE, data, "")))
    counters = grid.info["counters"]
    assert counters["items_ok"] == 40
    assert counters["mean_batch"] > 1
    assert sum(tally["items"] for tally in counters["shard"]["replays"].values()) > 0


def test_the_parts_of_a_row_are_named(grid: Grid) -> None:
    with EncoderClient(grid.url) as client:
        item = client.encode(picture(200, 200, 0))[0]
    assert [part.name for part in item.parts] == ["merger", "deepstack.0", "deepstack.1"]
    assert item.part("merger").shape == (item.tokens, item.width // 3)


def test_a_video_gets_the_stock_models_rows(grid: Grid) -> None:
    data = film(gray_frames(24, 120, 160), rate=4)
    with EncoderClient(grid.url) as client:
        item = client.encode(data)[0]
    assert item.modality is Modality.VIDEO
    assert item.grid.t > 1
    assert_same(item, grid.reference(Media(Modality.VIDEO, data, "")))


def test_a_video_beyond_the_largest_rung_gets_the_stock_models_rows(grid: Grid) -> None:
    data = film(gray_frames(24, 480, 640), rate=4)
    before = grid.info
    with EncoderClient(grid.url) as client:
        item = client.encode(data)[0]
    after = grid.info
    assert item.tokens > after["ladder"]["rungs"][-1]["capacity"]["out_rows"]
    assert_same(item, grid.reference(Media(Modality.VIDEO, data, "")))
    names = ("items_ok", "items_split", "items_packed", "pieces")
    ok, split, packed, pieces = (after["counters"][name] - before["counters"][name] for name in names)
    assert (ok, split) == (1, 1)
    assert packed == pieces > 1
    assert "fits_no_rung" not in after["counters"]["shard"]["eager"]


def test_a_kimi_video_of_many_chunks_gets_the_stock_models_rows_chunk_by_chunk(grid: Grid) -> None:
    data = film(gray_frames(44, 240, 320), rate=8)
    with EncoderClient(grid.kimi_url) as client:
        item = client.encode(data)[0]
    assert item.grid.t == 11
    prepared = grid.cases.kimi.adapter.prepare(Media(Modality.VIDEO, data, ""), LimitsConfig())
    chunks = grid.cases.kimi.adapter.split(prepared, [])
    assert [chunk.grid.t for chunk in chunks] == [4, 4, 3]
    rows = [grid.cases.kimi.reference(staged(chunk)).numpy() for chunk in chunks]
    assert_same(item, np.concatenate(rows))
    assert grid.service.info(grid.kimi_url)["counters"]["pieces"] == 3
