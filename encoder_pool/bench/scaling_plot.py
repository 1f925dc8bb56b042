"""A picture of a load and of the replicas that followed it: offered tokens, replicas, latency."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from encoder_pool.bench.scaling import ScalingResults

_BLUE, _ORANGE, _GREY = "#2f6fb0", "#e2a45c", "#c9c9c9"


def draw_scaling(results: ScalingResults, path: Path) -> None:
    """Write the picture, in the format that the name ends with."""
    at = [second.second for second in results.seconds]
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    load, replicas, latency = figure.subplots(3, sharex=True)

    load.step(at, [second.offered for second in results.seconds], color=_GREY, where="post", label="offered")
    load.step(
        at, [second.answered for second in results.seconds], color=_BLUE, where="post", label="answered"
    )
    load.set_ylabel("tokens a second", fontsize=8)

    for name, colour, label in (("started", _GREY, "started"), ("replicas", _BLUE, "serving")):
        values = [getattr(second, name) for second in results.seconds]
        replicas.step(at, values, color=colour, where="post", label=label)
    replicas.set_ylabel("replicas", fontsize=8)
    replicas.set_ylim(0, max(second.started for second in results.seconds) + 0.5)

    for name, colour in (("p99_ms", _ORANGE), ("p50_ms", _BLUE)):
        milliseconds = [getattr(second, name) or float("nan") for second in results.seconds]
        latency.plot(at, milliseconds, color=colour, linewidth=1.2, label=name.removesuffix("_ms"))
    latency.set_yscale("log")
    latency.set_ylabel("ms, by when it was sent", fontsize=8)
    latency.set_xlabel("seconds", fontsize=8)

    for axes in (load, replicas, latency):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    for axes in (load, replicas, latency):
        axes.legend(frameon=False, fontsize=8, loc="upper right")
    figure.suptitle(f"Replicas follow the work; {results.lost} requests lost", fontsize=11)
    figure.savefig(path, dpi=150)
