"""The command as a person meets it, on a small tower and a CPU; and on a GPU where there is one."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from encoder_pool.bench.cases import Case
from encoder_pool.bench.prepare import Options, prepare
from encoder_pool.bench.results import read, write
from encoder_pool.bench.tower import bench, complaints
from encoder_pool.cli import main
from tests.gpu import needs_gpu

from .found import case, results
from .towers import qwen3_folder

TIMES = ("floor_ms", "stock_ms", "seed_ms", "ours_ms", "ours_run_ms", "kernel_sum_ms", "share")


def test_a_run_on_a_cpu_measures_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "tower.json", tmp_path / "tower.png"
    status = main(
        ["bench", "tower", "--device", "cpu", "--cases", "1x4,2x16", "--out", str(out), "--plot", str(plot)]
    )
    assert status == 0
    found = read(out)
    assert [(each.tower, each.case) for each in found.cases] == [("tiny", "1x4"), ("tiny", "2x16")]
    for each in found.cases:
        assert all(getattr(each, name) > 0 for name in TIMES)
        assert max(each.error, each.seed_error, each.error_fp32 or 1) < 1e-4
        assert each.ours_repeats == 15
    assert found.mixed["tiny"].ours_tokens_s > 0
    assert 0 <= found.mixed["tiny"].padding < 0.5
    assert found.ladder["tiny"].rungs > 4
    assert (
        found.command == f"encoder-pool bench tower --device cpu --cases 1x4,2x16 --out {out} --plot {plot}"
    )
    assert plot.stat().st_size
    told = capsys.readouterr()
    assert "tiny 2x16: floor" in told.err
    assert "2x16" in told.out


def test_a_quick_run_leaves_the_sum_of_kernels_out(tmp_path: Path) -> None:
    out, folder = tmp_path / "tower.json", qwen3_folder(tmp_path / "small")
    arguments = ["--device", "cpu", "--towers", str(folder), "--cases", "1x4", "--quick", "--out", str(out)]
    assert main(["bench", "tower", *arguments]) == 0
    (found,) = read(out).cases
    assert (found.tower, found.kernel_sum_ms, found.kernels, found.error_fp32) == ("small", None, None, None)
    assert found.ours_repeats == 5


def test_the_file_grows_while_the_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that dies in its second case has left the first."""
    out = tmp_path / "tower.json"

    def dying(message: str, fraction: float | None) -> None:
        if message == "tiny: mixed traffic":
            raise KeyboardInterrupt

    options = Options(device="cpu", cases=(Case.named("1x4"),), is_quick=True, out=out)
    with pytest.raises(KeyboardInterrupt):
        bench(prepare(options), options, dying)
    assert json.loads(out.read_text())["cases"][0]["case"] == "1x4"
    assert list(read(out).ladder) == ["tiny"]
    assert not read(out).mixed


def test_rows_that_are_not_those_of_stock_make_the_run_fail() -> None:
    found = complaints(results(case(), case(error=0.2), case("qwen2_5", seed_error=float("nan"))))
    assert found == [
        "qwen3 1x1024: our rows are 0.2 off stock; the limit is 0.1",
        "qwen2_5 1x1024: the seed's rows are nan off stock; the limit is 0.1",
    ]


def test_a_missing_gpu_is_told_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "tower", "--device", "cuda"]) == 2
    assert "encoder-pool: --device cuda: torch finds no NVIDIA GPU here" in capsys.readouterr().err


def test_an_unknown_tower_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tower", "--device", "cpu", "--towers", "qwen9"]) == 2
    assert "'qwen9' is no checkpoint" in capsys.readouterr().err


def test_a_bad_case_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "tower", "--cases", "1x64,2x7"])
    assert "case 2x7: images are square" in capsys.readouterr().err


def test_a_picture_of_no_known_format_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "tower", "--plot", "tower.json"])
    assert "tower.json is no picture; one ends with .png or .svg or .pdf" in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["bench", "tower", "--device", "cpu", "--plot", str(tmp_path / "tower.png")]) == 2
    assert "run: pip install 'encoder-pool[bench]'" in capsys.readouterr().err


def test_an_earlier_run_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(results(case()), tmp_path / "tower.json")
    assert main(["bench", "plot", str(tmp_path / "tower.json"), str(tmp_path / "tower.png")]) == 0
    assert (tmp_path / "tower.png").stat().st_size
    assert main(["bench", "plot", str(tmp_path / "missing.json"), str(tmp_path / "tower.png")]) == 2
    assert "missing.json" in capsys.readouterr().err


@needs_gpu
def test_a_run_on_a_gpu_measures_everything(tmp_path: Path) -> None:
    out = tmp_path / "tower.json"
    arguments = ["--device", "cuda", "--towers", "tiny", "--cases", "1x64,4x256", "--out", str(out)]
    assert main(["bench", "tower", *arguments]) == 0
    found = read(out)
    assert found.machine.card
    for each in found.cases:
        assert all(getattr(each, name) > 0 for name in TIMES)
        assert max(each.error, each.seed_error) < 0.05
    assert found.ladder["tiny"].pool_bytes >= found.ladder["tiny"].largest_rung_bytes > 0
