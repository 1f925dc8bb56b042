"""What a run found, as it is written to JSON and read again. Imports no torch.

Times are milliseconds and rates are items a second, unless named otherwise. A latency is from when a request
was due, or sent in a closed loop, until its answer was read to the last byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from encoder_pool.bench.results import Machine, Number, put

Kind = Literal["lone", "closed", "poisson", "bursts", "overload", "grouped", "shared"]


class _Found(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cores(_Found):
    """CPU that was used during a load, in cores.

    replica, shard, haproxy  of these processes; *_thread of the busiest thread of each
    preparers  the processes that decode and resize for the replica
    client     the busiest client process, which is nearly one thread; clients all of them
    others     what nobody of this run used, of the cores that it may use
    idle       what nobody used of these
    """

    replica: Number
    replica_thread: Number
    preparers: Number
    shard: Number
    shard_thread: Number
    haproxy: Number
    haproxy_thread: Number
    client: Number
    clients: Number
    others: Number
    idle: Number


class LoadResult(_Found):
    """One load on one set of photos, without its warm-up.

    images      in a request
    in_flight   requests of a closed loop
    offered     items a second that were due, of an open loop
    seconds     that were counted
    requests    that were answered well; refused with 429; errors are all others
    mean_batch  items of a pack; padding the share of computed rows that belonged to no item
    cached      items that the cache answered: none, it is off
    shared      requests whose rows came in shared memory, and not in a body
    late_p99_ms how far behind the schedule requests were sent, of an open loop
    stages_ms   means: of `Server-Timing`, and `outside` for what a client waited beyond its total
    limit       what keeps the rate from being higher: see `limit.limit_of`
    """

    kind: Kind
    images: int
    in_flight: int | None
    offered: Number | None
    seconds: Number
    requests: int
    refused: int
    errors: int
    items_s: Number
    tokens_s: Number
    p50_ms: Number
    p90_ms: Number
    p99_ms: Number
    mean_batch: Number
    padding: Number
    cached: int
    shared: int
    late_p99_ms: Number | None
    stages_ms: Mapping[str, Number]
    cores: Cores
    limit: str


class TowerRate(_Found):
    """The tower's own rate on a set: its runner fed from its device's memory, its queue always full.

    replay_ms  of each photo, in order: what its pack computes when it is alone, without copies and metadata
    """

    items_s: Number
    tokens_s: Number
    mean_batch: Number
    padding: Number
    replay_ms: tuple[Number, ...]

    def times(self, towers: float) -> TowerRate:
        """Of so many towers beside each other, if none takes anything from another."""
        rates = {"items_s": self.items_s * towers, "tokens_s": self.tokens_s * towers}
        return self.model_copy(update=rates)


class SetResult(_Found):
    """All that was found on one set of photos.

    tower_items_s, ...    the tower's own rate
    service_items_s       the best of the closed loops; `ratio` is its share of the tower's
    p50_ms, mean_batch, padding, limit  of that loop, `peak_in_flight` requests at once
    *_at_70*              of Poisson arrivals at 70 % of that rate
    lone_ms               of one request at a time, median; lone_stages_ms where it went, on average
    replay_ms             what the tower computes for it, median; lone_overhead_ms is the difference's median
    stages_off_ms         the most by which the stages of one reply missed its total
    grouped_items_s       with `grouped_images` images a request
    shared_items_s        with rows in shared memory of this host
    """

    file: str
    model: str
    device: str
    photos: int
    photo_bytes: Number
    command: str
    date: str
    tower_items_s: Number
    tower_tokens_s: Number
    tower_mean_batch: Number
    tower_padding: Number
    service_items_s: Number
    ratio: Number
    peak_in_flight: int
    p50_ms: Number
    mean_batch: Number
    padding: Number
    limit: str
    p50_at_70_ms: Number
    p99_at_70_ms: Number
    mean_batch_at_70: Number
    lone_ms: Number
    replay_ms: Number
    lone_overhead_ms: Number
    lone_stages_ms: Mapping[str, Number]
    stages_off_ms: Number
    grouped_images: int
    grouped_items_s: Number
    grouped_ratio: Number
    shared_items_s: Number
    shared_ratio: Number
    loads: tuple[LoadResult, ...]


class Sighting(_Found):
    """Memory of a process after so many requests, as resident bytes, and its open descriptors."""

    requests: int
    resident_bytes: int
    descriptors: int


class SoakResult(_Found):
    """What many requests leave behind; by process, the first sighting after the warm-up.

    grown_bytes, grown_descriptors  from the sighting after a quarter of the requests to the last
    """

    file: str
    command: str
    date: str
    requests: int
    seconds: Number
    errors: int
    sightings: Mapping[str, tuple[Sighting, ...]]
    grown_bytes: Mapping[str, int]
    grown_descriptors: Mapping[str, int]


class OverloadResult(_Found):
    """What a service does at twice its peak, from when its queue is full.

    peak     the best of the closed loops
    goodput  share of its rate that `load` had
    resident_bytes, descriptors     by process, every two seconds
    grown_bytes, grown_descriptors  from the median of the first quarter of these to that of the last
    """

    file: str
    command: str
    date: str
    peak: LoadResult
    load: LoadResult
    goodput: Number
    resident_bytes: Mapping[str, tuple[int, ...]]
    descriptors: Mapping[str, tuple[int, ...]]
    grown_bytes: Mapping[str, int]
    grown_descriptors: Mapping[str, int]


class ServiceResults(_Found):
    """Runs on one machine, by set, soak and overload."""

    machine: Machine
    versions: Mapping[str, str]
    sets: Mapping[str, SetResult] = {}
    soaks: Mapping[str, SoakResult] = {}
    overloads: Mapping[str, OverloadResult] = {}

    def with_set(self, name: str, found: SetResult) -> ServiceResults:
        """With this set, in the place of one of the same name."""
        return self.model_copy(update={"sets": {**self.sets, name: found}})

    def with_soak(self, name: str, found: SoakResult) -> ServiceResults:
        """With this soak, in the place of one of the same name."""
        return self.model_copy(update={"soaks": {**self.soaks, name: found}})

    def with_overload(self, name: str, found: OverloadResult) -> ServiceResults:
        """With this overload, in the place of one of the same name."""
        return self.model_copy(update={"overloads": {**self.overloads, name: found}})


def write(results: ServiceResults, path: Path) -> None:
    """Put the results in the place of the file, in one step."""
    put(results.model_dump_json(indent=2).encode() + b"\n", path)


def read(path: Path) -> ServiceResults:
    """The results in a file. Raises ValueError if it holds none, OSError if it cannot be read."""
    try:
        return ServiceResults.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path} holds no results of encoder-pool bench service") from error
