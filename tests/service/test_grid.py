"""Grid towers as a service: images of many sizes and videos of any length, against the stock models."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import yaml
from PIL import Image

from encoder_pool.client import AsyncEncoderClient, EncodedItem, EncoderClient
from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from encoder_pool.towers.grid import GridAdapter
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
    kimi: GridCase

    @property
    def kimi_url(self) -> str:
        return f"http://127.0.0.1:{self.service.port}/kimi"

    def reference(self, media: Media) -> np.ndarray:
        item = self.case.adapter.prepare(media, LimitsConfig())
        rows: np.ndarray = self.case.reference(staged(item)).numpy()
        return rows


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """The towers of Qwen3-VL and Kimi-K2.5 at small random sizes, from full sharded checkpoints."""
    qwen, kimi = (GridCase.at(family, tmp_path_factory.mktemp(family)) for family in ("qwen3_vl", "kimi_k25"))
    qwen = with_large_frames(qwen)
    file = toy_file(tmp_path_factory.mktemp("service"), ladder={"min": 64, "max": 1024})
    document = yaml.safe_load(file.read_text())
    (toys,) = document["applications"]
    document["applications"] = [
        {
            **toys,
            "name": case.family,
            "route_prefix": route,
            "args": {**toys["args"], "model": model_of(case)},
        }
        for case, route in ((qwen, "/image"), (kimi, "/kimi"))
    ]
    file.write_text(yaml.safe_dump(document))
    with serving(file) as service:
        yield Grid(service, qwen, kimi)


def with_large_frames(case: GridCase) -> GridCase:
    """The processor gives a video so many pixels that twelve frames are beyond 1024 tokens."""
    file = case.folder / "video_preprocessor_config.json"
    size = {"shortest_edge": 2**17, "longest_edge": 2**23}
    file.write_text(json.dumps({**json.loads(file.read_text()), "size": size}))
    return replace(case, adapter=GridAdapter(case.folder))


def model_of(case: GridCase) -> dict[str, str]:
    return {"name": "tiny", "adapter": "grid", "checkpoint": str(case.folder)}


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


def test_a_video_beyond_the_largest_rung_gets_the_stock_models_rows(grid: Grid) -> None:
    data = film(gray_frames(24, 480, 640), rate=4)
    before = grid.service.info(grid.service.image)
    with EncoderClient(grid.service.image) as client:
        item = client.encode(data)[0]
    after = grid.service.info(grid.service.image)
    assert item.tokens > after["ladder"]["rungs"][-1]["capacity"]["out_rows"]
    assert_same(item, grid.reference(Media(Modality.VIDEO, data, "")))
    names = ("items_ok", "items_split", "items_packed", "pieces")
    ok, split, packed, pieces = (after["counters"][name] - before["counters"][name] for name in names)
    assert (ok, split) == (1, 1)
    assert packed == pieces > 1
    assert not after["counters"]["shard"]["eager"]


def test_a_kimi_video_of_many_chunks_gets_the_stock_models_rows_chunk_by_chunk(grid: Grid) -> None:
    data = film(gray_frames(44, 240, 320), rate=8)
    with EncoderClient(grid.kimi_url) as client:
        item = client.encode(data)[0]
    assert item.grid.t == 11
    prepared = grid.kimi.adapter.prepare(Media(Modality.VIDEO, data, ""), LimitsConfig())
    chunks = grid.kimi.adapter.split(prepared, [])
    assert [chunk.grid.t for chunk in chunks] == [4, 4, 3]
    rows = [grid.kimi.reference(staged(chunk)).numpy() for chunk in chunks]
    assert_same(item, np.concatenate(rows))
    assert grid.service.info(grid.kimi_url)["counters"]["pieces"] == 3
