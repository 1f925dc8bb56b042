"""The options of `encoder-pool bench service`, and what it says at the end."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from pathlib import Path

from encoder_pool.bench.service.photos import PhotoSet

SETS = ("224", "512", "1024", "mix")


def add_options(parser: argparse.ArgumentParser, target: Callable[[str], Path]) -> None:
    """Those of the command; `target` reads the name of a file to be written."""
    parser.add_argument("--file", type=Path, required=True, help="the Serve configuration to measure")
    parser.add_argument("--application", help="which of its applications; by default the first")
    parser.add_argument("--name", help="what the sets' names begin with; by default the application's name")
    parser.add_argument(
        "--sets",
        type=_photo_set,
        nargs="+",
        default=[PhotoSet.named(name) for name in SETS],
        help="photos: a side in pixels, or mix for 224 to 1500; by default " + " ".join(SETS),
    )
    parser.add_argument("--seconds", type=seconds, default=10.0, help="that are counted of each load")
    parser.add_argument("--clients", type=count, default=_clients(), help="client processes")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--soak", type=count, metavar="REQUESTS", help="see whether memory stays flat instead"
    )
    instead.add_argument(
        "--overload",
        type=seconds,
        metavar="SECONDS",
        help="send twice the peak for so long instead, once the queue is full",
    )
    parser.add_argument("--append", action="store_true", help="keep what --out holds of this machine")
    parser.add_argument("--out", type=target, help="write the results to this JSON file, as they come")


def _clients() -> int:
    """One for four cores, but several."""
    return max(2, min(4, len(os.sched_getaffinity(0)) // 4))


def _photo_set(text: str) -> PhotoSet:
    try:
        return PhotoSet.named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def seconds(text: str) -> float:
    """The value of an option that is a time."""
    with suppress(ValueError):
        if isfinite(value := float(text)) and value > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")


def count(text: str) -> int:
    """The value of an option that is a number of things."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text} is no number of 1 or more")
    return int(text)
