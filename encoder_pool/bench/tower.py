"""`encoder-pool bench tower`: one tower after the other, case by case.

What was found is written after each step, so that a run that is cut short leaves what it has.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from encoder_pool.bench.contest import ERROR_LIMIT, load
from encoder_pool.bench.machine import measure_rates, this_machine, versions
from encoder_pool.bench.prepare import Contender, Options, Run
from encoder_pool.bench.results import CaseResult, Results, write

Say = Callable[[str, float | None], None]
"""Called with what is begun or was found, and the done fraction."""


def bench(run: Run, options: Options, say: Say) -> Results:
    """Measure everything; written to `options.out` as it grows."""
    say("measuring the device", 0.0)
    machine = this_machine(run.device)
    rates = measure_rates(run.device, machine, run.effort.ours)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    steps = len(run.contenders) * (len(run.cases) + 2)
    book = _Book(Results(machine, versions(), options.command, date, rates), options.out, say, steps)
    for contender in run.contenders:
        _measure(run, contender, book)
        run.device.free()
    return book.results


def complaints(results: Results) -> list[str]:
    """What makes the times meaningless: rows that are not those of the stock tower."""
    found = []
    for case in results.cases:
        for who, error in (("our", case.error), ("the seed's", case.seed_error)):
            if not error <= ERROR_LIMIT:  # NaN is worse than any number
                where = f"{case.tower} {case.case}"
                found.append(f"{where}: {who} rows are {error:.2g} off stock; the limit is {ERROR_LIMIT}")
    return found


class _Book:
    """What has been found, on disk as well, and how far the run is."""

    def __init__(self, results: Results, path: Path | None, say: Say, steps: int) -> None:
        self.results = results
        self._path = path
        self._say = say
        self._steps = steps
        self._done = 0

    def say(self, message: str) -> None:
        """Something is begun."""
        self._say(message, self._done / self._steps)

    def enter(self, results: Results, found: str) -> None:
        """A step is done, and this is all that is known now."""
        self.results = results
        self._done += 1
        if self._path is not None:
            write(results, self._path)
        self.say(found)


def _measure(run: Run, contender: Contender, book: _Book) -> None:
    name = contender.subject.name
    contest = load(run, contender, book.results.rates, lambda begun: book.say(f"{name}: {begun}"))
    ladder = contest.ours.captured
    book.enter(
        book.results.with_ladder(name, ladder), f"{name}: {ladder.rungs} rungs in {ladder.capture_s:.2f} s"
    )
    for case in run.cases:
        result = contest.case(case)
        book.enter(book.results.with_case(result), _line(result))
    book.say(f"{name}: mixed traffic")
    mixed = contest.mixed()
    rates = f"ours {mixed.ours_tokens_s:.0f}, seed {mixed.seed_tokens_s:.0f} tokens/s"
    book.enter(book.results.with_mixed(name, mixed), f"{name}: mixed: {rates}, padding {mixed.padding:.1%}")


def _line(case: CaseResult) -> str:
    kernels = "" if case.kernel_sum_ms is None else f", kernel sum {case.kernel_sum_ms:.2f}"
    return (
        f"{case.tower} {case.case}: floor {case.floor_ms:.2f}, stock {case.stock_ms:.2f}, "
        f"seed {case.seed_ms:.2f}, ours {case.ours_ms:.2f} ({case.ours_run_ms:.2f}){kernels} ms, "
        f"share {case.share:.3f}, error {case.error:.1e}"
    )
