"""A picture of the results: how much of the floor each way to run a tower reaches, case by case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from encoder_pool.bench.results import CaseResult, Results


class _Bars(NamedTuple):
    label: str
    colour: str
    ms: Callable[[CaseResult], float | None]


_BARS = (
    _Bars("stock transformers, eager", "#c9c9c9", lambda case: case.stock_ms),
    _Bars("power-of-two graphs", "#e2a45c", lambda case: case.seed_ms),
    _Bars("encoder pool", "#2f6fb0", lambda case: case.ours_ms),
    _Bars("best single kernels, summed", "#a9c8a4", lambda case: case.kernel_sum_ms),
)
_BAR_WIDTH = 0.8 / len(_BARS)


def draw(results: Results, path: Path) -> None:
    """Write the picture, in the format that the name ends with. Raises ValueError if no case was measured."""
    towers = results.towers
    if not towers:
        raise ValueError("there is nothing to draw: the run measured no case")
    figure = Figure(figsize=(9, 0.7 + 2.6 * len(towers)), layout="constrained")
    rows = figure.subplots(len(towers), squeeze=False)[:, 0]
    for tower, axes in zip(towers, rows, strict=True):
        _draw_tower([case for case in results.cases if case.tower == tower], tower, axes)
    rows[0].legend(ncols=2, frameon=False, fontsize=8, loc="upper left")
    figure.suptitle(f"Share of the floor on {results.machine.card or results.machine.cpu}", fontsize=11)
    figure.savefig(path, dpi=150)


def _draw_tower(cases: list[CaseResult], tower: str, axes: Axes) -> None:
    for position, bars in enumerate(_BARS):
        drawn = [(place, case.floor_ms / ms) for place, case in enumerate(cases) if (ms := bars.ms(case))]
        places = [place + (position - (len(_BARS) - 1) / 2) * _BAR_WIDTH for place, _ in drawn]
        axes.bar(places, [share * 100 for _, share in drawn], _BAR_WIDTH, label=bars.label, color=bars.colour)
    for place, case in enumerate(cases):
        top = case.share * 100
        axes.text(place + _BAR_WIDTH / 2, top, f"{top:.0f}", ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(cases)), [case.case for case in cases], fontsize=8)
    axes.set_ylabel("% of the floor", fontsize=8)
    axes.set_title(tower, loc="left", fontsize=9)
    # Room for the legend over the bars.
    axes.set_ylim(0, max(axes.get_ylim()[1] * 1.35, 1))
    axes.spines[["top", "right"]].set_visible(False)
