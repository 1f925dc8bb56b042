"""What simulations found, as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from encoder_pool.simulate.check import Comparison
from encoder_pool.simulate.results import Result, Study

SHOWN_USES = ("gpu", "cores", "prepare threads", "interpreter", "network out", "network in", "proxy")


def results_table(study: Study) -> Table:
    """One column a number of GPUs; resources by the busiest of their kind."""
    table = Table("GPUs", title=study.model, title_justify="left")
    for result in study.results:
        table.add_column(_gpus(result), justify="right")
    for name, cells in _rows(study.results):
        table.add_row(name, *cells)
    return table


class _Row(NamedTuple):
    name: str
    cells: list[str]


def _rows(results: Sequence[Result]) -> Iterator[_Row]:
    for name, cell in _CELLS.items():
        yield _Row(name, [cell(result) for result in results])
    for name in SHOWN_USES:
        yield _Row(f"use of {name}", [f"{result.uses[name].busiest:.0%}" for result in results])
    yield _Row("breaks first", [result.first_to_break for result in results])
    yield _Row("at requests/s", [f"{result.breaks_at_per_s:.0f}" for result in results])


_CELLS: dict[str, Callable[[Result], str]] = {
    "requests/s": lambda result: f"{result.offered_per_s:.1f}",
    "answered/s": lambda result: f"{result.answered_per_s:.1f}",
    "tokens/s": lambda result: f"{result.tokens_per_s:.0f}",
    "p50 ms": lambda result: f"{result.p50_ms:.0f}",
    "p90 ms": lambda result: f"{result.p90_ms:.0f}",
    "p99 ms": lambda result: f"{result.p99_ms:.0f}",
    "refused, 429": lambda result: f"{result.shed}",
    "late, 504": lambda result: f"{result.expired}",
    "failed": lambda result: f"{result.failed}",
    "images a pack": lambda result: f"{result.mean_batch:.2f}",
    "padding": lambda result: f"{result.padding:.1%}",
}


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
