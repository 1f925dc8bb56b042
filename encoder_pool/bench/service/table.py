"""Results for the terminal: the machine, all sets at a glance, every load of each, soaks and overloads."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from encoder_pool.bench.service.results import (
    LoadResult,
    OverloadResult,
    ServiceResults,
    SetResult,
    SoakResult,
)

_MIB = 1 << 20
WIDTH = 120
"""Columns that the tables need; a narrower terminal folds their lines."""


def report(results: ServiceResults) -> Iterator[RenderableType]:
    """What to print, in order."""
    machine = results.machine
    yield f"{machine.card or machine.cpu}, {machine.cores} cores; torch {results.versions.get('torch')}"
    if results.sets:
        yield _glance(results)
    for name, found in results.sets.items():
        yield _loads(name, found)
    for name, soaked in results.soaks.items():
        yield _soak(name, soaked)
    for name, flooded in results.overloads.items():
        yield _overload(name, flooded)


def _glance(results: ServiceResults) -> Table:
    table = _table(
        "images a second",
        (
            "set",
            "tower",
            "service",
            "share",
            "8 a request",
            "shared",
            "p50",
            "70 %: p50",
            "p99",
            "lone",
            "replay",
            "limit",
        ),
        "p50, lone, replay: milliseconds; replay: what the tower computes for a lone image",
    )
    for name, found in results.sets.items():
        table.add_row(
            name,
            *map(number, (found.tower_items_s, found.service_items_s)),
            f"{found.ratio:.0%}",
            number(found.grouped_items_s),
            number(found.shared_items_s),
            *map(number, (found.p50_ms, found.p50_at_70_ms, found.p99_at_70_ms)),
            *map(number, (found.lone_ms, found.replay_ms)),
            found.limit,
        )
    return table


def _loads(name: str, found: SetResult) -> Table:
    headings = (
        "load",
        "images/s",
        "tokens/s",
        "p50",
        "p90",
        "p99",
        "batch",
        "padding",
        "429",
        "errors",
        "limit",
    )
    table = _table(name, headings, _caption(found))
    for load in found.loads:
        table.add_row(
            described(load),
            *map(number, (load.items_s, load.tokens_s, load.p50_ms, load.p90_ms, load.p99_ms)),
            f"{load.mean_batch:.1f}",
            f"{load.padding:.1%}",
            f"{load.refused}",
            f"{load.errors}",
            load.limit,
        )
    return table


def _caption(found: SetResult) -> str:
    peak = next(
        load for load in found.loads if (load.kind, load.in_flight) == ("closed", found.peak_in_flight)
    )
    cores = ", ".join(f"{name.replace('_', ' ')} {used:.2f}" for name, used in peak.cores)
    return (
        f"{found.file}, {found.photos} photos of {found.photo_bytes / 1000:.0f} kB; the tower by itself: "
        f"{found.tower_mean_batch:.1f} a batch, {found.tower_padding:.1%} padding\n"
        f"a lone request, ms: {_stages(found.lone_stages_ms)}\n"
        f"at the peak, ms: {_stages(peak.stages_ms)}\n"
        f"at the peak, cores: {cores}"
    )


def _stages(stages_ms: object) -> str:
    assert isinstance(stages_ms, dict)
    return ", ".join(f"{name} {number(ms)}" for name, ms in stages_ms.items())


def _soak(name: str, found: SoakResult) -> Table:
    table = _table(
        f"{name}: {found.requests} requests in {found.seconds:.0f} s, {found.errors} failed",
        ("process", "MiB before", "after a quarter", "after", "descriptors before", "after"),
        "",
    )
    for role, seen in found.sightings.items():
        held = [seen[0], seen[len(seen) // 4], seen[-1]]
        table.add_row(
            role,
            *(f"{each.resident_bytes / _MIB:.0f}" for each in held),
            *(f"{each.descriptors}" for each in (seen[0], seen[-1])),
        )
    return table


def _overload(name: str, found: OverloadResult) -> Table:
    load = found.load
    table = _table(
        f"{name}: {number(load.offered or 0)} images a second for {load.seconds:.0f} s, "
        f"{number(load.items_s)} answered, {found.goodput:.0%} of the peak",
        ("process", "MiB at the start", "at the end", "descriptors at the start", "at the end"),
        f"{load.requests} answered, {load.refused} refused, {load.errors} failed; "
        f"p50 {number(load.p50_ms)} ms, p99 {number(load.p99_ms)} ms",
    )
    for role, resident in found.resident_bytes.items():
        table.add_row(
            role,
            *(f"{resident[at] / _MIB:.0f}" for at in (0, -1)),
            *(f"{found.descriptors[role][at]}" for at in (0, -1)),
        )
    return table


def described(load: LoadResult) -> str:
    """A load in a few words."""
    if load.offered is not None:
        return f"{load.kind} at {number(load.offered)}/s"
    if load.kind == "lone":
        return "one at a time"
    many = " shared" if load.kind == "shared" else f" of {load.images}" if load.images > 1 else ""
    return f"{load.in_flight} in flight{many}"


def number(value: float) -> str:
    """With three digits, or whole."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _table(title: str, headings: tuple[str, ...], caption: str) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    first, *others = headings
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table
