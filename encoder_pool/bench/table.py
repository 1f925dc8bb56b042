"""Results for the terminal: the machine, a table a tower, mixed traffic and the ladder."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from encoder_pool.bench.results import CaseResult, Results

_MIB = 1 << 20


def report(results: Results) -> Iterator[RenderableType]:
    """What to print, in order."""
    machine, rates = results.machine, results.rates
    where = machine.card or machine.cpu
    yield f"{where}, {machine.cores} cores; torch {results.versions.get('torch')}, {results.date}"
    yield (
        f"floor at {rates.floor_tflops:.4g} TFLOP/s ({rates.floor_source}); in this run a product of "
        f"{rates.product_side} reached {rates.product_tflops:.4g} TFLOP/s, a copy {rates.copy_gb_s:.4g} GB/s"
    )
    for tower in results.towers:
        yield _cases(tower, results)


def _cases(tower: str, results: Results) -> Table:
    table = Table(title=tower, title_justify="left", caption=_caption(tower, results), caption_justify="left")
    table.add_column("case")
    for heading in ("floor", "stock", "seed", "ours", "run", "kernels", "share", "error"):
        table.add_column(heading, justify="right")
    for case in results.cases:
        if case.tower == tower:
            table.add_row(case.case, *_numbers(case))
    return table


def _numbers(case: CaseResult) -> Iterator[str]:
    for ms in (
        case.floor_ms,
        case.stock_ms,
        case.seed_ms,
        case.ours_ms,
        case.ours_run_ms,
        case.kernel_sum_ms,
    ):
        yield "" if ms is None else f"{ms:.3g}" if ms < 100 else f"{ms:.0f}"
    yield f"{case.share:.1%}"
    yield f"{case.error:.1e}"


def _caption(tower: str, results: Results) -> str:
    lines = ["milliseconds; run: with metadata and copies; share: floor over ours; error: against stock"]
    if tower in results.mixed:
        mixed = results.mixed[tower]
        lines.append(
            f"mixed images, {mixed.waiting} waiting: {mixed.ours_tokens_s:,.0f} tokens/s, "
            f"{mixed.padding:.1%} padding"
        )
        lines.append(
            f"the same in calls of {mixed.images_a_call}: {mixed.ours_calls_tokens_s:,.0f} tokens/s, "
            f"{mixed.calls_padding:.1%} padding; seed {mixed.seed_tokens_s:,.0f}, {mixed.seed_padding:.1%}"
        )
    if tower in results.ladder:
        ladder = results.ladder[tower]
        lines.append(
            f"{ladder.rungs} rungs captured in {ladder.capture_s:.2f} s, "
            f"after {ladder.warm_up_s:.1f} s of warm-up"
        )
        lines.append(
            f"their pool: {ladder.pool_bytes / _MIB:.0f} MiB, for the largest alone "
            f"{ladder.largest_rung_bytes / _MIB:.0f} MiB"
        )
    return "\n".join(lines)
