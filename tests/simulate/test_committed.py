"""The study that the documentation shows is what a run has written, and the page has its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_pool.simulate.results import Result, read

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulate.md").read_text()
STUDY = read(ROOT / "docs" / "benchmarks" / "simulated-h200.json")


def test_the_committed_study_has_one_gpu_and_fleets_of_them() -> None:
    assert [result.gpus for result in STUDY.results] == [1, 8, 64, 512]
    assert STUDY.times == "fitted to h200-tower.json, NVIDIA H200"
    assert STUDY.command in PAGE


@pytest.mark.parametrize("result", STUDY.results, ids=lambda result: f"{result.gpus}")
def test_the_page_has_the_committed_numbers(result: Result) -> None:
    uses = [result.uses[name].busiest for name in ("gpu", "proxy", "interpreter", "network out", "cores")]
    row = [
        f"{result.gpus}",
        f"{result.offered_per_s:.0f}",
        *(f"{ms:.0f}" for ms in (result.p50_ms, result.p90_ms, result.p99_ms)),
        f"{result.lost}",
        f"{result.mean_batch:.2f}",
        f"{result.padding:.1%}",
        *(f"{use:.0%}" for use in uses),
        f"{result.first_to_break}, {result.breaks_at_per_s:.0f}",
    ]
    assert f"| {' | '.join(row)} |" in PAGE
