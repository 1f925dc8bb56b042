"""Which rungs a tower is captured for: budgets from the configuration, capacities from the adapter.

A ladder ascends by budget, and within a budget by the longest segment. The last rung of a budget holds all
that any rung below it holds, and more patch rows than a lower budget. Everything that would break this is
refused here, with the budget, the reason and the key. Knows nothing of towers, torch or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise, takewhile
from typing import NamedTuple

from encoder_pool.config import LadderConfig
from encoder_pool.core import Cost, Rung

OCTAVES = 8
"""Of a ladder without numbers: its lowest budget is a 256th of the highest."""
RUNGS_PER_OCTAVE = 4
"""Of a ladder without numbers: of a lone item's rung 8 % is unused on average."""
LONGEST_TIERS = (1024, 4096)
"""Of a ladder without numbers, where kernels care: images up to 448 and 896 pixels a side, which are most."""


class NotCaptured(NamedTuple):
    """A rung that was asked for, or might have been, and is not there."""

    rung: Rung
    why: str


def with_numbers(config: LadderConfig, largest: int, capacity: Cost, device: str) -> LadderConfig:
    """A ladder without numbers, up to its largest budget, which holds so much."""
    cares = device == "cuda" and capacity.longest > 0
    return config.model_copy(
        update={
            "min": min(config.min or max(1, largest >> OCTAVES), largest),
            "max": largest,
            "rungs_per_octave": config.rungs_per_octave or RUNGS_PER_OCTAVE,
            "longest_tiers": config.longest_tiers or (LONGEST_TIERS if cares else None),
        }
    )


def budgets(minimum: int, maximum: int, rungs_per_octave: int | None = None) -> tuple[int, ...]:
    """Budgets from minimum to maximum, ascending, both included.

    Without `rungs_per_octave` each budget doubles the one before: powers of two if minimum is one.
    With n of them budget k is minimum * 2 ** (k / n), rounded; equal ones are kept once.
    Raises ValueError for an empty range and for values below one.
    """
    _check_range(minimum, maximum, rungs_per_octave)
    steps = rungs_per_octave or 1
    grown = (round(minimum * 2 ** (step / steps)) for step in count())
    below = takewhile(lambda budget: budget < maximum, grown)
    return (*dict.fromkeys(below), maximum)


def build_ladder(config: LadderConfig, capacity: Callable[[int], Cost]) -> tuple[Rung, ...]:
    """The rungs of a configuration, ascending: one a budget, or one for each tier of segment length.

    capacity  what a rung of a budget holds; raises ValueError(reason) if the tower has no such shape

    Raises ValueError for budgets that are not ascending, that cannot be represented, or whose capacity
    does not grow, and for tiers of a tower that has no segment lengths.
    """
    full = [Rung(budget, _capacity(config, budget, capacity)) for budget in _listed(config)]
    _check_growth(config, full)
    return tuple(rung for widest in full for rung in _tiers(widest, config.longest_tiers or ()))


def _tiers(widest: Rung, tiers: Sequence[int]) -> list[Rung]:
    """The rung and those of its budget for shorter segments only, which kernels run faster."""
    longest = widest.capacity.longest
    if tiers and not longest:
        raise ValueError("ladder.longest_tiers is set, and this tower's kernels do not care about lengths")
    unit = widest.capacity.patch_rows // widest.capacity.out_rows
    if tiers and min(tiers) < unit:
        raise ValueError(
            f"ladder.longest_tiers holds {min(tiers)}; no segment has fewer patch rows than the {unit} of "
            "one output row"
        )
    shorter = sorted({tier for tier in tiers if tier < longest})
    return [Rung(widest.budget, replace(widest.capacity, longest=tier)) for tier in (*shorter, longest)]


def _check_growth(config: LadderConfig, ladder: Sequence[Rung]) -> None:
    for lower, upper in pairwise(ladder):
        if not _grows(lower.capacity, upper.capacity):
            raise ValueError(
                f"a rung of budget {upper.budget} holds {upper.capacity}, which does not grow from "
                f"{lower.capacity} at budget {lower.budget} ({_key(config, upper.budget)})"
            )


def _listed(config: LadderConfig) -> tuple[int, ...]:
    if config.budgets is not None:
        _check_list(config.budgets)
        return config.budgets
    if config.min is None or config.max is None:
        raise ValueError("ladder needs 'min' and 'max', or 'budgets'")
    return budgets(config.min, config.max, config.rungs_per_octave)


def _check_range(minimum: int, maximum: int, rungs_per_octave: int | None) -> None:
    for key, value in (("min", minimum), ("max", maximum), ("rungs_per_octave", rungs_per_octave)):
        if value is not None and value < 1:
            raise ValueError(f"ladder.{key} is {value}; it must be at least 1")
    if minimum > maximum:
        raise ValueError(f"ladder.min ({minimum}) is above ladder.max ({maximum})")


def _check_list(listed: Sequence[int]) -> None:
    if not listed:
        raise ValueError("ladder.budgets is empty")
    if listed[0] < 1:
        raise ValueError(f"ladder.budgets holds {listed[0]}; a budget must be at least 1")
    for lower, upper in pairwise(listed):
        if upper == lower:
            raise ValueError(f"ladder.budgets holds {upper} twice")
        if upper < lower:
            raise ValueError(f"ladder.budgets must be ascending; {upper} follows {lower}")


def _capacity(config: LadderConfig, budget: int, capacity: Callable[[int], Cost]) -> Cost:
    try:
        held = capacity(budget)
    except ValueError as error:
        raise ValueError(
            f"a rung of budget {budget} cannot be represented: {error} ({_key(config, budget)})"
        ) from error
    if min(held.patch_rows, held.out_rows, held.sequences) < 1:
        raise ValueError(f"a rung of budget {budget} holds {held}: nothing ({_key(config, budget)})")
    return held


def _grows(lower: Cost, upper: Cost) -> bool:
    return lower.fits(upper) and lower.patch_rows < upper.patch_rows


def _key(config: LadderConfig, budget: int) -> str:
    """The setting that asked for a budget."""
    if config.budgets is not None:
        return "ladder.budgets"
    if budget in (config.min, config.max):
        return "ladder.min" if budget == config.min else "ladder.max"
    return "between ladder.min and ladder.max"
