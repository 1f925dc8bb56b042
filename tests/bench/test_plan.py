"""The planner's own benchmark, as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encoder_pool.bench.plan import LADDERS, WAITING
from encoder_pool.cli import main
from encoder_pool.pool.batcher import WINDOW


def test_a_run_times_every_ladder_with_every_number_of_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    assert main(["bench", "plan", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    asked = [(name, waiting) for name in LADDERS for waiting in WAITING]
    assert [(case["ladder"], case["waiting"]) for case in found["cases"]] == asked
    assert all(case["us"] > 0 and case["repeats"] >= 20 for case in found["cases"])
    assert [case["rungs"] for case in found["cases"] if case["waiting"] == 1] == [9, 25, 49, 73]
    assert found["command"] == f"encoder-pool bench plan --out {out}"
    assert found["versions"].keys() >= {"python", "numpy"}
    shown = capsys.readouterr().out
    assert found["machine"]["cpu"] in shown
    assert all(name in shown for name in LADDERS)


def test_the_most_that_wait_are_the_batchers_window() -> None:
    assert max(WAITING) == WINDOW
