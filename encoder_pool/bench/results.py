"""What a run found, as it is written to JSON and read again. Times are milliseconds unless named otherwise.

A file is whole at any time: each write replaces it. Numbers are written with five digits. Imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Annotated

from pydantic import PlainSerializer, TypeAdapter, ValidationError


def _short(number: float) -> float | str:
    """JSON has no NaN, which an error may be."""
    return float(f"{number:.5g}") if isfinite(number) else f"{number}"


Number = Annotated[float, PlainSerializer(_short, when_used="json")]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it ran. `card` and `driver` are None without a GPU; `cores` are those the process may use."""

    card: str | None
    driver: str | None
    cpu: str
    cores: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What the device reached in this run, and what the floor counts with.

    product_tflops  a square product in the tower's type, `product_side` each way
    floor_tflops    the rate of the floor, and where it is from
    copy_gb_s       bytes read plus bytes written by a copy on the device
    """

    product_tflops: Number
    product_side: int
    floor_tflops: Number
    floor_source: str
    copy_gb_s: Number


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """The best standalone kernel of each kind for all that a case needs of it.

    products     all matrix products
    attention    all layers that attend to whole frames, with the kernel of this name
    windows      all layers that have windows, with the kernel of this name; 0 and None without such layers
    elementwise  what norms, rotation, residuals and gates move, at the rate of a copy
    launches     starting every kernel
    """

    products_ms: Number
    attention_ms: Number
    attention_kernel: str
    windows_ms: Number
    windows_kernel: str | None
    elementwise_ms: Number
    launches_ms: Number

    @property
    def total_ms(self) -> float:
        """The sum."""
        return self.products_ms + self.attention_ms + self.windows_ms + self.elementwise_ms + self.launches_ms


@dataclass(frozen=True, slots=True)
class TokenErrors:
    """How far rows are from those of the stock tower in float32, each relative to its own norm."""

    median: Number
    p99: Number


@dataclass(frozen=True, slots=True)
class Fp8Result:
    """Our tower with products in 8 bits. `error_fp32` as in the case; None where that was not computed."""

    ms: Number
    error_fp32: Number | None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case on one tower.

    floor_ms        counted FLOPs at the rate of the floor
    stock_ms        stock transformers, eager
    seed_ms         replays of the seed's policy
    ours_ms         replays of our runner, without copies and metadata
    ours_run_ms     `Runner.run` as its caller waits for it, with metadata and all copies
    kernel_sum_ms   the best standalone kernels together; None where it was not measured
    share           floor_ms / ours_ms
    error           of ours against stock, relative, over all values; seed_error likewise
    error_fp32      of ours against stock in float32; None where it was not computed
    stock_error     of stock against stock in float32; likewise
    fp8             the same tower with products in 8 bits; None where the device has none, or in a quick run
    tokens_off      per token, of "ours", "stock" and "fp8"; empty where float32 was not computed
    ours_packs      the rungs, as budget/longest segment; seed_packs the seed's budgets
    *_repeats       runs of which the median was taken
    """

    tower: str
    case: str
    tokens: int
    floor_ms: Number
    stock_ms: Number
    seed_ms: Number
    ours_ms: Number
    ours_run_ms: Number
    kernel_sum_ms: Number | None
    share: Number
    error: Number
    seed_error: Number
    error_fp32: Number | None
    stock_error: Number | None
    ours_packs: str
    seed_packs: str
    stock_repeats: int
    seed_repeats: int
    ours_repeats: int
    kernels: KernelTimes | None
    fp8: Fp8Result | None = None
    tokens_off: Mapping[str, TokenErrors] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MixedResult:
    """Mixed traffic on one tower; tokens a second as the wall has it, from items on the device to their rows.

    ours_tokens_s        packs formed from a full queue
    ours_calls_tokens_s  the calls that the seed's policy gets, each planned by itself
    padding              share of our patch rows that belonged to no item, from a full queue
    """

    ours_tokens_s: Number
    ours_calls_tokens_s: Number
    seed_tokens_s: Number
    padding: Number
    calls_padding: Number
    seed_padding: Number
    images_a_call: int
    calls: int
    waiting: int


@dataclass(frozen=True, slots=True)
class LadderResult:
    """One tower's ladder.

    warm_up_s  the first capture, in which kernels are compiled and chosen; capture_s is a second one
    measure_s  timing the rungs for the planner
    """

    rungs: int
    budgets: tuple[int, ...]
    load_s: Number
    warm_up_s: Number
    capture_s: Number
    measure_s: Number
    pool_bytes: int
    largest_rung_bytes: int


@dataclass(frozen=True, slots=True)
class Results:
    """A run; `mixed` and `ladder` by tower. Of a run that was cut short, what it had got to."""

    machine: Machine
    versions: Mapping[str, str]
    command: str
    date: str
    rates: Rates
    cases: tuple[CaseResult, ...] = ()
    mixed: Mapping[str, MixedResult] = field(default_factory=dict)
    ladder: Mapping[str, LadderResult] = field(default_factory=dict)

    def with_case(self, case: CaseResult) -> Results:
        """One more case."""
        return replace(self, cases=(*self.cases, case))

    def with_mixed(self, tower: str, mixed: MixedResult) -> Results:
        """The mixed traffic of one more tower."""
        return replace(self, mixed={**self.mixed, tower: mixed})

    def with_ladder(self, tower: str, ladder: LadderResult) -> Results:
        """The ladder of one more tower."""
        return replace(self, ladder={**self.ladder, tower: ladder})

    @property
    def towers(self) -> tuple[str, ...]:
        """Those with a case, in the order in which they were measured."""
        return tuple(dict.fromkeys(case.tower for case in self.cases))


def runs(names: Iterable[str]) -> str:
    """Packs by name, in order: "2 x 4096 + 64"."""
    counted = [(name, len(list(same))) for name, same in groupby(names)]
    return " + ".join(name if count == 1 else f"{count} x {name}" for name, count in counted)


_RESULTS = TypeAdapter(Results)


def write(results: Results, path: Path) -> None:
    """Put the results in the place of the file, in one step."""
    put(_RESULTS.dump_json(results, indent=2) + b"\n", path)


def put(document: bytes, path: Path) -> None:
    """The document in the place of the file, which is whole at any time."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(document)
    temporary.replace(path)


def read(path: Path) -> Results:
    """The results in a file. Raises ValueError if it holds none, OSError if it cannot be read."""
    try:
        return _RESULTS.validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path} holds no results of encoder-pool bench tower") from error
