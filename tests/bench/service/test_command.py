"""The command as a person meets it: a whole service of a small tower, measured on a CPU."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from encoder_pool.bench.service.results import read
from encoder_pool.bench.service.run import begun
from encoder_pool.bench.service.tower import OwnRates
from encoder_pool.cli import main
from tests.service.running import COMMAND, ROOT

from .found import photo_set, results

LIMIT_S = 1800.0
"""A minute on a machine that does nothing else; a busy one takes its time."""
KINDS = ["lone", "closed", "poisson", "bursts", "overload", "grouped", "shared"]


@pytest.mark.service
def test_a_small_service_is_measured_and_told_and_written(tmp_path: Path) -> None:
    out, plot = tmp_path / "service.json", tmp_path / "service.png"
    command = [f"{COMMAND}", "bench", "service", "--file", "serve_configs/qwen-tiny.yaml", "--name", "tiny"]
    options = ["--sets", "56", "--seconds", "0.5", "--out", f"{out}", "--plot", f"{plot}"]
    run = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert run.stderr == "" or "the clients were the limit" in run.stderr
    found = read(out).sets["tiny-56"]
    assert [kind for kind, _ in groupby(load.kind for load in found.loads)] == KINDS
    assert found.tower_items_s > 0
    assert found.service_items_s > 0
    assert found.stages_off_ms < 0.1
    for load in found.loads:
        assert load.requests > 0
        assert (load.errors, load.cached) == (0, 0)
        assert load.shared == (load.requests if load.kind == "shared" else 0)
        assert load.limit
        assert load.tokens_s == pytest.approx(4 * load.items_s, rel=1e-3)
        assert min(load.stages_ms.values()) >= 0
    assert "tiny-56" in run.stdout
    assert plot.stat().st_size


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What the command says of a mistake."""
    with suppress(SystemExit):  # of argparse
        assert main(["bench", "service", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_mistakes_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = ROOT / "serve_configs" / "demo.yaml"
    assert "takes no images" in refused(capsys, "--file", demo, "--application", "audio")
    assert "has no application 'x'" in refused(capsys, "--file", demo, "--application", "x")
    assert "No such file" in refused(capsys, "--file", tmp_path / "nothing.yaml")
    assert "one is mix, or a side" in refused(capsys, "--file", demo, "--sets", "7")
    assert "no number of seconds above 0" in refused(capsys, "--file", demo, "--seconds", "0")
    assert "no number of 1 or more" in refused(capsys, "--file", demo, "--clients", "0")


def test_results_of_another_machine_are_not_appended_to() -> None:
    before = results(one=photo_set())
    here = OwnRates({}, before.machine, before.versions)
    assert begun(here, before) is before
    assert begun(here, None).sets == {}
    for other in (
        here._replace(versions={"torch": "3"}),
        here._replace(machine=replace(here.machine, cores=2)),
    ):
        with pytest.raises(ValueError, match="--append: the file is of another machine"):
            begun(other, before)
