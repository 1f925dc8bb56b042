"""What a soak found: as JSON, as a table and as a picture, and whether that is good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import TypeAdapter
from rich.table import Table

from encoder_pool.bench.results import Machine
from tests.soak.kills import Fault, Kill
from tests.soak.watch import Moment

MIB = 1 << 20
_SETTLED = 0.25
"""Share of the run after which processes are taken to have their working size."""


@dataclass(frozen=True, slots=True)
class Ending:
    """So many requests of a kind ended like this."""

    kind: str
    ending: str
    requests: int


@dataclass(frozen=True, slots=True)
class Soak:
    """A run.

    begun, endings  requests by kind, and by kind and ending; each that began is in one ending
    complaints      endings that should not be, recoveries that did not come, processes left behind
    p50_s, p99_s    of good requests, with all repetitions of the client
    """

    machine: Machine
    versions: dict[str, str]
    command: str
    date: str
    seconds: float
    begun: dict[str, int]
    endings: tuple[Ending, ...]
    complaints: tuple[str, ...]
    p50_s: float
    p99_s: float
    kills: tuple[Kill, ...]
    moments: tuple[Moment, ...]

    @property
    def is_good(self) -> bool:
        """Whether all that began ended as it may, and all that was killed came back."""
        return not self.complaints


def endings_of(ended: Counter[tuple[str, str]]) -> tuple[Ending, ...]:
    """By kind, the most frequent first."""
    return tuple(
        Ending(kind, ending, requests)
        for (kind, ending), requests in sorted(ended.items(), key=lambda pair: (pair[0][0], -pair[1]))
    )


def write(soak: Soak, path: Path) -> None:
    """As JSON."""
    path.write_bytes(TypeAdapter(Soak).dump_json(soak, indent=1) + b"\n")


def endings_table(soak: Soak) -> Table:
    """Requests by kind and ending."""
    table = Table(title="Requests", title_justify="left")
    table.add_column("kind")
    table.add_column("ended as")
    table.add_column("requests", justify="right")
    for each in soak.endings:
        table.add_row(each.kind, each.ending, f"{each.requests}")
    began = sum(soak.begun.values())
    table.caption = f"{began} began; good ones took {soak.p50_s:.2f} s, p99 {soak.p99_s:.1f} s"
    return table


def kills_table(soak: Soak) -> Table:
    """Recoveries by fault."""
    table = Table(title="Faults", title_justify="left")
    table.add_column("fault")
    for heading in ("times", "recovered in s, median", "at most"):
        table.add_column(heading, justify="right")
    for fault in Fault:
        times = [kill.recovered_s for kill in soak.kills if kill.fault is fault]
        came_back = [seconds for seconds in times if seconds is not None]
        shown = (f"{median(came_back):.1f}", f"{max(came_back):.1f}") if came_back else ("-", "-")
        table.add_row(fault.value, f"{len(times)}", *shown)
    return table


def holdings_table(soak: Soak) -> Table:
    """Memory and descriptors once all had settled, and at the end."""
    table = Table(title="Held, median of a quarter of the run", title_justify="left")
    table.add_column("processes")
    for heading in ("MiB in the second quarter", "in the last", "descriptors", "in the last"):
        table.add_column(heading, justify="right")
    second, last = _quarter(soak.moments, 1), _quarter(soak.moments, 3)
    for kind in sorted(last[-1].holdings):
        table.add_row(
            kind,
            *(f"{_rss_mib(part, kind):.0f}" for part in (second, last)),
            *(f"{_descriptors(part, kind):.0f}" for part in (second, last)),
        )
    return table


def _quarter(moments: Sequence[Moment], number: int) -> Sequence[Moment]:
    size = len(moments)
    return moments[size * number // 4 : size * (number + 1) // 4] or moments[-1:]


def _rss_mib(moments: Sequence[Moment], kind: str) -> float:
    return median(moment.holdings[kind].rss_bytes for moment in moments if kind in moment.holdings) / MIB


def _descriptors(moments: Sequence[Moment], kind: str) -> float:
    return median(moment.holdings[kind].descriptors for moment in moments if kind in moment.holdings)


def draw(soak: Soak, path: Path) -> None:
    """Requests a second, memory and descriptors over time, with the faults as lines."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    rates, memory, handles = figure.subplots(3, sharex=True)
    pairs = list(zip(soak.moments, soak.moments[1:], strict=False))
    rates.plot(
        [now.at_s for _, now in pairs],
        [(now.ended - before.ended) / (now.at_s - before.at_s) for before, now in pairs],
        color="#2f6fb0",
    )
    rates.set_ylabel("requests ended a second")
    for kind in sorted({kind for moment in soak.moments for kind in moment.holdings}):
        with_kind = [moment for moment in soak.moments if kind in moment.holdings]
        at_s = [moment.at_s for moment in with_kind]
        memory.plot(at_s, [moment.holdings[kind].rss_bytes / MIB for moment in with_kind], label=kind)
        handles.plot(at_s, [moment.holdings[kind].descriptors for moment in with_kind], label=kind)
    memory.set_ylabel("resident MiB")
    handles.set_ylabel("descriptors")
    handles.set_xlabel("seconds")
    for axes in (rates, memory, handles):
        _mark(axes, soak.kills)
    memory.legend(frameon=False, fontsize=8, ncols=3)
    rates.legend(frameon=False, fontsize=8, ncols=3)
    figure.savefig(path, dpi=120)


def _mark(axes: Axes, kills: Sequence[Kill]) -> None:
    colours = {Fault.SHARD_KILLED: "#c0504d", Fault.REPLICA_KILLED: "#7030a0", Fault.SHARD_HELD: "#a0a0a0"}
    for fault, colour in colours.items():
        for number, kill in enumerate(kill for kill in kills if kill.fault is fault):
            axes.axvline(kill.at_s, color=colour, lw=0.8, label=fault.value if number == 0 else None)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
