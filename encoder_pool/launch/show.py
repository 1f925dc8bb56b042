"""What the command line shows people: a progress bar, the plan of a pool, the keys of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from encoder_pool.config import PoolConfig
from encoder_pool.core import Rung
from encoder_pool.launch.plan import PoolPlan
from encoder_pool.weights import Progress as Report

MIB = 1 << 20


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A bar on standard error for the length of the block; nothing where that is no terminal."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)

        def report(message: str, fraction: float | None) -> None:
            total = None if fraction is None else 1.0
            bar.update(task, description=message, completed=fraction or 0.0, total=total)

        yield report


def plan_table(name: str, plan: PoolPlan) -> Table:
    """The ladder of one application, how long its rungs take if that is known, and what it needs."""
    sizing = plan.sizing
    times = _times(plan)
    table = Table(title=f"{name}: {plan.config.model.name}", title_justify="left", caption_justify="left")
    for heading in (f"budget ({plan.unit})", "tokens", "patch rows", "sequences", "windows", "longest", "ms"):
        table.add_column(heading, justify="right")
    for rung in sizing.ladder:
        held = rung.capacity
        numbers = (rung.budget, held.out_rows, held.patch_rows, held.sequences, held.windows, held.longest)
        table.add_row(*(f"{number}" for number in numbers), times.get(rung, "not captured"))
    padding = ", ".join(f"{depth}: {share:.0%}" for depth, share in plan.padding.items())
    table.caption = (
        f"{_times_line(plan)}\n"
        f"largest item {sizing.largest_item.out_rows} tokens in one piece; "
        f"per worker: ring {sizing.ring_bytes / MIB:.1f} MiB "
        f"in {sizing.slots} slots, weights {_mebibytes(plan.weight_bytes)}\n"
        f"{_gpu_line(plan)}"
        f"{plan.num_replicas} replica(s) of {plan.config.replica.workers} worker(s), {plan.cpus:g} CPUs\n"
        f"padding by number of waiting items, drawn evenly from 1 to "
        f"{(plan.measured or sizing).ladder[-1].budget} {plan.unit}: {padding}"
    )
    return table


def _times(plan: PoolPlan) -> dict[Rung, str]:
    """Milliseconds of every rung that is captured, as far as they are known."""
    if plan.measured is None:
        return dict.fromkeys(plan.sizing.ladder, "?")
    rung_ms = plan.measured.table.rung_ms
    return {rung: f"{ms:.2f}" for rung, ms in zip(plan.measured.ladder, rung_ms, strict=True)}


def _times_line(plan: PoolPlan) -> str:
    """Where the times come from."""
    if plan.measured is not None:
        return f"times measured on {plan.measured.card.name}, {plan.measured.at:%Y-%m-%d %H:%M} UTC"
    line = "times assumed, in proportion to patch rows: this configuration has not been started on this host"
    if plan.config.ladder.is_automatic:
        line += "\nof these rungs it captures those within ladder.reserve_bytes and ladder.max_pack_ms"
    return line


def _mebibytes(num_bytes: int | None) -> str:
    return "known once loaded" if num_bytes is None else f"{num_bytes / MIB:.1f} MiB"


def _gpu_line(plan: PoolPlan) -> str:
    """What a worker takes of its GPU, as far as that is known."""
    if plan.config.model.device == "cpu":
        return ""
    return (
        f"on its GPU ({plan.config.gpus:g}): weights {_mebibytes(plan.weight_bytes)}, "
        f"staging {_mebibytes(plan.sizing.ring_bytes)}, inputs and rows of the rungs "
        f"{_mebibytes(plan.static_bytes)}; what the graphs and kernels need beside them is known after "
        "capture (/info, workers)\n"
    )


@dataclass(frozen=True, slots=True)
class _Key:
    name: str
    default: str
    description: str


def config_table() -> Table:
    """Every key of a pool's configuration with its default and meaning."""
    table = Table(title="Keys of an application's args", title_justify="left")
    for heading in ("key", "default", "meaning"):
        table.add_column(heading)
    for key in _keys(PoolConfig, ""):
        table.add_row(key.name, key.default, key.description)
    return table


def _keys(section: type[BaseModel], prefix: str) -> Iterator[_Key]:
    for name, field in section.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind, f"{prefix}{name}.")
        else:
            yield _Key(f"{prefix}{name}", _default(field.default), field.description or "")


def _default(value: object) -> str:
    return "required" if value is PydanticUndefined else "unset" if value is None else str(value)
