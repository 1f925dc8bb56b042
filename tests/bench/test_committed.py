"""The results that the repository shows are what a run has written, and the README has their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from encoder_pool.bench.cases import WORKLOADS
from encoder_pool.bench.results import CaseResult, read
from encoder_pool.bench.service.results import SetResult
from encoder_pool.bench.service.results import read as read_service
from encoder_pool.bench.service.table import number
from encoder_pool.bench.shard import ShardResults

ROOT = Path(__file__).parents[2]
SERVICES = sorted((ROOT / "docs" / "benchmarks").glob("*-service.json"))
SETS = [(path.stem, name, found) for path in SERVICES for name, found in read_service(path).sets.items()]
SHARD = TypeAdapter(ShardResults).validate_json(
    (ROOT / "docs" / "benchmarks" / "h200-shard.json").read_bytes()
)
MEMORY = read_service(ROOT / "docs" / "benchmarks" / "cpu-memory.json").soaks["qwen-tiny-56"]
RESULTS = read(ROOT / "docs" / "benchmarks" / "h200-tower.json")
NAMES = {"qwen2_5": "Qwen2.5-VL-7B", "qwen3": "Qwen3-VL-8B"}


def milliseconds(ms: float) -> str:
    return f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"


def test_the_committed_run_has_every_tower_and_case() -> None:
    workload = WORKLOADS["cuda"]
    asked = {(subject.name, case.name) for subject in workload.subjects for case in workload.cases}
    assert {(case.tower, case.case) for case in RESULTS.cases} == asked
    assert set(RESULTS.mixed) == set(RESULTS.ladder) == set(NAMES)
    assert RESULTS.machine.card == "NVIDIA H200"


@pytest.mark.parametrize("case", RESULTS.cases, ids=lambda case: f"{case.tower}-{case.case}")
def test_the_readme_has_the_committed_numbers(case: CaseResult) -> None:
    assert case.fp8 is not None
    times = [milliseconds(ms) for ms in (case.stock_ms, case.seed_ms, case.ours_ms)]
    row = [f"{NAMES[case.tower]} {case.case}", *times, f"{case.share:.0%}", milliseconds(case.fp8.ms)]
    assert f"| {' | '.join(row)} |" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("file", "name", "found"), SETS, ids=[f"{file}-{name}" for file, name, _ in SETS])
def test_the_readme_has_the_committed_numbers_of_the_service(file: str, name: str, found: SetResult) -> None:
    at_70 = [found.p50_at_70_ms, found.p99_at_70_ms]
    shares = [f"{ratio:.0%}" for ratio in (found.ratio, found.grouped_ratio, found.shared_ratio)]
    lone = [found.lone_ms, found.replay_ms]
    row = [name, number(found.tower_items_s), number(found.service_items_s), *shares]
    row += [*map(number, at_70), f"{found.mean_batch_at_70:.1f}", *map(number, lone), found.limit]
    assert f"| {' | '.join(row)} |" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("file", "name", "found"), SETS, ids=[f"{file}-{name}" for file, name, _ in SETS])
def test_committed_loads_came_through_the_tower_and_failed_nowhere(
    file: str, name: str, found: SetResult
) -> None:
    assert found.stages_off_ms < 1
    assert [(load.cached, load.errors) for load in found.loads] == [(0, 0)] * len(found.loads)


def test_the_readme_has_the_committed_numbers_of_the_shard_and_of_its_memory() -> None:
    replica = MEMORY.sightings["replica"]
    sizes = [replica[place].resident_bytes >> 20 for place in (0, -1)]
    text = " ".join((ROOT / "README.md").read_text().split())
    assert MEMORY.errors == 0
    assert {replica[place].descriptors for place in (0, -1)} == {106}
    for told in (
        f"needs {SHARD.pack_ms:.1f} ms for each, {SHARD.bytes_out / 1e6:.1f} MB out of it copied",
        f"the bare graph needs {SHARD.replay_ms:.1f} ms",
        f"over {MEMORY.requests:,} requests",
        "the replica went from {} to {} MiB, its descriptors stayed at 106".format(*sizes),
    ):
        assert told in text
