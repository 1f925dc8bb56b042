"""What simulations found, as it is written to JSON and read again. Times are milliseconds, rates per second.

Of the requests that were sent while it was counted; latencies are of those answered with embeddings, from the
client's first byte to its last. Numbers are written with five digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from encoder_pool.bench.results import Number
from encoder_pool.errors import DeadlineExceeded, Overloaded
from encoder_pool.graphs.counters import Tally
from encoder_pool.simulate.costs import Machines
from encoder_pool.simulate.fleet import Answer
from encoder_pool.simulate.replica import OK
from encoder_pool.simulate.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Use:
    """Work per second of a resource, as a share of what it can do; more than 1 and its queue grows.

    mean     over all of its kind
    busiest  of the one that has most to do
    """

    mean: Number
    busiest: Number


@dataclass(frozen=True, slots=True)
class Result:
    """One number of GPUs.

    replicas        that served, as a mean over time
    requests        that were sent; offered_per_s their rate
    answered_per_s  those with embeddings; images and tokens likewise
    shed, expired, failed  requests answered 429, 504, and anything else
    mean_batch      images of a pack; padding the share of its patch rows that belonged to none
    uses            of every resource
    first_to_break  the one with the busiest, and the requests a second at which that would have no rest
    """

    gpus: int
    hosts: int
    replicas: Number
    requests: int
    offered_per_s: Number
    answered_per_s: Number
    images_per_s: Number
    tokens_per_s: Number
    p50_ms: Number
    p90_ms: Number
    p99_ms: Number
    shed: int
    expired: int
    failed: int
    mean_batch: Number
    padding: Number
    uses: Mapping[str, Use]
    first_to_break: str
    breaks_at_per_s: Number
    took_s: Number = 0.0

    @property
    def lost(self) -> int:
        """Requests that got no embeddings."""
        return self.shed + self.expired + self.failed


@dataclass(frozen=True, slots=True)
class Measured:
    """What a simulation counted, in so many seconds."""

    seconds: float
    answers: Sequence[Answer]
    hosts: int
    replica_s: float
    packs: int
    items_packed: int
    ran: Tally
    uses: Mapping[str, Use]


@dataclass(frozen=True, slots=True)
class Study:
    """A command, what it assumed, and what it found.

    times  where the milliseconds of rungs are from
    """

    command: str
    version: str
    model: str
    times: str
    traffic: Traffic
    machines: Machines
    results: tuple[Result, ...] = ()


def summarise(gpus: int, measured: Measured) -> Result:
    """One result out of what was counted. Without an answer its latencies are not numbers."""
    answers = measured.answers
    good = [answer for answer in answers if answer.status == OK]
    took_ms = [(answer.answered_at - answer.sent_at) * 1e3 for answer in good] or [np.nan]
    p50, p90, p99 = np.quantile(took_ms, (0.5, 0.9, 0.99)).tolist()
    shed = sum(answer.status == Overloaded.status for answer in answers)
    expired = sum(answer.status == DeadlineExceeded.status for answer in answers)
    first = max(measured.uses, key=lambda name: measured.uses[name].busiest)
    offered_per_s = len(answers) / measured.seconds
    return Result(
        gpus=gpus,
        hosts=measured.hosts,
        replicas=measured.replica_s / measured.seconds,
        requests=len(answers),
        offered_per_s=offered_per_s,
        answered_per_s=len(good) / measured.seconds,
        images_per_s=sum(answer.images for answer in good) / measured.seconds,
        tokens_per_s=sum(answer.tokens for answer in good) / measured.seconds,
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        shed=shed,
        expired=expired,
        failed=len(answers) - len(good) - shed - expired,
        mean_batch=measured.items_packed / measured.packs if measured.packs else 0.0,
        padding=measured.ran.padding,
        uses=measured.uses,
        first_to_break=first,
        breaks_at_per_s=offered_per_s / measured.uses[first].busiest if answers else 0.0,
    )


_STUDY = TypeAdapter(Study)


def write(study: Study, path: Path) -> None:
    """Write the file."""
    path.write_bytes(_STUDY.dump_json(study, indent=2) + b"\n")


def read(path: Path) -> Study:
    """The study in a file. Raises ValueError if it holds none, OSError if it cannot be read."""
    try:
        return _STUDY.validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path} holds no results of encoder-pool simulate") from error
