"""A start on a GPU: choices for every rung, a warm start, and too little memory for the largest rung."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from encoder_pool.config import PoolConfig
from encoder_pool.core import Rung
from encoder_pool.graphs.cuda import CudaRunner, synchronised_clock
from encoder_pool.pool.bring_up import BroughtUp, bring_up
from encoder_pool.pool.measured import Card, Subject
from encoder_pool.pool.messages import Phase
from encoder_pool.pool.sizing import size_pool
from encoder_pool.towers.adapter import Tower, Tunes
from encoder_pool.towers.grid import GridAdapter
from encoder_pool.weights import ensure
from tests.gpu import NEEDS_GPU
from tests.graphs.on_gpu import close, expected
from tests.graphs.towers import RaggedTower, clip_batch, ragged_ladder, strip

pytestmark = NEEDS_GPU

CHECKPOINT = "config:qwen2.5-vl-tiny"
WINDOW_ROWS = 64
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENCODER_POOL_MEASURED", str(tmp_path))


def config_of(**ladder: Any) -> PoolConfig:
    model = {"name": "tiny", "adapter": "grid", "checkpoint": CHECKPOINT, "load_format": "dummy"}
    document = {"model": {**model, "device": "cuda", "dtype": "bfloat16"}, "ladder": ladder}
    return PoolConfig.model_validate(document)


def started(
    config: PoolConfig, tower: Tower, runner: CudaRunner, rungs: tuple[Rung, ...], phases: list[Phase]
) -> BroughtUp:
    subject = Subject.of(config, ensure(CHECKPOINT), rungs)
    card = Card.gpu(torch.cuda.get_device_name())
    with torch.cuda.stream(runner.stream):
        return bring_up(
            subject, card, tower, runner, synchronised_clock, lambda phase, fraction: phases.append(phase)
        )


@pytest.mark.parametrize(
    "ladder", [{"min": 16, "max": 256, "rungs_per_octave": 2, "longest_tiers": [256]}, {"max_pack_ms": 1e4}]
)
def test_a_cold_start_chooses_and_times_every_rung_and_a_warm_one_has_all_of_it(
    ladder: dict[str, Any],
) -> None:
    config, folder = config_of(**ladder), ensure(CHECKPOINT)
    adapter = GridAdapter(folder)
    rungs = size_pool(config, adapter).ladder
    results: list[BroughtUp] = []
    choices = []
    for number in range(2):
        tower, phases = adapter.load(config.model), list[Phase]()
        runner = CudaRunner(tower, rungs)
        results.append(started(config, tower, runner, rungs, phases))
        assert runner.ladder == rungs
        assert isinstance(tower, Tunes)
        choices.append(tower.choices)
        assert (Phase.MEASURE in phases) == (number == 0)
        assert (Phase.PROBE in phases) == (number == 0 and config.ladder.is_automatic)
    cold, warm = results
    assert (warm.table, warm.measured_at) == (cold.table, cold.measured_at)
    assert choices[0] == choices[1]
    chosen = {(choice.rows, choice.longest) for choice in choices[0]}
    for rung in rungs:
        held = rung.capacity
        assert {(held.patch_rows, held.longest), (held.patch_rows, WINDOW_ROWS)} <= chosen
    widest = {rung.budget: ms for rung, ms in zip(rungs, cold.table.rung_ms, strict=True)}
    assert min(cold.table.rung_ms) > 0
    assert list(widest.values()) == sorted(widest.values())


@pytest.mark.parametrize("ladder", [{"budgets": [128, 256, 512, 1024]}, {"max_pack_ms": 1e4}])
def test_without_memory_for_the_largest_rung_the_others_serve(ladder: dict[str, Any]) -> None:
    """Scores of 4096 x 4096 rows are 64 MiB, and two are there at a time; those of 2048 are a quarter."""
    tower = RaggedTower(device="cuda")
    rungs = ragged_ladder(128, 256, 512, 1024)
    runner = CudaRunner(tower, rungs)
    (tower.table[:64] @ tower.table[:64].T).sum().item()  # the workspace of products is there before the cap
    total = torch.cuda.get_device_properties(0).total_memory
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 128 * MIB) / total)
    try:
        found = started(config_of(**ladder), tower, runner, rungs, [])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert runner.ladder == rungs[:3]
    (lost,) = found.not_captured
    assert lost.rung == rungs[3]
    assert "out of memory" in lost.why
    assert len(found.table.rung_ms) == 3
    batch = clip_batch(RaggedTower(), strip(300))
    assert close(runner.run(batch, 2), expected(batch))


def test_memory_that_others_hold_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rungs = ragged_ladder(128, 256, 512, 1024)
    tower = RaggedTower(device="cuda")
    runner = CudaRunner(tower, rungs)
    gc.collect()
    torch.cuda.empty_cache()
    # What other tests left torch with counts as free too.
    held = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (600 * MIB - held, 1 << 40))
    found = started(config_of(reserve_bytes=560 * MIB, max_pack_ms=1e4), tower, runner, rungs, [])
    assert runner.ladder == rungs[: len(runner.ladder)]
    assert len(runner.ladder) < 4
    assert all("ladder.reserve_bytes" in lost.why for lost in found.not_captured)
