"""The results that the repository shows are what a run has written, and the README has their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_pool.bench.cases import WORKLOADS
from encoder_pool.bench.results import CaseResult, read

ROOT = Path(__file__).parents[2]
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
