"""Milliseconds of rungs out of /info, out of benchmarks, and out of neither."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from encoder_pool.bench.cases import TOWERS
from encoder_pool.bench.results import read
from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.measure import PACK_SHARE as MEASURED_PACK_SHARE
from encoder_pool.simulate.times import PACK_SHARE, fit, read_times
from tests.pool.local_pool import config, running

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks" / "h200-tower.json"
LADDER = tuple(
    Rung(budget, Cost(4 * budget, budget, 8, 0, longest))
    for budget in (64, 256, 1024, 4096)
    for longest in (256, 1024, 4 * budget)
)


async def test_what_a_service_measured_comes_out_of_its_info_as_it_was(tmp_path: Path) -> None:
    async with running(config()) as (pool, _):
        report, info = pool.workers.report, tmp_path / "info.json"
        info.write_text(json.dumps(pool.info()))
    times = read_times(f"{info}", "any", ())
    assert times.ladder == report.ladder
    assert times.table.rung_ms == pytest.approx(report.table.rung_ms, abs=1e-3)
    assert replace(times.table, rung_ms=()) == replace(report.table, rung_ms=())


@pytest.mark.parametrize("tower", ["qwen2_5", "qwen3"])
def test_a_fit_is_within_a_tenth_of_every_pack_it_was_made_from(tower: str) -> None:
    cases = [case for case in read(RESULTS).cases if case.tower == tower and " " not in case.ours_packs]
    shapes = [tuple(map(int, case.ours_packs.split("/"))) for case in cases]
    ladder = [Rung(budget, Cost(4 * budget, budget, 8, 0, longest)) for budget, longest in shapes]
    table = fit(cases, ladder)
    for case, ms in zip(cases, table.rung_ms, strict=True):
        assert ms == pytest.approx(case.ours_ms, rel=0.1), case.case
    assert table.eager_fixed_ms >= max(table.rung_ms)


def test_a_benchmarks_tower_is_found_by_its_checkpoint() -> None:
    times = read_times(f"{RESULTS}", TOWERS["qwen2_5"], LADDER)
    assert times.ladder == LADDER
    assert "NVIDIA H200" in times.source
    slower = read_times(f"{RESULTS}", TOWERS["qwen3"], LADDER)
    assert slower.table.rung_ms[-1] > 1.5 * times.table.rung_ms[-1]  # full attention in every layer
    with pytest.raises(ValueError, match=r"no times of model\.checkpoint 'builtin:x'; it has config:qwen"):
        read_times(f"{RESULTS}", "builtin:x", LADDER)


def test_few_cases_make_no_fit() -> None:
    with pytest.raises(ValueError, match="three cases"):
        fit(read(RESULTS).cases[:2], LADDER)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("[]", "is neither"),
        ("{}", "ladder: Field required"),
        ('{"ladder": {"rungs": [], "eager": {"fixed_ms": 1, "row_ms": 0}, "pack_ms": 1}}', r"ladder\.rungs"),
    ],
)
def test_what_has_no_times_is_refused_with_the_reason(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"times\.json.*{why}"):
        read_times(f"{file}", "any", LADDER)


def test_a_service_that_does_not_answer_is_named() -> None:
    with pytest.raises(ValueError, match=r"http://127\.0\.0\.1:9/info does not answer"):
        read_times("http://127.0.0.1:9", "any", LADDER)


def test_a_pack_costs_what_measuring_says_it_does() -> None:
    assert PACK_SHARE == MEASURED_PACK_SHARE
