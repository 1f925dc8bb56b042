"""A simulation held against a measured service: the loads that `encoder-pool bench service` carried out.

Every set of photos has loads of one kind or another; those whose arrivals can be drawn again (one client,
several, Poisson) are simulated on one GPU with the cores that the service had to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from encoder_pool.simulate.costs import Hardware
from encoder_pool.simulate.results import Result
from encoder_pool.simulate.traffic import MIX_SIDES, Traffic

ITEMS_OFF, P50_OFF = 0.10, 0.20
"""How far throughput and median latency may be from what was measured."""

_CLOSED, _POISSON = ("lone", "closed", "grouped"), "poisson"


class MeasuredCores(BaseModel):
    """Of a load, in cores: what others than the pool used."""

    haproxy: float
    clients: float
    others: float


class MeasuredLoad(BaseModel):
    """What is read of one load."""

    kind: str
    images: int
    in_flight: int | None
    offered: float | None
    items_s: float
    p50_ms: float
    cores: MeasuredCores


class MeasuredSet(BaseModel):
    """What is read of a set; its name ends with a side in pixels, or `mix`."""

    photo_bytes: float
    loads: tuple[MeasuredLoad, ...]


class MeasuredMachine(BaseModel):
    """What is read of the machine."""

    cores: int


class MeasuredService(BaseModel):
    """What is read of a run of `encoder-pool bench service`."""

    machine: MeasuredMachine
    sets: Mapping[str, MeasuredSet]


class Comparison(NamedTuple):
    """One load, simulated and measured."""

    load: str
    simulated_items_s: float
    measured_items_s: float
    simulated_p50_ms: float
    measured_p50_ms: float

    @property
    def items_off(self) -> float:
        """Relative difference of the rates."""
        return self.simulated_items_s / self.measured_items_s - 1

    @property
    def p50_off(self) -> float:
        """Relative difference of the medians."""
        return self.simulated_p50_ms / self.measured_p50_ms - 1

    @property
    def holds(self) -> bool:
        """Whether both are near enough."""
        return abs(self.items_off) <= ITEMS_OFF and abs(self.p50_off) <= P50_OFF


def read_measured(path: Path) -> MeasuredService:
    """A measured run. Raises ValueError if the file holds none, OSError if it cannot be read."""
    try:
        return MeasuredService.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path} holds no results of encoder-pool bench service") from error


Attempt = Callable[[Hardware, Traffic], Result]


def compare(
    measured: MeasuredService, seconds: float, hardware: Hardware, attempt: Attempt
) -> Iterator[Comparison]:
    """Every load that can be drawn again. Raises ValueError for a set of photos whose sizes are not known."""
    for name, of_set in measured.sets.items():
        for load in of_set.loads:
            if load.kind not in (*_CLOSED, _POISSON):
                continue
            traffic = _traffic(load, _sizes(name), of_set.photo_bytes, seconds)
            result = attempt(_hosts(load, measured.machine, hardware), traffic)
            arrivals = f"{load.in_flight} in flight" if load.kind in _CLOSED else f"{load.offered:.0f}/s"
            yield Comparison(
                f"{name}, {load.kind}, {load.images} x {arrivals}",
                result.images_per_s,
                load.items_s,
                result.p50_ms,
                load.p50_ms,
            )


def _sizes(name: str) -> str:
    size = name.rpartition("-")[2]
    if size == "mix":
        return size
    if not size.isdecimal():
        raise ValueError(f"the set '{name}' has photos of sizes that are not known")
    return f"{size}x{size}"


def _traffic(load: MeasuredLoad, sizes: str, photo_bytes: float, seconds: float) -> Traffic:
    side = sum(MIX_SIDES) / 2 if sizes == "mix" else float(sizes.partition("x")[0])
    common = {"sizes": sizes, "images_per_request": load.images, "seconds": seconds}
    common["bytes_per_pixel"] = photo_bytes / side**2
    if load.kind in _CLOSED:
        return Traffic.model_validate({**common, "arrivals": "closed", "in_flight": load.in_flight})
    assert load.offered is not None
    return Traffic.model_validate({**common, "requests_per_s": load.offered / load.images})


def _hosts(load: MeasuredLoad, machine: MeasuredMachine, hardware: Hardware) -> Hardware:
    """One GPU, and the cores that clients and proxy left. Clients were on the host: no network in between."""
    cores = max(1, round(machine.cores - load.cores.clients - load.cores.haproxy - load.cores.others))
    return hardware.model_copy(update={"gpus_per_host": 1, "cores_per_host": cores, "nic_gbit_s": 1e6})
