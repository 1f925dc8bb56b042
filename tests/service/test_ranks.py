"""A tower split over two ranks, in a real service: its rows are those of the whole one, also after a kill."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import pytest
import torch

from encoder_pool.client import AsyncEncoderClient
from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality
from encoder_pool.towers.adapter import StagedItem
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.weights import ensure
from tests.media.clips import film, gray_frames
from tests.service.running import ROOT, Service, kill, serving, wait_until
from tests.service.toys import application, service_file
from tests.towers.cases import assert_close, model_config, run

pytestmark = pytest.mark.service

NAME = "split"
DEADLINE_S = 250.0
"""Far more than it takes to start the ranks again."""
FOLDER = ensure("config:qwen2.5-vl-tiny")
PHOTOS = [path.read_bytes() for path in sorted((ROOT / "encoder_pool" / "demo" / "media").glob("*.jpg"))]


class Split:
    """The application, and the rows of the same tower in this process."""

    def __init__(self, service: Service) -> None:
        self.url = f"{service.root}/{NAME}"
        self._service = service
        self._adapter = GridAdapter(FOLDER)
        self._tower = self._adapter.load(model_config(load_format="dummy"))

    @property
    def worker(self) -> dict[str, Any]:
        worker: dict[str, Any] = self._service.info(self.url)["workers"][0]
        return worker

    @property
    def pids(self) -> list[int]:
        return [rank["pid"] for rank in self.worker["ranks"]]

    def whole(self, modality: Modality, data: bytes) -> torch.Tensor:
        item = self._adapter.prepare(Media(modality, data, ""), LimitsConfig())
        with torch.inference_mode():
            return run(self._tower, [StagedItem(torch.from_numpy(item.data), item.grid)])

    def encode(self, items: Sequence[bytes]) -> list[torch.Tensor]:
        """Each by a request of its own, all at once, none of which is sent twice."""

        async def run() -> list[torch.Tensor]:
            async with AsyncEncoderClient(self.url, timeout_s=DEADLINE_S, max_retries=0) as client:
                replies = await asyncio.gather(*map(client.encode, items))
                return [torch.from_numpy(item.embedding) for (item,) in replies]

        return asyncio.run(run())


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    tiny = {"name": "tiny", "adapter": "grid", "checkpoint": str(FOLDER), "load_format": "dummy"}
    model = {**tiny, "tensor_parallel_size": 2}
    sections = {"ladder": {"min": 64, "max": 256}, "queue": {"deadline_s": DEADLINE_S}}
    entry = application(NAME, model=model, **sections)
    with serving(service_file(tmp_path_factory.mktemp(NAME), entry)) as service:
        yield Split(service)


def test_images_and_videos_have_the_rows_of_the_whole_tower_and_the_ranks_are_shown(split: Split) -> None:
    before = split.worker["packs_agreed"]
    video = film(gray_frames(24, 120, 160), rate=4)
    *photos, clip = split.encode([*PHOTOS, video])
    for rows, photo in zip(photos, PHOTOS, strict=True):
        assert_close(rows, split.whole(Modality.IMAGE, photo))
    assert_close(clip, split.whole(Modality.VIDEO, video))
    worker = split.worker
    assert worker["packs_agreed"] > before
    first, second = worker["ranks"]
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["pid"] == worker["pid"] != second["pid"]
    for rank in (first, second):
        assert (rank["backend"], rank["checksum"]) == ("gloo", 1 + 2)
        assert psutil.pid_exists(rank["pid"])
        assert rank["weights_bytes"] < 4 * 1_335_328, "half of the blocks, and columns that fill them up"


def test_a_rank_that_is_killed_under_load_costs_no_request(split: Split) -> None:
    pids = split.pids
    killer = threading.Timer(0.2, kill, [pids[1]])
    killer.start()
    rows = split.encode(PHOTOS * 6)
    killer.join()
    alone = [split.whole(Modality.IMAGE, photo) for photo in PHOTOS]
    for encoded, expected in zip(rows, alone * 6, strict=True):
        assert_close(encoded, expected)
    wait_until(lambda: split.worker["state"] == "ready" and set(split.pids).isdisjoint(pids), DEADLINE_S)
    wait_until(lambda: not any(map(psutil.pid_exists, pids)), DEADLINE_S)
