"""What a start measured, on disk: found again, or left aside."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from encoder_pool.config import PoolConfig
from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.ladder import NotCaptured
from encoder_pool.graphs.plan import CostTable
from encoder_pool.pool import measured
from encoder_pool.pool.measured import Card, Measured, Subject, in_turn, latest, load, save
from encoder_pool.towers.adapter import KernelChoice

LADDER = tuple(Rung(budget, Cost(budget, 3 * budget, budget)) for budget in (1, 2, 4))
CARD = Card(name="a card", driver="1.0")
AT = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ENCODER_POOL_MEASURED", str(tmp_path / "measured"))
    return tmp_path / "measured"


def config(**sections: Any) -> PoolConfig:
    model = {"name": "toy", "adapter": "tests.toy:ToyAdapter", "checkpoint": "unused"}
    document = {"model": {**model, **sections.pop("model", {})}, "ladder": {"min": 1, "max": 4}}
    return PoolConfig.model_validate({**document, **sections})


def subject(checkpoint: Path = Path(), rungs: tuple[Rung, ...] = LADDER, **sections: Any) -> Subject:
    return Subject.of(config(**sections), checkpoint, rungs)


def found(of: Subject | None = None, card: Card = CARD, at: datetime = AT, ms: float = 1.0) -> Measured:
    return Measured(
        subject=of or subject(),
        card=card,
        at=at,
        ladder=LADDER,
        table=CostTable((ms, 2 * ms, 4 * ms), 3.0, 0.5, 0.25),
        choices=(KernelChoice(64, 16, "flash2", 80, 12.5),),
        not_captured=(NotCaptured(Rung(8, Cost(8, 24, 8)), "out of memory"),),
        memory_bound_at=1 << 30,
    )


def test_what_was_kept_is_found_as_it_was_and_it_alone() -> None:
    assert load(subject(), CARD) is None
    save(found())
    assert load(subject(), CARD) == found()
    save(found(ms=2.0))
    assert load(subject(), CARD) == found(ms=2.0)


def test_on_another_card_or_driver_nothing_is_known() -> None:
    save(found())
    for other in (Card(name="another card", driver="1.0"), Card(name="a card", driver="1.1")):
        assert load(subject(), other) is None


DIFFERENT: list[dict[str, Any]] = [
    {"model": {"dtype": "bfloat16"}},
    {"model": {"device": "cuda"}},
    {"model": {"device": "cuda", "dtype": "bfloat16", "quantization": "fp8"}},
    {"model": {"attention": "masked"}},
    {"model": {"adapter": "tests.toy:BulkyAdapter"}},
    {"shard": {"threads": 2}},
    {"ladder": {"min": 1, "max": 4, "rungs_per_octave": 2}},
    {"ladder": {"max_pack_ms": 30.0}},
    {"ladder": {"reserve_bytes": 0}},
]


@pytest.mark.parametrize("sections", DIFFERENT)
def test_with_another_configuration_nothing_is_known(sections: dict[str, Any]) -> None:
    save(found())
    assert load(subject(**sections), CARD) is None


def test_what_changes_no_time_changes_nothing() -> None:
    save(found())
    other = subject(model={"name": "other", "aliases": ["more"]}, queue={"max_tokens": 100}, cache={})
    assert load(other, CARD) == found()


def test_with_other_rungs_another_tower_other_versions_or_other_code_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(found())
    assert load(subject(rungs=LADDER[:2]), CARD) is None
    (tmp_path / "config.json").write_text('{"hidden_size": 1}')
    assert load(subject(tmp_path), CARD) is None
    with monkeypatch.context() as patch:
        patch.setattr(measured, "version", lambda package: "0.0")
        assert load(subject(), CARD) is None
    with monkeypatch.context() as patch:
        patch.setattr(measured, "SOURCES", ("graphs/*.py",))
        measured._code.cache_clear()
        assert load(subject(), CARD) is None
    measured._code.cache_clear()
    assert load(subject(), CARD) == found()


def _truncated(text: str) -> str:
    return text[: len(text) // 2]


def _without_a_time(text: str) -> str:
    document = json.loads(text)
    document["table"]["rung_ms"].pop()
    return json.dumps(document)


def _with_no_time(text: str) -> str:
    document = json.loads(text)
    document["table"]["rung_ms"][0] = 0.0
    return json.dumps(document)


def _of_a_later_version(text: str) -> str:
    return json.dumps({**json.loads(text), "version": 2})


def _with_more(text: str) -> str:
    return json.dumps({**json.loads(text), "more": 1})


@pytest.mark.parametrize(
    "damage",
    [
        _truncated,
        _without_a_time,
        _with_no_time,
        _of_a_later_version,
        _with_more,
        lambda text: "",
        lambda text: "\x00",
    ],
)
def test_a_damaged_file_is_left_aside_with_a_warning_and_written_anew(
    damage: Callable[[str], str], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(found())
    (file,) = folder.iterdir()
    file.write_text(damage(file.read_text()))
    assert load(subject(), CARD) is None
    assert latest(subject()) is None
    assert all(f"measured times in {file} are left aside" in record.message for record in caplog.records)
    assert len(caplog.records) == 2
    save(found())
    assert load(subject(), CARD) == found()


def test_a_file_of_something_else_is_left_aside_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(found(subject(shard={"threads": 2})))
    (file,) = folder.iterdir()
    save(found())
    (own,) = (each for each in folder.iterdir() if each != file)
    own.write_bytes(file.read_bytes())
    assert load(subject(), CARD) is None
    assert "of something else" in caplog.text


def test_the_last_start_on_any_card_is_found_without_one() -> None:
    assert latest(subject()) is None
    others = found(card=Card(name="another card", driver=""), at=AT + timedelta(days=1))
    save(found())
    save(others)
    save(found(subject(shard={"threads": 2}), at=AT + timedelta(days=2)))
    assert latest(subject()) == others


def test_starts_at_the_same_time_do_not_tear_the_file(folder: Path) -> None:
    save(found())

    def save_and_load(number: int) -> Measured | None:
        save(found(ms=float(number)))
        return load(subject(), CARD)

    with ThreadPoolExecutor(4) as threads:
        seen = list(threads.map(save_and_load, range(1, 41)))
    assert None not in seen
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_warned_of_and_no_more(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        save(found())
    assert "measured times are not kept" in caplog.text
    assert "ENCODER_POOL_MEASURED" in caplog.text


TURN = """
import sys
from encoder_pool.pool.measured import Card, in_turn
with in_turn(Card(name=sys.argv[1], driver="1.0")):
    print("in", flush=True)
    sys.stdin.read()
