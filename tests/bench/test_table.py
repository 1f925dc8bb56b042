"""Results for people."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from encoder_pool.bench.results import Results
from encoder_pool.bench.table import report

from .found import case, results


def shown(found: Results) -> str:
    out = Console(file=StringIO(), width=110)
    for part in report(found):
        out.print(part, markup=False, highlight=False)
    assert isinstance(out.file, StringIO)
    return out.file.getvalue()


def test_a_tower_has_its_table_with_every_time_and_the_share() -> None:
    text = shown(results(case(stock_ms=316.4), case("qwen2_5", "64x64", kernel_sum_ms=None)))
    line = next(line for line in text.splitlines() if "1x1024" in line)
    for number in ("7.32", "316", "23.3", "12.2", "12.9", "11.5", "60.0%", "8.0e-03"):
        assert number in line
    assert [name for name in ("qwen3", "qwen2_5") if name in text] == ["qwen3", "qwen2_5"]
    assert "64x64" in text


def test_machine_mixed_traffic_and_ladder_are_told() -> None:
    text = shown(results(case()))
    assert "NVIDIA H200, 16 cores; torch 2.11.0" in text
    assert "91,000 tokens/s, 3.1% padding" in text
    assert "seed 10,800" in text
    assert "73 rungs captured in 2.50 s, after 12.5 s" in text
    assert "500 MiB, for the largest alone 480 MiB" in text


def test_a_run_that_was_cut_short_is_shown_as_far_as_it_got() -> None:
    assert "qwen2_5" in shown(results(case("qwen2_5")))
