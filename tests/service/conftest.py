from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from encoder_pool.towers.grid import GridAdapter
from tests.service.running import KEY, Service, serving
from tests.service.toys import application, service_file
from tests.towers.grid_checkpoints import GridCase


class GridCases(NamedTuple):
    """Towers at small random sizes, from full sharded checkpoints."""

    qwen: GridCase
    kimi: GridCase


@pytest.fixture(scope="session")
def grid_cases(tmp_path_factory: pytest.TempPathFactory) -> GridCases:
    """Qwen3-VL and Kimi-K2.5."""
    qwen, kimi = (GridCase.at(family, tmp_path_factory.mktemp(family)) for family in ("qwen3_vl", "kimi_k25"))
    return GridCases(with_large_frames(qwen), kimi)


def with_large_frames(case: GridCase) -> GridCase:
    """The processor gives a video so many pixels that twelve frames are beyond 1024 tokens."""
    file = case.folder / "video_preprocessor_config.json"
    size = {"shortest_edge": 2**17, "longest_edge": 2**23}
    file.write_text(json.dumps({**json.loads(file.read_text()), "size": size}))
    return replace(case, adapter=GridAdapter(case.folder))


@pytest.fixture(scope="package")
def several(grid_cases: GridCases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service of five applications, for to start one takes longer than most tests.

    toys        misbehave on demand
    scaled      toys whose replicas follow the work, from none to two
    bulky       toys whose rows are many bytes, for callers with a key
    grid, kimi  the grid cases
    """
    shard = {"pack_timeout_s": 2, "max_restarts": 5}
    queue = {"max_requests": 64, "deadline_s": 30}
    scaling = {
        "min_replicas": 0,
        "max_replicas": 2,
        "target_drain_s": 0.2,
        "upscale_delay_s": 0.5,
        "downscale_delay_s": 5,
    }
    folder = tmp_path_factory.mktemp("several")
    (folder / "keys").write_text(f"another\n{KEY}\n")
    auth = {"keys_file": str(folder / "keys")}
    file = service_file(
        folder,
        application("toys", shard=shard, queue=queue, limits={"max_body_seconds": 3}),
        application("scaled", scaling=scaling),
        application("bulky", model={"name": "bulky", "adapter": "tests.toy:BulkyAdapter"}, auth=auth),
        application("grid", **grid_sections(grid_cases.qwen)),
        application("kimi", **grid_sections(grid_cases.kimi)),
    )
    with serving(file) as service:
        yield service


def grid_sections(case: GridCase) -> dict[str, Any]:
    model = {"name": "tiny", "adapter": "grid", "checkpoint": str(case.folder)}
    return {"model": model, "ladder": {"min": 64, "max": 1024}}
