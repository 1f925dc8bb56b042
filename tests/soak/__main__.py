"""`python -m tests.soak FILE --seconds 600`: serve a configuration, soak the service, report."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
from rich.console import Console

from encoder_pool.bench.device import open_device
from encoder_pool.bench.machine import this_machine, versions
from encoder_pool.client import AsyncEncoderClient
from encoder_pool.core import Modality
from encoder_pool.launch.file import Application, read_service_file
from encoder_pool.launch.show import progress_bar
from encoder_pool.weights import Progress
from tests.service.running import Service, serving
from tests.soak import report
from tests.soak.kills import Kill, kill_until
from tests.soak.media import Rows, samples
from tests.soak.report import Soak
from tests.soak.traffic import Ledger, Target, call_until
from tests.soak.watch import Moment, watch

QUIET_END_S = 20.0
"""Before the end nobody is killed, so that what is left can be seen."""


@dataclass(slots=True)
class _Run:
    """What is noted while it runs."""

    ledger: Ledger = field(default_factory=Ledger)
    kills: list[Kill] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)


def main() -> int:
    """Exit status 0 if every request ended as it may, and everything that was killed came back."""
    options = _options()
    run, complaints = _Run(), []
    try:
        with serving(options.file) as service, progress_bar() as tell:
            asyncio.run(_soak(service, options, run, tell))
    except AssertionError as error:  # of `serving`: what the service left behind, or printed at its end
        complaints.append(str(error))
    soak = _summary(options, run, complaints)
    out = Console()
    for table in (report.endings_table(soak), report.kills_table(soak), report.holdings_table(soak)):
        out.print(table)
    for complaint in soak.complaints:
        out.print(complaint, style="red", markup=False, highlight=False)
    if options.out is not None:
        report.write(soak, options.out)
    if options.plot is not None:
        report.draw(soak, options.plot)
    return 0 if soak.is_good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("file", type=Path, help="a service's configuration")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long there is traffic")
    parser.add_argument("--callers", type=int, default=12, help="requests at once")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic and the kills")
    parser.add_argument("--out", type=Path, help="write the report to this JSON file")
    parser.add_argument("--plot", type=Path, help="draw it to this file")
    return parser.parse_args()


async def _soak(service: Service, options: argparse.Namespace, run: _Run, tell: Progress) -> None:
    applications = read_service_file(options.file).applications
    targets = [await _target(service, application) for application in applications]
    began = time.monotonic()
    end = began + options.seconds

    def told() -> None:
        passed = time.monotonic() - began
        tell(f"{run.ledger.total} requests, {len(run.kills)} faults", min(passed / options.seconds, 1.0))

    watching = asyncio.create_task(watch(service.process, began, run.ledger, run.moments.append))
    killing = asyncio.create_task(
        kill_until(end - QUIET_END_S, service, targets, options.seed, began, run.kills.append)
    )
    await call_until(end, targets, options.callers, options.seed, run.ledger, told)
    await killing
    watching.cancel()


async def _target(service: Service, application: Application) -> Target:
    """The application, asked for every sample once."""
    url = f"{service.root}{application.route_prefix.rstrip('/')}"
    async with AsyncEncoderClient(url, timeout_s=120) as client:
        info = await client.info()
        modalities = tuple(map(Modality, info["model"]["modalities"]))
        rows: dict[bytes, Rows] = {}
        for modality in modalities:
            for sample in samples(modality):
                (item,) = await client.encode(sample.data)
                rows[sample.data] = np.array(item.embedding)
    return Target(application.name, url, application.config.model.name, modalities, rows)


def _summary(options: argparse.Namespace, run: _Run, complaints: Sequence[str]) -> Soak:
    ledger, good_s = run.ledger, sorted(run.ledger.good_s)
    lost = ledger.begun.total() - ledger.ended.total()
    away = [kill for kill in run.kills if kill.recovered_s is None]
    unrecovered = [f"{kill.application}: {kill.fault.value}, not back" for kill in away]
    uncounted = [f"{lost} requests began and did not end"] if lost else []
    return Soak(
        machine=this_machine(open_device(None)),
        versions=dict(versions()),
        command=f"python -m tests.soak {' '.join(sys.argv[1:])}",
        date=f"{datetime.now():%Y-%m-%d}",
        seconds=options.seconds,
        begun=dict(ledger.begun),
        endings=report.endings_of(ledger.ended),
        complaints=(*complaints, *ledger.complaints, *unrecovered, *uncounted),
        p50_s=float(np.quantile(good_s, 0.5)),
        p99_s=float(np.quantile(good_s, 0.99)),
        kills=tuple(run.kills),
        moments=tuple(run.moments),
    )


if __name__ == "__main__":
    sys.exit(main())
