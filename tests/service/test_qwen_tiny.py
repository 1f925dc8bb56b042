"""serve_configs/qwen-tiny.yaml over real HTTP, against the stock processor and the stock tower."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from transformers import Qwen2VLImageProcessorPil

from encoder_pool.client import AsyncEncoderClient, EncodedItem, EncoderClient
from encoder_pool.config import LimitsConfig
from encoder_pool.core import Grid, Media, Modality
from encoder_pool.launch.file import read_service_file
from encoder_pool.towers.families import family_of
from encoder_pool.towers.grid_loading import load_encoder
from encoder_pool.towers.grid_processing import GridProcessor
from encoder_pool.weights import ensure
from tests.media.clips import film, gray_frames
from tests.service.running import ROOT, Service
from tests.towers.stock import blocks

pytestmark = pytest.mark.service

FILE = ROOT / "serve_configs" / "qwen-tiny.yaml"
PHOTOS = sorted((ROOT / "encoder_pool" / "demo" / "media").glob("*.jpg"))
FOLDER = ensure("config:qwen2.5-vl-tiny")
TOLERANCE = 1e-5

Rows = Callable[[torch.Tensor, Grid], np.ndarray]


@pytest.fixture(scope="module")
def stock_rows() -> Rows:
    """(P, values) normalised patches of one item -> (tokens, width), by the stock float32 tower."""
    model = read_service_file(FILE).applications[0].config.model
    tower: Any = load_encoder(family_of(FOLDER)[0], FOLDER, model).tower

    def rows(patches: torch.Tensor, grid: Grid) -> np.ndarray:
        with torch.inference_mode():
            output: np.ndarray = tower(patches, grid_thw=torch.tensor([grid])).pooler_output.numpy()
        return output

    return rows


def assert_same(item: EncodedItem, expected: np.ndarray) -> None:
    assert item.embedding.shape == expected.shape
    assert np.abs(item.embedding - expected).max() <= TOLERANCE * np.abs(expected).max()


class Runs(NamedTuple):
    """Items that the shard ran until now: on a rung, and eagerly because the planner found that cheaper."""

    replayed: int
    eager: int

    @staticmethod
    def of(service: Service) -> Runs:
        shard = service.info(service.root)["counters"]["shard"] or {"replays": {}, "eager": {}}
        assert set(shard["eager"]) <= {"cheaper"}
        replayed, eager = (
            sum(tally["items"] for tally in shard[key].values()) for key in ("replays", "eager")
        )
        return Runs(replayed, eager)


def test_photos_get_the_rows_of_the_stock_processor_and_tower(qwen_tiny: Service, stock_rows: Rows) -> None:
    processor = Qwen2VLImageProcessorPil.from_pretrained(FOLDER)
    before = Runs.of(qwen_tiny)
    with EncoderClient(qwen_tiny.root) as client:
        items = client.encode(PHOTOS)
    for path, item in zip(PHOTOS, items, strict=True):
        with Image.open(path) as image:
            inputs = processor(image, return_tensors="pt")
        assert tuple(item.grid) == tuple(inputs["image_grid_thw"][0].tolist())
        assert_same(item, stock_rows(inputs["pixel_values"], item.grid))
    after = Runs.of(qwen_tiny)
    assert after.replayed > before.replayed
    assert sum(after) == sum(before) + len(PHOTOS)


def test_a_video_gets_the_stock_towers_rows(qwen_tiny: Service, stock_rows: Rows) -> None:
    data = film(gray_frames(24, 120, 160), rate=4)
    before = Runs.of(qwen_tiny)
    with EncoderClient(qwen_tiny.root) as client:
        item = client.encode(data)[0]
    assert sum(Runs.of(qwen_tiny)) == sum(before) + 1
    assert item.modality is Modality.VIDEO
    assert item.grid.t > 1
    processor = GridProcessor(FOLDER)
    frames, grid, _ = processor(Media(Modality.VIDEO, data, ""), LimitsConfig())
    assert_same(item, stock_rows(blocks(normalised(frames, processor), processor.patch_size), grid))


def normalised(frames: np.ndarray, processor: GridProcessor) -> torch.Tensor:
    """(frames, height, width, 3) bytes -> (frames, 3, height, width), in double precision until the end."""
    rescale, mean, std = (
        torch.tensor(value, dtype=torch.float64) for value in astuple(processor.normalisation)
    )
    return (((torch.from_numpy(frames).double() * rescale) - mean) / std).permute(0, 3, 1, 2).float()


def noise(width: int, height: int, comment: str = "") -> bytes:
    """A picture, always the same one in this size; in other bytes with another comment."""
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    info = PngInfo()
    info.add_text("Comment", comment)
    Image.fromarray(pixels).save(file, "PNG", pnginfo=info)
    return file.getvalue()


def test_an_image_beyond_the_processors_bound_is_made_smaller_not_refused(qwen_tiny: Service) -> None:
    file = io.BytesIO()
    Image.new("RGB", (3000, 2000)).save(file, "PNG")
    with EncoderClient(qwen_tiny.root) as client:
        assert client.encode(file.getvalue())[0].tokens <= 256


def test_what_the_shard_takes_is_told(qwen_tiny: Service) -> None:
    worker = qwen_tiny.info(qwen_tiny.root)["workers"][0]
    assert 4 * 1_335_328 <= worker["weights_bytes"] < 6 << 20
    assert worker["weights_bytes"] < worker["peak_rss_bytes"] < 2 << 30
    assert worker["static_bytes"] > 256 * 4 * 3 * 2 * 14 * 14
    assert "device" not in worker


def test_the_ladder_that_the_shard_found_and_the_phases_of_its_start_are_told(qwen_tiny: Service) -> None:
    info = qwen_tiny.info(qwen_tiny.root)
    assert info["ladder"]["rungs"][-1]["budget"] == info["ladder"]["largest_item"]["out_rows"] == 256
    assert info["ladder"]["not_captured"] == []
    times = [rung["ms"] for rung in info["ladder"]["rungs"]]
    assert times[0] > 0
    assert times == sorted(times)
    phases = info["workers"][0]["start_s"]
    assert {"loading weights", "capturing", "tuning"} <= set(phases)


def test_two_hundred_requests_at_once_of_mixed_sizes_all_end_share_packs_and_keep_their_rows(
    qwen_tiny: Service,
) -> None:
    sides = range(60, 220, 20)
    with EncoderClient(qwen_tiny.root) as client:
        alone = [client.encode(noise(side, 2 * side // 3))[0].embedding for side in sides]
    before = qwen_tiny.info(qwen_tiny.root)["counters"]
    sent = [[request % 8] * (3 if request % 10 == 0 else 1) for request in range(200)]
    # All in bytes of their own, so that none is found in the cache.
    bodies = [
        [noise(sides[each], 2 * sides[each] // 3, f"{request} {at}") for at, each in enumerate(numbers)]
        for request, numbers in enumerate(sent)
    ]

    async def run() -> list[list[EncodedItem]]:
        async with AsyncEncoderClient(qwen_tiny.root, timeout_s=120) as client:
            calls = [client.encode(body) for body in bodies]
            return await asyncio.gather(*calls)

    for numbers, items in zip(sent, asyncio.run(run()), strict=True):
        for number, item in zip(numbers, items, strict=True):
            assert_same(item, alone[number])
    after = qwen_tiny.info(qwen_tiny.root)["counters"]
    packs, packed = (after[name] - before[name] for name in ("packs", "items_packed"))
    assert packed == sum(map(len, sent))
    assert packed / packs > 1
