from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.running import Service, serving
from tests.service.toys import application, service_file
from tests.towers.grid_checkpoints import GridCase


@pytest.fixture(scope="session")
def grid_case(tmp_path_factory: pytest.TempPathFactory) -> GridCase:
    """Qwen3-VL's tower at a small random size, from a full sharded checkpoint."""
    return GridCase.at("qwen3_vl", tmp_path_factory.mktemp("qwen3_vl"))


@pytest.fixture(scope="session")
def several(grid_case: GridCase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service of three applications: starting one costs more than most tests.

    toys    misbehave on demand
    scaled  toys whose replicas follow the work
    grid    the grid case
    """
    shard = {"pack_timeout_s": 2, "max_restarts": 5}
    queue = {"max_requests": 64, "deadline_s": 30}
    scaling = {"max_replicas": 2, "target_drain_s": 0.2, "upscale_delay_s": 0.5, "downscale_delay_s": 5}
    model = {"name": "tiny", "adapter": "grid", "checkpoint": str(grid_case.folder)}
    file = service_file(
        tmp_path_factory.mktemp("several"),
        application("toys", shard=shard, queue=queue),
        application("scaled", scaling=scaling),
        application("grid", model=model, ladder={"min": 64, "max": 1024}),
    )
    with serving(file) as service:
        yield service
