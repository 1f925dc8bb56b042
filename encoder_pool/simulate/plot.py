"""A picture of a study: how long requests take, and what every resource has to do, by number of GPUs."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from encoder_pool.simulate.results import Result, Study
from encoder_pool.simulate.table import SHOWN_USES

_QUANTILES = (("p50_ms", "p50", "#a9c8a4"), ("p90_ms", "p90", "#e2a45c"), ("p99_ms", "p99", "#2f6fb0"))


def draw(study: Study, path: Path) -> None:
    """Write the picture, in the format that the name ends with. Raises ValueError if nothing was found."""
    if not study.results:
        raise ValueError("there is nothing to draw: the study has no result")
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    latency, uses = figure.subplots(1, 2)
    _draw_latency(study.results, latency)
    _draw_uses(study.results, uses)
    for axes in (latency, uses):
        places = range(len(study.results))
        axes.set_xticks(places, [f"{result.gpus}" for result in study.results])
        axes.set_xlabel("GPUs", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7)
    figure.suptitle(f"{study.model}, simulated", fontsize=11)
    figure.savefig(path, dpi=150)


def _draw_latency(results: tuple[Result, ...], axes: Axes) -> None:
    for name, label, colour in _QUANTILES:
        values = [getattr(result, name) for result in results]
        axes.plot(range(len(results)), values, "o-", label=label, color=colour)
    axes.set_ylim(0)
    axes.set_title("milliseconds of a request", loc="left", fontsize=9)


def _draw_uses(results: tuple[Result, ...], axes: Axes) -> None:
    for name in SHOWN_USES:
        axes.plot(
            range(len(results)), [result.uses[name].busiest * 100 for result in results], "o-", label=name
        )
    axes.axhline(100, color="#c9c9c9", linewidth=1)
    axes.set_ylim(0)
    axes.set_title("% of what the busiest of its kind can do", loc="left", fontsize=9)
