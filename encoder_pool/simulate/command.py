"""`encoder-pool simulate`: what its options ask for, and what it says at the end.

matplotlib is imported only to draw.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version

from pydantic import ValidationError
from rich.console import Console

from encoder_pool.bench.command import require_matplotlib
from encoder_pool.simulate.check import Comparison, compare, read_measured
from encoder_pool.simulate.costs import Hardware
from encoder_pool.simulate.find import LOST, Goal, fewest
from encoder_pool.simulate.options import arrivals_of
from encoder_pool.simulate.prepare import Prepared, prepare, read_machines
from encoder_pool.simulate.results import Result, Study, write
from encoder_pool.simulate.simulation import Scenario, simulate
from encoder_pool.simulate.table import comparison_table, results_table
from encoder_pool.simulate.traffic import Traffic


def run_command(arguments: argparse.Namespace) -> int:
    """The command. Status 1 where a goal or a check is missed, 2 for what cannot be simulated."""
    try:
        require_matplotlib(arguments.plot)
        return _Command(arguments).run()
    except (ValueError, OSError) as error:
        message = f"encoder-pool: {_explained(error)}"
        Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
        return 2


class _Command:
    """One run: what was asked, and the pool that it is asked of."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._asked = arguments
        self._machines = read_machines(arguments.machines)
        self._pool: Prepared = prepare(
            arguments.file, arguments.application, arguments.times, self._machines.costs
        )
        self._out = Console()

    def run(self) -> int:
        if self._asked.check is not None:
            return self._check()
        return self._find() if self._asked.find else self._try()

    def _try(self) -> int:
        self._show([self._attempt(gpus) for gpus in self._asked.gpus])
        return 0

    def _find(self) -> int:
        if self._asked.p99_ms is None or self._asked.rate_per_gpu is not None:
            raise ValueError("--find needs --p99-ms, and a rate for all GPUs together (--rate or --trace)")
        goal = Goal(self._asked.p99_ms)
        results = fewest(goal, self._asked.most_gpus, self._attempt)
        self._show(results)
        enough = next((result.gpus for result in results if goal.is_met(result)), None)
        promise = f"p99 within {goal.p99_ms:g} ms and at most {LOST:.1%} lost"
        few = f"not even {self._asked.most_gpus} GPUs"
        self._say(f"{few if enough is None else f'{enough} GPU(s)'}: {promise}")
        return 1 if enough is None else 0

    def _check(self) -> int:
        measured = read_measured(self._asked.check)
        found: list[Comparison] = list(
            compare(measured, self._asked.seconds, self._machines.hardware, self._simulate_one)
        )
        self._out.print(comparison_table(found))
        return 0 if found and all(each.holds for each in found) else 1

    def _attempt(self, gpus: int) -> Result:
        return self._simulate(gpus, self._machines.hardware, self._traffic(gpus))

    def _simulate_one(self, hardware: Hardware, traffic: Traffic) -> Result:
        return self._simulate(1, hardware, traffic)

    def _simulate(self, gpus: int, hardware: Hardware, traffic: Traffic) -> Result:
        pool = self._pool
        scenario = Scenario(pool.blueprint, pool.adapter, hardware, traffic, gpus, self._asked.autoscale)
        result = simulate(scenario)
        told = f"{gpus} GPU(s): {result.requests} requests in {traffic.seconds:g} virtual seconds"
        Console(stderr=True).print(f"{told}, {result.took_s:.1f} real ones", highlight=False, soft_wrap=True)
        return result

    def _traffic(self, gpus: int) -> Traffic:
        """What comes for so many GPUs."""
        asked = self._asked
        return Traffic(
            arrivals=arrivals_of(asked),
            requests_per_s=asked.rate_per_gpu * gpus if asked.rate_per_gpu else asked.rate,
            in_flight=asked.in_flight,
            trace=asked.trace,
            images_per_request=asked.images,
            sizes=asked.sizes,
            bytes_per_pixel=asked.bytes_per_pixel,
            seconds=asked.seconds,
            seed=asked.seed,
        )

    def _show(self, results: Sequence[Result]) -> None:
        study = Study(
            command=shlex.join(["encoder-pool", *sys.argv[1:]]),
            version=version("encoder-pool"),
            model=self._pool.model,
            times=self._pool.times,
            traffic=self._traffic(results[-1].gpus),
            machines=self._machines,
            results=tuple(results),
        )
        self._out.print(results_table(study))
        self._say(f"times: {study.times}; use is that of the busiest of its kind")
        if self._asked.out is not None:
            write(study, self._asked.out)
        if self._asked.plot is not None:
            from encoder_pool.simulate.plot import draw

            draw(study, self._asked.plot)

    def _say(self, message: str) -> None:
        self._out.print(message, markup=False, highlight=False, soft_wrap=True)


def _explained(error: Exception) -> str:
    """What is wrong, without the values."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(detail["msg"].removeprefix("Value error, ") for detail in error.errors())