"""


def taking_a_turn(card: str) -> subprocess.Popen[str]:
    """A process that is in its turn once it has said so, until it is killed or its input ends."""
    command = [sys.executable, "-c", TURN, card]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_whoever_measures_on_a_card_keeps_others_waiting_until_it_ends_even_if_it_is_killed() -> None:
    with taking_a_turn(CARD.name) as first, ThreadPoolExecutor(1) as thread:
        assert first.stdout is not None
        assert first.stdout.readline() == "in\n"
        with in_turn(Card(name="another card", driver="1.0")):
            pass

        def take() -> bool:
            with in_turn(CARD):
                return True

        waiting = thread.submit(take)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        first.kill()
        assert waiting.result(timeout=30)


def test_where_no_turn_can_be_taken_the_start_goes_on_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("no folder")
    with in_turn(CARD):
        pass
    assert "is not measured in turn" in caplog.text


def test_without_a_folder_of_their_own_they_are_beside_the_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ENCODER_POOL_MEASURED")
    monkeypatch.setenv("ENCODER_POOL_CACHE", str(tmp_path / "cache"))
    save(found())
    assert len(list((tmp_path / "cache" / "measured").iterdir())) == 1
    assert load(subject(), CARD) == found()


def test_times_of_some_rungs_are_those_that_they_were_measured_with() -> None:
    kept = found()
    assert kept.table_of(LADDER) == kept.table
    assert kept.table_of(LADDER[1:]) == replace(kept.table, rung_ms=(2.0, 4.0))
    assert kept.table_of([*LADDER, Rung(8, Cost(8, 24, 8))]) is None


def test_this_hosts_cpu_has_a_name() -> None:
    assert Card.cpu().name
    assert Card.cpu() == Card.cpu()
    assert Card.gpu("a card").name == "a card"


def test_what_is_kept_is_read_without_torch() -> None:
    save(found())
    code = (
        "import sys; from tests.pool.test_measured import latest, subject; "
        "print(latest(subject()) is not None, 'torch' in sys.modules)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout.split() == ["True", "False"]
