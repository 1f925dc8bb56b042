"""The load of `encoder-pool bench scaling`, its stand-in for a device, and what is made of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_pool.bench.load import Phase, Second, arrivals, drive, quantile
from encoder_pool.bench.paced import MS_A_TOKEN, paced_item
from encoder_pool.bench.results import Machine
from encoder_pool.bench.scaling import FULL, ScalingResults, read_scaling, summary, write_scaling
from encoder_pool.bench.scaling_plot import draw_scaling
from encoder_pool.errors import UndecodableMedia
from encoder_pool.http.routes import build_app
from tests.http.fake_pool import FakePool
from tests.http.live import served
from tests.pool.local_pool import attempt, config, encode, running

ROOT = Path(__file__).parents[2]


def test_arrivals_have_the_rates_of_their_phases_and_are_the_same_every_time() -> None:
    phases = (Phase(300, 4000), Phase(2500, 1000), Phase(300, 5000))
    load = list(arrivals(phases))
    assert load == list(arrivals(phases))
    assert [arrival.at for arrival in load] == sorted(arrival.at for arrival in load)
    for begin, end, rate in ((0, 4000, 300), (4000, 5000, 2500), (5000, 10_000, 300)):
        offered = sum(arrival.tokens for arrival in load if begin <= arrival.at < end)
        assert offered / (end - begin) == pytest.approx(rate, rel=0.1)


def test_a_quantile_is_a_value_that_was_there() -> None:
    assert quantile([], 0.5) is None
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.01, 0.5, 0.99)] == [1.0, 2.0, 3.0]


class PoolOfTwo(FakePool):
    """Shows two live replicas and one that is stale."""

    def info(self) -> Mapping[str, Any]:
        rows = [{"is_stale": False}, {"is_stale": True}, {"is_stale": False}]
        return {"pool": {"replicas": rows, "held": {"tokens": 12}}}


async def test_a_run_sees_what_was_offered_answered_and_lost_each_second() -> None:
    pool = PoolOfTwo()
    phases = (Phase(2000, 1.0), Phase(300, 1.0))
    with served(build_app(pool)) as url:
        seconds = await drive(url, phases, lambda: 3, lambda what, share: None)
    sent = list(arrivals(phases))
    assert len(pool.calls) == len(sent)
    assert [each.second for each in seconds] == list(range(len(seconds)))
    assert {(each.started, each.replicas, each.held_tokens, each.lost) for each in seconds} == {(3, 2, 12, 0)}
    tokens = sum(arrival.tokens for arrival in sent)
    assert sum(each.offered for each in seconds) == sum(each.answered for each in seconds) == tokens
    assert all((each.p50_ms is None) == (each.offered == 0) for each in seconds)


async def test_a_request_that_is_refused_for_good_is_lost() -> None:
    pool = PoolOfTwo()
    pool.failure = UndecodableMedia("never")
    phases = (Phase(300, 1.0),)
    with served(build_app(pool)) as url:
        seconds = await drive(url, phases, lambda: 1, lambda what, share: None)
    assert sum(each.lost for each in seconds) == len(list(arrivals(phases))) > 0
    assert all((each.answered, each.p50_ms) == (0, None) for each in seconds)


async def test_the_paced_tower_takes_a_time_for_every_token_of_a_rung() -> None:
    model = {"name": "paced", "adapter": "encoder_pool.bench.paced:PacedAdapter", "checkpoint": "unused"}
    async with running(config(model=model, ladder={"min": 16, "max": 64})) as (pool, _):
        encoded = await encode(pool, paced_item(1, 20))
        assert np.array_equal(encoded.embeddings[0].rows, np.zeros((20, 4), np.float32))
        assert encoded.timings.encode_s >= 32 * MS_A_TOKEN / 1e3
        assert pool.counters.padding_tokens == 32 - 20
        assert isinstance(await attempt(pool, b"\x89PNG\r\n\x1a\n" + b"a real one"), UndecodableMedia)


def made(second: int, started: int, replicas: int, lost: int = 0) -> Second:
    return Second(second, 100, 90, started, replicas, 5, 10.0 + second, 20.0 + second, lost)


def results(lost: int = 0) -> ScalingResults:
    counts = [(1, 1), (1, 1), (1, 1), (3, 1), (3, 2), (3, 3), (2, 2), (1, 1)]
    return ScalingResults(
        machine=Machine(None, None, "a processor", 2),
        versions={"python": "3"},
        command="encoder-pool bench scaling",
        date="2026-01-01",
        scaling={"max_replicas": 3},
        phases=(Phase(100, 2), Phase(900, 4), Phase(100, 2)),
        seconds=tuple(made(n, *count, lost=lost) for n, count in enumerate(counts)),
    )


def test_a_summary_tells_how_soon_replicas_came_and_went_and_what_was_lost() -> None:
    assert list(summary(results())) == [
        "800 tokens offered, 0 requests lost",
        "another replica was started 2 s after the burst began, and served after 3 s",
        "at most 3 served; 2 s after the burst had ended 1 of them were left",
        "calm: median of the seconds' p50 10.0 ms, the worst second's p99 21.0 ms",
        "burst: median of the seconds' p50 13.0 ms, the worst second's p99 25.0 ms",
        "calm again: median of the seconds' p50 16.0 ms, the worst second's p99 27.0 ms",
    ]
    assert results(lost=2).lost == 16


def test_a_run_is_written_read_and_drawn(tmp_path: Path) -> None:
    file, picture = tmp_path / "scaling.json", tmp_path / "scaling.png"
    write_scaling(results(), file)
    assert read_scaling(file) == results()
    draw_scaling(read_scaling(file), picture)
    assert picture.stat().st_size > 10_000
    file.write_text("{}")
    with pytest.raises(ValueError, match="bench scaling"):
        read_scaling(file)


def test_the_committed_run_lost_nothing_and_the_page_has_its_numbers() -> None:
    committed = read_scaling(ROOT / "docs" / "benchmarks" / "cpu-scaling.json")
    assert committed.phases == FULL
    assert committed.lost == 0
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "scaling.md").read_text())
    for line in summary(committed):
        assert line in page
