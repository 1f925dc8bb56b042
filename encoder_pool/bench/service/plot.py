"""A picture of the results: a row a set, latency against rate, and where a lone request's time goes."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from encoder_pool.bench.service.results import LoadResult, ServiceResults, SetResult

_CLOSED, _OPEN, _TOWER = "#2f6fb0", "#e2a45c", "#c9c9c9"
_STAGES = ("#a9c8a4", "#e2a45c", "#2f6fb0", "#c9c9c9")
_LABELLED = 0.06
"""Of a bar: narrower stages have no room for their name."""


def draw(results: ServiceResults, path: Path) -> None:
    """Write the picture, in the format that the name ends with. Raises ValueError if there is no set."""
    if not results.sets:
        raise ValueError("there is nothing to draw: the run measured no set of photos")
    figure = Figure(figsize=(11, 0.7 + 2.6 * len(results.sets)), layout="constrained")
    rows = figure.subplots(len(results.sets), 2, squeeze=False)
    for (name, found), (left, right) in zip(results.sets.items(), rows, strict=True):
        _draw_rates(name, found, left)
        _draw_lone(found, right)
    rows[0, 0].legend(frameon=False, fontsize=7, loc="upper left")
    figure.suptitle(f"HTTP to HTTP on {results.machine.card or results.machine.cpu}", fontsize=11)
    figure.savefig(path, dpi=150)


def _draw_rates(name: str, found: SetResult, axes: Axes) -> None:
    closed = sorted((load for load in found.loads if load.kind == "closed"), key=lambda load: load.items_s)
    opened = [load for load in found.loads if load.offered is not None]
    axes.axvline(found.tower_items_s, color=_TOWER, linewidth=4, label="the tower by itself")
    for loads, colour, label in ((closed, _CLOSED, "closed loops"), (opened, _OPEN, "open loops")):
        rates = [load.items_s for load in loads]
        axes.vlines(rates, *_p50_to_p99(loads), color=colour, linewidth=1)
        axes.plot(rates, [load.p50_ms for load in loads], "o", color=colour, markersize=4, label=label)
    for load in opened:
        axes.annotate(
            load.kind, (load.items_s, load.p50_ms), fontsize=6, xytext=(4, 0), textcoords="offset points"
        )
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("images a second", fontsize=8)
    axes.set_ylabel("ms, p50 to p99", fontsize=8)
    axes.set_title(f"{name}: {found.ratio:.0%} of the tower", loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _p50_to_p99(loads: list[LoadResult]) -> tuple[list[float], list[float]]:
    return [load.p50_ms for load in loads], [load.p99_ms for load in loads]


def _draw_lone(found: SetResult, axes: Axes) -> None:
    whole = sum(found.lone_stages_ms.values())
    at = 0.0
    for position, (stage, ms) in enumerate(found.lone_stages_ms.items()):
        axes.barh(0.0, ms, left=at, height=0.4, color=_STAGES[position % len(_STAGES)])
        if ms > _LABELLED * whole:
            axes.text(at + ms / 2, 0.0, f"{stage}\n{ms:.1f}", ha="center", va="center", fontsize=6)
        at += ms
    axes.barh(-0.5, found.replay_ms, height=0.3, color=_TOWER)
    axes.text(found.replay_ms, -0.5, f" replay {found.replay_ms:.1f}", va="center", fontsize=6)
    axes.set_ylim(-0.8, 0.4)
    axes.set_yticks([])
    axes.set_xlabel("ms of a lone request", fontsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
