"""What a shard measured when it started, kept on disk, so that the next start need not measure again.

A file is JSON of a `Measured`, named after what its times depend on: a `Subject`, which can be told without
a GPU and without importing torch, and the card. Its folder is ENCODER_POOL_MEASURED, or `measured` in the
folder of the weights' cache. Files are written whole and renamed, so that starts at the same time do not
tear them; one that is damaged, or of something else, is left aside with a warning, and then replaced. Those
who measure on a card that others use take turns by a lock beside the files. Knows nothing of how anything is
measured.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

import encoder_pool
from encoder_pool.config import LadderConfig, PoolConfig
from encoder_pool.core import Rung
from encoder_pool.graphs.ladder import NotCaptured
from encoder_pool.graphs.plan import CostTable
from encoder_pool.towers.adapter import KernelChoice, adapter_class
from encoder_pool.weights import cache as weights_cache

logger = logging.getLogger(__name__)

FOLDER = "ENCODER_POOL_MEASURED"
PACKAGES = ("torch", "triton", "flash-attn-4", "transformers")
"""Whose versions decide what kernels there are and how fast they run."""
SOURCES = ("towers/**/*.py", "graphs/*.py")
"""Of this package, what decides what is run and how it is timed."""


class Document(BaseModel):
    """A part of a file: immutable, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def digest(self) -> str:
        """Hex digits that stand for the content."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


class Subject(Document):
    """All that times depend on but the card.

    code      digest of our sources, and of the adapter's own if it is not ours
    packages  versions of others; empty for one that is not installed
    tower     digest of the checkpoint's config.json: the family and its widths, not the weights
    threads   of a tower on the CPU
    gpus      share of a GPU, which bounds how far a ladder without numbers goes
    ranks     that it is split over
    ladder    what the configuration says of it
    rungs     all that may be captured
    """

    code: str
    packages: Mapping[str, str]
    adapter: str
    tower: str
    device: str
    dtype: str
    quantization: str
    attention: str
    threads: int
    gpus: float
    ranks: int
    ladder: LadderConfig
    rungs: tuple[Rung, ...]

    @staticmethod
    def of(config: PoolConfig, checkpoint: Path, rungs: tuple[Rung, ...]) -> Subject:
        """What a pool of this configuration would measure."""
        model = config.model
        return Subject(
            code=_code(model.adapter),
            packages={package: _version(package) for package in PACKAGES},
            adapter=model.adapter,
            tower=_tower(checkpoint),
            device=model.device,
            dtype=model.dtype.value,
            quantization=model.quantization,
            attention=model.attention,
            threads=config.shard.threads,
            gpus=config.gpus,
            ranks=model.tensor_parallel_size,
            ladder=config.ladder,
            rungs=rungs,
        )


class Card(Document):
    """What computed: the name of the GPU, or of the CPU, and the version of the GPU's driver."""

    name: str
    driver: str

    @staticmethod
    def gpu(name: str) -> Card:
        """A GPU of this host."""
        return Card(name=name, driver=_first_line(Path("/proc/driver/nvidia/version")))

    @staticmethod
    def cpu() -> Card:
        """The CPU of this host."""
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return Card(name=names[0] if names else "CPU", driver="")


class Measured(Document):
    """What was found.

    ladder            the rungs that were captured
    table             what they take
    choices           the attention kernels that they have
    not_captured      the others, and why they are not there
    memory_bound_at   bytes that were free when want of memory ended a ladder without numbers; else None
    """

    version: Literal[1] = 1
    subject: Subject
    card: Card
    at: datetime
    ladder: tuple[Rung, ...]
    table: CostTable
    choices: tuple[KernelChoice, ...]
    not_captured: tuple[NotCaptured, ...]
    memory_bound_at: int | None

    @model_validator(mode="after")
    def _consistent(self) -> Measured:
        times = self.table.rung_ms
        if (
            not self.ladder
            or len(times) != len(self.ladder)
            or not all(0 < ms < float("inf") for ms in times)
        ):
            raise ValueError("every rung needs a time, and there must be one")
        return self

    def table_of(self, ladder: Iterable[Rung]) -> CostTable | None:
        """The times of these rungs; None if one of them was not measured."""
        ms_of = dict(zip(self.ladder, self.table.rung_ms, strict=True))
        times = [ms_of.get(rung) for rung in ladder]
        rung_ms = tuple(ms for ms in times if ms is not None)
        if len(rung_ms) < len(times):
            return None
        table = self.table
        return CostTable(rung_ms, table.eager_fixed_ms, table.eager_row_ms, table.pack_ms)


def load(subject: Subject, card: Card) -> Measured | None:
    """What was measured of this subject on this card; None if nothing was, or the file is of no use."""
    found = _read(_folder() / _name(subject, card.digest))
    if found is not None and (found.subject, found.card) != (subject, card):
        logger.warning(
            "measured times are left aside: they are of something else than their file's name says"
        )
        return None
    return found


def latest(subject: Subject) -> Measured | None:
    """The last that was measured of this subject, on whatever card; for those who have no card at hand."""
    files = _folder().glob(_name(subject, "*"))
    found = [measured for measured in map(_read, files) if measured is not None]
    return max((each for each in found if each.subject == subject), key=lambda each: each.at, default=None)


def save(measured: Measured) -> None:
    """Keep it, in place of what was there. A folder that cannot be written is warned of: starting goes on."""
    path = _folder() / _name(measured.subject, measured.card.digest)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as workspace:
            whole = Path(workspace) / path.name
            whole.write_text(measured.model_dump_json(indent=1))
            whole.replace(path)
    except OSError as error:
        logger.warning("measured times are not kept: %s (%s names another folder)", error, FOLDER)


@contextmanager
def in_turn(card: Card) -> Iterator[None]:
    """Wait until nobody else of this host is in such a block about such a card, and keep others from it.

    Without a folder that can be written nobody waits: starting goes on.
    """
    with ExitStack() as stack:
        try:
            _folder().mkdir(parents=True, exist_ok=True)
            # Whoever ends in the block, however that is, closes the file and so lets the next in.
            lock = stack.enter_context((_folder() / f"{card.digest}.lock").open("w"))
        except OSError as error:
            logger.warning("the card is not measured in turn: %s (%s names another folder)", error, FOLDER)
        else:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> Measured | None:
    try:
        return Measured.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        logger.warning("measured times in %s are left aside: %s", path, str(error).splitlines()[0])
        return None


def _folder() -> Path:
    """Where files are. May not be there yet."""
    named = os.environ.get(FOLDER)
    return Path(named).expanduser() if named else weights_cache.location() / "measured"


def _name(subject: Subject, card: str) -> str:
    return f"{subject.digest}-{card}.json"


@cache
def _code(adapter: str) -> str:
    package = Path(encoder_pool.__file__).parent
    files = sorted(file for pattern in SOURCES for file in package.glob(pattern))
    own = sys.modules[adapter_class(adapter).__module__].__file__
    digest = hashlib.sha256()
    for file in (*files, *([Path(own)] if own else [])):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _tower(checkpoint: Path) -> str:
    config = checkpoint / "config.json"
    return hashlib.sha256(config.read_bytes() if config.is_file() else b"").hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _first_line(path: Path) -> str:
    return path.read_text().partition("\n")[0].strip() if path.is_file() else ""
