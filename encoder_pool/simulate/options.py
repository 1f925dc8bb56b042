"""The options of `encoder-pool simulate`. Imports no simulation, so that other commands do not wait."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Literal

from encoder_pool.bench.command import picture_target


def add_options(parser: argparse.ArgumentParser, target: Callable[[str], Path]) -> None:
    """Those of the command; `target` reads the name of a file to be written."""
    parser.add_argument("file", type=Path, help="a Serve configuration, e.g. serve_configs/qwen.yaml")
    parser.add_argument("--application", help="which of its applications; by default the first")
    parser.add_argument(
        "--times",
        required=True,
        help="milliseconds of the rungs: URL of a running model, a file of its /info or of bench tower",
    )
    parser.add_argument("--machines", type=Path, help="JSON with 'hardware' and 'costs', where they differ")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--gpus", type=_counts, default=(1, 8, 64), help="numbers to try, e.g. 1,8,64")
    asked.add_argument("--find", action="store_true", help="find the least number for --p99-ms")
    asked.add_argument("--check", type=Path, help="compare with the results of encoder-pool bench service")
    parser.add_argument("--p99-ms", type=_positive, help="what --find holds requests to")
    parser.add_argument("--most-gpus", type=_count, default=1024, help="where --find gives up")
    parser.add_argument("--autoscale", action="store_true", help="the number is the most; the policy decides")
    _add_traffic(parser)
    parser.add_argument("--out", type=target, help="write what was found to this JSON file")
    parser.add_argument(
        "--plot", type=picture_target(target), help="draw it to this file, e.g. simulated.png"
    )


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    rates = parser.add_mutually_exclusive_group()
    rates.add_argument("--rate", type=_positive, help="requests a second, by all clients together")
    rates.add_argument("--rate-per-gpu", type=_positive, help="requests a second for each GPU that is tried")
    rates.add_argument("--in-flight", type=_count, help="clients that each wait for their answer, instead")
    rates.add_argument("--trace", type=Path, help="CSV of seconds, width, height (and bytes), instead")
    parser.add_argument("--bursts", action="store_true", help="requests come in bursts")
    parser.add_argument("--sizes", default="photos", help="photos, mix, or WIDTHxHEIGHT in pixels")
    parser.add_argument("--images", type=_count, default=1, help="images of a request")
    parser.add_argument("--bytes-per-pixel", type=_positive, default=0.25, help="of images as sent")
    parser.add_argument("--seconds", type=_positive, default=60.0, help="of traffic, in virtual time")
    parser.add_argument("--seed", type=int, default=1, help="draws the traffic; the same seed the same")


def arrivals_of(asked: argparse.Namespace) -> Literal["poisson", "bursts", "closed", "trace"]:
    """The kind of traffic that was asked for. Raises ValueError if none was."""
    if asked.trace is not None:
        return "trace"
    if asked.in_flight is not None:
        return "closed"
    if asked.rate is None and asked.rate_per_gpu is None:
        raise ValueError("some traffic is needed: --rate, --rate-per-gpu, --in-flight or --trace")
    return "bursts" if asked.bursts else "poisson"


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(number) for number in text.split(","))


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is no number of 1 or more")
    return int(text)


def _positive(text: str) -> float:
    with suppress(ValueError):
        if isfinite(number := float(text)) and number > 0:
            return number
    raise argparse.ArgumentTypeError(f"{text} is no number above 0")
