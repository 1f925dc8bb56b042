"""`encoder-pool simulate` as it is typed, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from encoder_pool.cli import main
from encoder_pool.simulate.costs import Costs, Hardware
from encoder_pool.simulate.plot import draw
from encoder_pool.simulate.results import read

ROOT = Path(__file__).parents[2]
QWEN = ROOT / "serve_configs" / "qwen.yaml"
TIMES = ROOT / "docs" / "benchmarks" / "h200-tower.json"


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Status, standard output and standard error of a command; a line is never broken."""
    monkeypatch.setenv("COLUMNS", "300")

    def run(*arguments: str | Path, times: Path = TIMES) -> tuple[int, str, str]:
        words = ["simulate", f"{QWEN}", "--times", f"{times}", *map(str, arguments)]
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_study_is_shown_written_and_drawn(simulate: Any, tmp_path: Path) -> None:
    out, plot = tmp_path / "study.json", tmp_path / "study.svg"
    traffic = ("--rate-per-gpu", "20", "--seconds", "3", "--sizes", "512x512")
    status, shown, told = simulate("--gpus", "1,9", *traffic, "--out", out, "--plot", plot)
    assert status == 0
    assert "fitted to h200-tower.json, NVIDIA H200" in shown
    assert "breaks first" in shown
    assert "9 GPU(s): " in told
    study = read(out)
    one, nine = study.results
    assert (one.gpus, one.hosts, nine.gpus, nine.hosts) == (1, 1, 9, 2)
    assert nine.offered_per_s > 5 * one.offered_per_s
    assert one.tokens_per_s == pytest.approx(one.images_per_s * 324)
    assert study.model == "qwen2.5-vl-7b"
    assert study.traffic.sizes == "512x512"
    assert "<svg" in plot.read_text()
    again = tmp_path / "again.svg"
    draw(study, again)
    assert again.stat().st_size > 1000


def test_other_machines_have_other_limits(simulate: Any, tmp_path: Path) -> None:
    machines = tmp_path / "machines.json"
    machines.write_text(json.dumps({"hardware": {"nic_gbit_s": 0.5}, "costs": {"prepare_ms": 1}}))
    traffic = ("--rate", "20", "--seconds", "3", "--sizes", "512x512", "--gpus", "1")
    _, shown, _ = simulate(*traffic, "--machines", machines)
    assert shown.split("breaks first")[1].split("at requests/s")[0].replace("│", "").strip() == "network out"
    machines.write_text(json.dumps({"hardware": {"nic_gbits": 0.5}}))
    status, _, complaint = simulate(*traffic, "--machines", machines)
    assert status == 2
    assert "hardware: unknown key 'nic_gbits'; did you mean 'nic_gbit_s'?" in complaint


def test_the_least_number_of_gpus_is_found(simulate: Any) -> None:
    traffic = ("--rate", "450", "--seconds", "3", "--sizes", "512x512")
    status, shown, _ = simulate("--find", "--p99-ms", "400", *traffic)
    assert status == 0
    assert "2 GPU(s): p99 within 400 ms and at most 0.1% lost" in shown
    status, shown, _ = simulate("--find", "--p99-ms", "1", "--most-gpus", "2", *traffic)
    assert status == 1
    assert "not even 2 GPUs: p99 within 1 ms" in shown


def load(kind: str, **keys: float | None) -> dict[str, Any]:
    """As `bench service` writes it, with more than is read."""
    cores = {"haproxy": 0.1, "clients": 0.5, "others": 0.0, "replica": 1.0}
    of_kind = {"in_flight": None, "offered": None, **keys}
    return {"kind": kind, "images": 1, "items_s": 1.0, "p50_ms": 1.0, "cores": cores, "limit": "x", **of_kind}


def test_a_measured_service_is_compared_load_by_load(simulate: Any, tmp_path: Path) -> None:
    measured = tmp_path / "service.json"

    def write(*loads: dict[str, Any]) -> Path:
        sets = {"qwen-512": {"photo_bytes": 70_000, "photos": 8, "loads": loads}}
        measured.write_text(json.dumps({"machine": {"cores": 16, "card": "X"}, "sets": sets}))
        return measured

    lone = load("lone", in_flight=1)
    status, shown, _ = simulate("--check", write(lone, load("overload", in_flight=9)), "--seconds", "3")
    assert status == 1
    assert "qwen-512, lone, 1 x 1 in flight" in shown
    assert "overload" not in shown
    simulated = [float(word) for word in shown.split("in flight")[1].replace("│", " ").split()[:5:3]]
    near = load("lone", in_flight=1, items_s=simulated[0] * 1.05, p50_ms=simulated[1] * 0.9)
    open_loop = load("poisson", offered=30.0, items_s=30.0, p50_ms=simulated[1])
    status, shown, _ = simulate("--check", write(near, open_loop), "--seconds", "20")
    assert status == 0, shown
    assert "qwen-512, poisson, 1 x 30/s" in shown


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "some traffic is needed: --rate, --rate-per-gpu, --in-flight or --trace"),
        (("--find", "--rate", "3"), "--find needs --p99-ms"),
        (("--find", "--p99-ms", "3", "--rate-per-gpu", "3"), "a rate for all GPUs together"),
        (("--rate", "3", "--sizes", "big"), "'big' is no size; it is mix, photos or WIDTHxHEIGHT"),
        (("--rate", "3", "--application", "image"), "has no application 'image'; it has qwen"),
        (("--trace", "missing.csv"), "missing.csv"),
        (("--check", TIMES), "holds no results of encoder-pool bench service"),
    ],
)
def test_what_cannot_be_simulated_is_refused(simulate: Any, words: tuple[str, ...], why: str) -> None:
    status, _, complaint = simulate(*words)
    assert status == 2
    assert why in complaint


def test_a_broken_trace_is_refused_before_anything_is_simulated(simulate: Any, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("seconds,width,height\n1,64,64\n0,64,64\n")
    status, _, complaint = simulate("--trace", file, "--gpus", "1")
    assert status == 2
    assert f"{file}, line 3: 0.0 s comes after 1.0 s" in complaint


def test_a_tower_without_foresight_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = QWEN.read_text().replace("adapter: grid", "adapter: tests.toy:ToyAdapter")
    file = tmp_path / "toy.yaml"
    file.write_text(text.replace("longest_tiers: [1024, 4096]", ""))
    assert main(["simulate", f"{file}", "--times", f"{TIMES}", "--rate", "1"]) == 2
    assert "model.adapter 'tests.toy:ToyAdapter' does not say what an image costs" in capsys.readouterr().err


def test_several_workers_a_replica_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(QWEN.read_text().replace("replica:\n", "replica:\n        workers: 2\n"))
    assert main(["simulate", f"{file}", "--times", f"{TIMES}", "--rate", "1"]) == 2
    assert "replica.workers must be 1 (it is 2)" in " ".join(capsys.readouterr().err.split())


def test_every_modelled_number_says_where_it_is_from() -> None:
    for section in (Costs, Hardware):
        for name, field in section.model_fields.items():
            assert field.description, name
