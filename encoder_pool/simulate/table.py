"""What simulations found, as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from encoder_pool.simulate.check import Comparison
from encoder_pool.simulate.results import Result, Study

SHOWN_USES = ("gpu", "cores", "prepare threads", "interpreter", "network out", "network in", "proxy")


def results_table(study: Study) -> Table:
    """One row a number of GPUs; resources by the busiest of their kind."""
    table = Table(title=study.model, title_justify="left", caption_justify="left")
    headings = ("GPUs", "offered/s", "answered/s", "p50 ms", "p90", "p99", "429", "other", "batch", "padding")
    for heading in (*headings, *SHOWN_USES):
        table.add_column(heading, justify="right")
    table.add_column("breaks first")
    for result in study.results:
        table.add_row(*_row(result))
    table.caption = f"times: {study.times}; per second are requests, resources the busiest of their kind"
    return table


def _row(result: Result) -> list[str]:
    return [
        _gpus(result),
        f"{result.offered_per_s:.1f}",
        f"{result.answered_per_s:.1f}",
        *(f"{ms:.0f}" for ms in (result.p50_ms, result.p90_ms, result.p99_ms)),
        f"{result.shed}",
        f"{result.expired + result.failed}",
        f"{result.mean_batch:.2f}",
        f"{result.padding:.1%}",
        *(f"{result.uses[name].busiest:.0%}" for name in SHOWN_USES),
        f"{result.first_to_break}, at {result.breaks_at_per_s:.0f}/s",
    ]


def _gpus(result: Result) -> str:
    """The number, and before it the mean of those that served, where that was another."""
    served = f"{result.replicas:.1f}"
    return f"{result.gpus}" if served == f"{result.gpus:.1f}" else f"{served} of {result.gpus}"


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Simulated beside measured."""
    table = Table(title="simulated / measured", title_justify="left")
    for heading in ("load", "items/s", "", "off", "p50 ms", "", "off", ""):
        table.add_column(heading, justify="right")
    for each in comparisons:
        table.add_row(
            each.load,
            *_pair(each.simulated_items_s, each.measured_items_s, each.items_off),
            *_pair(each.simulated_p50_ms, each.measured_p50_ms, each.p50_off),
            "ok" if each.holds else "OFF",
        )
    return table


def _pair(simulated: float, measured: float, off: float) -> tuple[Any, ...]:
    return f"{simulated:.1f}", f"{measured:.1f}", f"{off:+.0%}"
