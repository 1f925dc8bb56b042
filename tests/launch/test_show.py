from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from encoder_pool.config import PoolConfig
from encoder_pool.launch.plan import plan_pool
from encoder_pool.launch.show import MIB, config_table, plan_table, progress_bar
from tests.launch.toy_service import keep, toy_args


def rendered(table: Table) -> list[str]:
    """The table's lines on a wide terminal."""
    console = Console(file=StringIO(), width=250, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


def cells(table: Table) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in rendered(table) if "│" in line]


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a configuration."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_terminal")
def test_a_progress_bar_is_silent_where_standard_error_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_bar() as report:
        report("loading weights", 0.5)
        report("capturing", None)
    assert capsys.readouterr() == ("", "")


def test_a_progress_bar_shows_what_is_reported_on_a_terminal_and_only_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as report:
        report("loading weights", 0.5)
        report("capturing", None)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "capturing" in shown.err


def test_the_configuration_table_lists_every_key_once(tmp_path: Path) -> None:
    settings = PoolConfig.model_validate(toy_args(tmp_path))
    keys = [row[0] for row in cells(config_table())]
    assert keys == [key for key, _ in leaves(settings.model_dump())]


def test_the_configuration_table_shows_the_default_of_every_key(tmp_path: Path) -> None:
    shown = {key: default for key, default, _ in cells(config_table())}
    settings = dict(leaves(PoolConfig.model_validate(toy_args(tmp_path)).model_dump()))
    given = {"model.name", "model.adapter", "model.checkpoint", "ladder.min", "ladder.max"}
    for key, value in settings.items():
        if key not in given:
            assert shown[key] == ("unset" if value is None else str(value))
    assert {key for key, default in shown.items() if default == "required"} == {
        "model.name",
        "model.adapter",
        "model.checkpoint",
    }


def test_the_configuration_table_says_what_every_key_means() -> None:
    assert all(meaning.endswith(".") for _, _, meaning in cells(config_table()))


def test_a_plan_shows_its_rungs_and_what_they_take(tmp_path: Path) -> None:
    config = PoolConfig.model_validate(toy_args(tmp_path, ladder={"min": 1, "max": 4, "eager_max": 7}))
    lines = rendered(plan_table("toys", plan_pool(config)))
    rows = cells(plan_table("toys", plan_pool(config)))
    text = " ".join("\n".join(lines).split())
    assert "toys: toy" in text
    assert "budget (items)" in text
    assert rows == [
        ["1", "3", "1", "1", "0", "0", "?"],
        ["2", "6", "2", "2", "0", "0", "?"],
        ["4", "12", "4", "4", "0", "0", "?"],
    ]
    assert "times assumed" in text
    assert "largest item 21 tokens" in text
    assert "in 2 slots" in text
    assert "1 replica(s) of 1 worker(s), 0.8 CPUs" in text
    assert "weights known once loaded" in text
    assert "GPU" not in text


def test_a_plan_for_a_gpu_says_what_is_known_of_its_memory_and_what_is_not(tmp_path: Path) -> None:
    model = {"adapter": "grid", "checkpoint": "config:qwen2.5-vl-tiny", "load_format": "dummy"}
    arguments = toy_args(tmp_path, model={**model, "device": "cuda"}, shard={"gpus": 0.5})
    plan = plan_pool(PoolConfig.model_validate(arguments))
    text = " ".join("\n".join(rendered(plan_table("tiny", plan))).split())
    assert f"on its GPU (0.5): weights 5.1 MiB, staging {plan.sizing.ring_bytes / MIB:.1f} MiB" in text
    assert f"inputs and rows of the rungs {plan.static_bytes / MIB:.1f} MiB" in text
    assert "known after capture" in text


def test_a_plan_shows_the_times_that_an_earlier_start_measured_and_what_it_did_not_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCODER_POOL_MEASURED", str(tmp_path / "measured"))
    config = PoolConfig.model_validate(toy_args(tmp_path))
    keep(config, captured=2)
    rows = cells(plan_table("toys", plan_pool(config)))
    text = " ".join("\n".join(rendered(plan_table("toys", plan_pool(config)))).split())
    assert [row[-1] for row in rows] == ["1.00", "2.00", "not captured"]
    assert "times measured on a card, 2026-12-01 12:00 UTC" in text
    assert "drawn evenly from 1 to 2 items" in text
    assert "assumed" not in text


def test_a_plan_of_a_ladder_without_numbers_says_what_will_be_left_of_it(tmp_path: Path) -> None:
    model = {"adapter": "grid", "checkpoint": "config:qwen2.5-vl-tiny", "load_format": "dummy"}
    config = PoolConfig.model_validate(toy_args(tmp_path, model=model, ladder={}))
    text = " ".join("\n".join(rendered(plan_table("tiny", plan_pool(config)))).split())
    assert "of these rungs it captures those within ladder.reserve_bytes and ladder.max_pack_ms" in text
