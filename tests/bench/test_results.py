"""Results on disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from encoder_pool.bench.results import read, runs, write

from .found import case, results


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = results(case(kernels=None, kernel_sum_ms=None), case("qwen2_5", stock_error=None))
    write(found, tmp_path / "tower.json")
    assert read(tmp_path / "tower.json") == found


def test_the_file_has_the_keys_that_others_look_for(tmp_path: Path) -> None:
    write(results(case()), tmp_path / "tower.json")
    found = json.loads((tmp_path / "tower.json").read_text())
    assert found.keys() >= {"machine", "versions", "command", "date", "rates", "cases", "mixed", "ladder"}
    times = {"floor_ms", "stock_ms", "seed_ms", "ours_ms", "ours_run_ms", "kernel_sum_ms", "share"}
    assert found["cases"][0].keys() >= {"tower", "case", "error", *times}
    assert found["mixed"]["qwen3"].keys() >= {"ours_tokens_s", "seed_tokens_s", "padding"}
    assert found["ladder"]["qwen3"].keys() >= {"rungs", "capture_s", "pool_bytes", "largest_rung_bytes"}


def test_numbers_are_short(tmp_path: Path) -> None:
    write(results(case(stock_error=0.0123456789)), tmp_path / "tower.json")
    assert json.loads((tmp_path / "tower.json").read_text())["cases"][0]["stock_error"] == 0.012346


def test_an_error_that_is_no_number_is_written_and_read(tmp_path: Path) -> None:
    write(results(case(error=math.nan)), tmp_path / "tower.json")
    assert math.isnan(read(tmp_path / "tower.json").cases[0].error)


def test_a_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    for count in (1, 2):
        write(results(*[case()] * count), tmp_path / "tower.json")
        assert len(read(tmp_path / "tower.json").cases) == count
    assert [path.name for path in tmp_path.iterdir()] == ["tower.json"]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tower.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no results of encoder-pool bench tower"):
        read(tmp_path / "tower.json")


def test_results_grow() -> None:
    grown = results().with_case(case()).with_case(case("qwen2_5")).with_case(case(name="1x64"))
    assert grown.towers == ("qwen3", "qwen2_5")
    mixed, ladder = grown.mixed["qwen3"], grown.ladder["qwen3"]
    grown = grown.with_mixed("qwen2_5", mixed).with_ladder("qwen2_5", ladder)
    assert list(grown.mixed) == list(grown.ladder) == ["qwen3", "qwen2_5"]


def test_packs_of_the_same_shape_are_counted() -> None:
    assert runs(["64", "64", "8", "64"]) == "2 x 64 + 8 + 64"
