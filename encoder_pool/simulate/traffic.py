"""What comes in: images of some sizes, in requests at some times. The same seed draws the same traffic.

Requests come at random (poisson), at random with bursts, from clients that each wait for their answer
(closed), or as a CSV file says (trace). Sides are drawn evenly (mix), sizes with a heavy tail (photos), or
all are one.
Knows nothing of pools.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from math import sqrt
from pathlib import Path
from random import Random
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from encoder_pool.config import Positive, Seconds, Section

BURST_EVERY_S, BURST_S, BURST_TIMES = 10.0, 1.0, 5.0
"""A burst begins so often, lasts so long, and brings so many times the requests that come between bursts."""

MIX_SIDES = 224, 1500
"""Least and most of a side of `mix`, in pixels."""
PHOTO_MEGAPIXELS, PHOTO_SPREAD, PHOTO_BOUNDS = 0.6, 1.0, (0.03, 16.0)
"""Of photos: the median, the sigma of its logarithm, the least and the most. One in a hundred has 6."""
PHOTO_ASPECTS = (1.0, 4 / 3, 3 / 4, 3 / 2, 16 / 9, 9 / 16)

_ONE_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", re.ASCII)
_COLUMNS = ("seconds", "width", "height")


class Picture(NamedTuple):
    """An image as it is sent, in pixels and bytes."""

    width: int
    height: int
    num_bytes: int


class Arrival(NamedTuple):
    """A request: when it comes, in seconds from the start, and what it brings."""

    at_s: float
    pictures: tuple[Picture, ...]


class Traffic(Section):
    """All that is needed to draw it again."""

    arrivals: Literal["poisson", "bursts", "closed", "trace"] = "poisson"
    requests_per_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Mean rate of poisson and bursts, by all clients together."
    )
    in_flight: Positive | None = Field(None, description="Clients of closed traffic.")
    trace: Path | None = Field(
        None,
        description="CSV of columns seconds, width, height, perhaps bytes: a row is a request of one image.",
    )
    images_per_request: Positive = 1
    sizes: str = Field("photos", description="mix, photos, or WIDTHxHEIGHT in pixels.")
    bytes_per_pixel: Annotated[float, Field(gt=0)] = Field(
        0.25, description="Of images as sent. JPEGs of quality 90 have 0.1 to 0.4."
    )
    seconds: Seconds = 60.0
    seed: int = 1

    @field_validator("sizes")
    @classmethod
    def _known(cls, sizes: str) -> str:
        if sizes not in _SIZES and not _ONE_SIZE.fullmatch(sizes):
            raise ValueError(f"'{sizes}' is no size; it is {', '.join(_SIZES)} or WIDTHxHEIGHT")
        return sizes

    @model_validator(mode="after")
    def _complete(self) -> Traffic:
        needs = {"closed": "in_flight", "trace": "trace"}.get(self.arrivals, "requests_per_s")
        if getattr(self, needs) is None:
            raise ValueError(f"{self.arrivals} traffic needs {needs}")
        return self

    def requests(self) -> Iterator[Arrival]:
        """All requests in order of time; those of closed traffic without end, all at zero.

        Raises ValueError for a trace that is none, before the first.
        """
        if self.arrivals == "trace":
            assert self.trace is not None
            return iter([arrival for arrival in read_trace(self.trace, self) if arrival.at_s < self.seconds])
        draw = Random(f"{self.seed} pictures")
        picture = _picture_source(self.sizes)
        return (
            Arrival(at, tuple(self._sent(picture(draw)) for _ in range(self.images_per_request)))
            for at in self._times(Random(f"{self.seed} times"))
        )

    def _sent(self, size: tuple[int, int]) -> Picture:
        width, height = size
        return Picture(width, height, max(1, round(width * height * self.bytes_per_pixel)))

    def _times(self, draw: Random) -> Iterator[float]:
        if self.arrivals == "closed":
            while True:
                yield 0.0
        assert self.requests_per_s is not None
        if self.arrivals == "poisson":
            yield from _poisson(self.requests_per_s, self.seconds, draw)
            return
        calm = self.requests_per_s / (1 + (BURST_TIMES - 1) * BURST_S / BURST_EVERY_S)
        for at in _poisson(calm * BURST_TIMES, self.seconds, draw):
            # A burst stands at the end of its period, so that traffic begins calmly.
            if at % BURST_EVERY_S >= BURST_EVERY_S - BURST_S or draw.random() * BURST_TIMES < 1:
                yield at


def _poisson(per_s: float, seconds: float, draw: Random) -> Iterator[float]:
    at = draw.expovariate(per_s)
    while at < seconds:
        yield at
        at += draw.expovariate(per_s)


def _mix(draw: Random) -> tuple[int, int]:
    return draw.randint(*MIX_SIDES), draw.randint(*MIX_SIDES)


def _photo(draw: Random) -> tuple[int, int]:
    least, most = PHOTO_BOUNDS
    pixels = min(max(PHOTO_MEGAPIXELS * draw.lognormvariate(0, PHOTO_SPREAD), least), most) * 1e6
    width = sqrt(pixels * draw.choice(PHOTO_ASPECTS))
    return round(width), round(pixels / width)


_SIZES: dict[str, Callable[[Random], tuple[int, int]]] = {"mix": _mix, "photos": _photo}


def _picture_source(sizes: str) -> Callable[[Random], tuple[int, int]]:
    if sizes in _SIZES:
        return _SIZES[sizes]
    match = _ONE_SIZE.fullmatch(sizes)
    assert match is not None
    size = int(match[1]), int(match[2])
    return lambda draw: size


def read_trace(path: Path, traffic: Traffic) -> Iterator[Arrival]:
    """The rows of a CSV file. Raises ValueError, naming the line, if it is none or not in order of time."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if missing := [column for column in _COLUMNS if column not in (rows.fieldnames or ())]:
            raise ValueError(f"{path}: no column {', '.join(missing)} in its first line")
        last_s = 0.0
        for row in rows:
            arrival = _arrival(row, traffic, f"{path}, line {rows.line_num}")
            if arrival.at_s < last_s:
                raise ValueError(f"{path}, line {rows.line_num}: {arrival.at_s} s comes after {last_s} s")
            last_s = arrival.at_s
            yield arrival


def _arrival(row: dict[str, str], traffic: Traffic, place: str) -> Arrival:
    try:
        at_s, width, height = float(row["seconds"]), int(row["width"]), int(row["height"])
        sent = traffic._sent((width, height))
        picture = sent._replace(num_bytes=int(row["bytes"])) if row.get("bytes") else sent
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error
    if not (at_s >= 0 and min(picture) > 0):
        raise ValueError(f"{place}: seconds must not be negative, sizes must be positive")
    return Arrival(at_s, (picture,))
