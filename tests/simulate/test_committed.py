"""The study that the documentation shows is what a run has written, and the page has its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_pool.simulate.results import Result, read

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulate.md").read_text()
STUDY, WITH_MORE_PROXY = (
    read(ROOT / "docs" / "benchmarks" / name) for name in ("simulated-h200.json", "simulated-h200-proxy.json")
)


def test_the_committed_studies_have_one_gpu_and_fleets_of_them() -> None:
    assert [result.gpus for result in STUDY.results] == [1, 8, 64, 512]
    assert [result.gpus for result in WITH_MORE_PROXY.results] == [1, 8, 64]
    assert WITH_MORE_PROXY.machines.hardware.proxy_gb_s == 4 * STUDY.machines.hardware.proxy_gb_s
    for study in (STUDY, WITH_MORE_PROXY):
        assert study.times == "fitted to h200-tower.json, NVIDIA H200"
        assert f"\n{study.command}\n" in PAGE


@pytest.mark.parametrize("result", [*STUDY.results, *WITH_MORE_PROXY.results])
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
