"""From the command line to a run that nothing stands in the way of: device, towers, cases, repeats.

Everything that can be refused is refused here, before anything is loaded or measured.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from encoder_pool.bench.cases import WORKLOADS, Case, Subject, Workload
from encoder_pool.bench.device import Device, DeviceName, Repeats, open_device
from encoder_pool.bench.floor import TowerShape, tower_shape
from encoder_pool.weights import ensure


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. None takes the workload's own; `device` None takes a GPU if there is one."""

    device: DeviceName | None = None
    subjects: tuple[Subject, ...] | None = None
    cases: tuple[Case, ...] | None = None
    is_quick: bool = False
    out: Path | None = None
    plot: Path | None = None

    @property
    def command(self) -> str:
        """As one would type it."""
        given = {
            "--device": self.device,
            "--towers": ",".join(subject.given for subject in self.subjects or ()),
            "--cases": ",".join(case.name for case in self.cases or ()),
            "--out": self.out,
            "--plot": self.plot,
        }
        words = ["encoder-pool", "bench", "tower", *(["--quick"] if self.is_quick else [])]
        for option, value in given.items():
            words += [option, f"{value}"] if value else []
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Effort:
    """How often things are timed. The baselines have run every case once before, and are slow."""

    ours: Repeats
    baseline: Repeats
    mixed: Repeats


_FULL = Effort(
    ours=Repeats(most=15, least=15, budget_s=0, warm_up=2),
    baseline=Repeats(most=15, least=5, budget_s=1.5, warm_up=0),
    mixed=Repeats(most=5, least=1, budget_s=2, warm_up=0),
)
_QUICK = Effort(
    ours=Repeats(most=5, least=5, budget_s=0, warm_up=1),
    baseline=Repeats(most=5, least=1, budget_s=0.3, warm_up=0),
    mixed=Repeats(most=3, least=1, budget_s=0.5, warm_up=0),
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A tower to be measured: where its configuration is, and the sizes in it."""

    subject: Subject
    folder: Path
    shape: TowerShape


@dataclass(frozen=True, slots=True)
class Run:
    """All that is to be measured, and on what."""

    device: Device
    contenders: tuple[Contender, ...]
    workload: Workload
    cases: tuple[Case, ...]
    effort: Effort
    is_quick: bool


def prepare(options: Options) -> Run:
    """Raises ValueError for a missing GPU, an unknown checkpoint, and a family that is not counted."""
    device = open_device(options.device)
    workload = WORKLOADS[device.name]
    return Run(
        device=device,
        contenders=tuple(_contender(subject) for subject in options.subjects or workload.subjects),
        workload=workload.quick() if options.is_quick else workload,
        cases=options.cases or workload.cases,
        effort=_QUICK if options.is_quick else _FULL,
        is_quick=options.is_quick,
    )


def _contender(subject: Subject) -> Contender:
    folder = ensure(subject.checkpoint)
    return Contender(subject, folder, tower_shape(folder))
