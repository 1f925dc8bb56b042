"""A run of the benchmark: the tower apart, then the service with its clients, set after set.

What was found is written after each set, so that a run that is cut short leaves what it has.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from encoder_pool.bench.service.counted import Counted
from encoder_pool.bench.service.crew import Crew
from encoder_pool.bench.service.loads import Bench
from encoder_pool.bench.service.measure import Subject, complaints, measure_set
from encoder_pool.bench.service.overload import failings, overload
from encoder_pool.bench.service.photos import PhotoSet
from encoder_pool.bench.service.processes import ServiceProcesses
from encoder_pool.bench.service.results import ServiceResults, read, write
from encoder_pool.bench.service.served import as_measured, info, only, target_of
from encoder_pool.bench.service.soak import leaks, soak
from encoder_pool.bench.service.tower import OwnRates, apart, own_rates, towers
from encoder_pool.launch.file import ServiceFile, read_service_file
from encoder_pool.launch.host import free_port
from encoder_pool.launch.show import progress_bar
from encoder_pool.launch.start import StartOptions, check_early, started

PHOTOS = 64
"""Different ones of each set; they are sent round and round."""
START_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line.

    application  None for the first of the file
    name         what the sets' names begin with; None for the application's
    soak         requests of a soak, overload seconds of one; None to measure
    """

    file: Path
    name: str | None
    sets: tuple[PhotoSet, ...]
    seconds: float
    clients: int
    application: str | None = None
    soak: int | None = None
    overload: float | None = None
    appends: bool = False
    out: Path | None = None

    @property
    def command(self) -> str:
        """As one would type it."""
        given = {
            "--name": self.name,
            "--application": self.application,
            "--soak": self.soak,
            "--overload": None if self.overload is None else f"{self.overload:g}",
            "--out": self.out,
        }
        words = ["encoder-pool", "bench", "service", "--file", f"{self.file}"]
        words += ["--sets", *(each.name for each in self.sets)]
        words += ["--seconds", f"{self.seconds:g}", "--clients", f"{self.clients}"]
        for option, value in given.items():
            words += [option, f"{value}"] if value is not None else []
        return shlex.join(words + (["--append"] if self.appends else []))


class Ran(NamedTuple):
    """All results there are now, and what is wrong with the new ones."""

    results: ServiceResults
    wrong: tuple[str, ...]


def run(options: Options) -> Ran:
    """All that is asked for, beside what the file holds already if it is appended to.

    Raises ValueError for what does not fit together, and what starting a service raises.
    """
    before = read(options.out) if options.appends and options.out and options.out.exists() else None
    with TemporaryDirectory(prefix="encoder-pool-bench-") as made:
        folder = Path(made)
        given = read_service_file(options.file)
        service = as_measured(given, options.application, free_port(), folder)
        check_early(service)
        photos = _photos(options, folder)
        own = _own(service, {} if options.soak else photos, options.seconds)
        results = begun(own, before)
        with Crew(options.clients) as crew, started(service, StartOptions(start_timeout_s=START_TIMEOUT_S)):
            return _under_load(options, service, photos, own, results, crew)


def _photos(options: Options, folder: Path) -> dict[str, tuple[Path, ...]]:
    """Those of each set, drawn into the folder."""
    with progress_bar() as say:
        drawn = {}
        for done, each in enumerate(options.sets):
            say(f"drawing photos: {each.name}", done / len(options.sets))
            drawn[each.name] = each.write(PHOTOS, folder)
        return drawn


def _own(service: ServiceFile, photos: Mapping[str, tuple[Path, ...]], seconds: float) -> OwnRates:
    with progress_bar() as say:
        say("the tower by itself", None)
        return apart(own_rates, only(service).config, photos, seconds)


def begun(own: OwnRates, before: ServiceResults | None) -> ServiceResults:
    """What a run adds to. Raises ValueError if that is of another machine, or of other versions."""
    here = ServiceResults(machine=own.machine, versions=own.versions)
    if before is None:
        return here
    if (before.machine, before.versions) != (here.machine, here.versions):
        raise ValueError(
            "--append: the file is of another machine, or of other versions: "
            f"{before.machine}, {dict(before.versions)}; here: {here.machine}, {dict(here.versions)}"
        )
    return before


def _under_load(
    options: Options,
    service: ServiceFile,
    photos: Mapping[str, tuple[Path, ...]],
    own: OwnRates,
    results: ServiceResults,
    crew: Crew,
) -> Ran:
    target, application, file = target_of(service), only(service), f"{options.file}"
    wrong: list[str] = []
    processes = ServiceProcesses(os.getpid())
    bench = Bench(target, crew, processes, lambda: Counted.of(info(target)), own.machine.cores)
    with progress_bar() as say:
        for name, paths in photos.items():
            key = f"{options.name or application.name}-{name}"
            if options.soak:
                found = soak(bench, processes, paths, options.soak, file, options.command, say)
                results = results.with_soak(key, found)
                wrong += leaks(key, found)
            else:
                rate = own.rates[name].times(towers(application.config))
                subject = Subject(key, paths, rate, application.config, options.seconds)
                if options.overload:
                    flood = overload(bench, processes, subject, options.overload, file, options.command, say)
                    results = results.with_overload(key, flood)
                    wrong += failings(key, flood)
                else:
                    results = results.with_set(key, measure_set(bench, subject, file, options.command, say))
                    wrong += complaints(key, results.sets[key])
            if options.out is not None:
                write(results, options.out)
    return Ran(results, tuple(wrong))
