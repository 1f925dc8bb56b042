"""The milliseconds of a tower's rungs: as a running service has measured them, or fitted to a benchmark.

Two documents are read. `/info` of a service has its ladder with the time of every rung: its section `ladder`
is the form in which measured times travel. The results of `encoder-pool bench tower` have the times of some
packs; a rung then takes a + b * rows + c * rows * longest milliseconds, as products and attention together
do, with a, b and c from those packs. Imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from pydantic import BaseModel, Field, ValidationError

from encoder_pool.bench.cases import TOWERS
from encoder_pool.bench.results import CaseResult, read
from encoder_pool.core import Cost, Rung
from encoder_pool.graphs.plan import CostTable

PACK_SHARE = 0.25
"""As `graphs.measure` has it, which imports torch."""

_PACKS = re.compile(r"(?:(\d+) x )?(\d+)/(\d+)")
"""As `bench tower` names packs: "1024/4096" or "4 x 4096/4096", budget and longest segment."""


class Times(NamedTuple):
    """A ladder, what its rungs take, and in words where that is from."""

    ladder: tuple[Rung, ...]
    table: CostTable
    source: str


class EagerTimes(BaseModel):
    """An eager run, as in CostTable."""

    fixed_ms: float = Field(ge=0)
    row_ms: float = Field(ge=0)


class RungTimes(BaseModel):
    """One rung."""

    budget: int
    ms: float = Field(gt=0)
    capacity: Cost


class LadderTimes(BaseModel):
    """The section `ladder` of `/info`; its other keys are not needed."""

    rungs: tuple[RungTimes, ...] = Field(min_length=1)
    eager: EagerTimes
    pack_ms: float = Field(gt=0)

    def times(self, source: str) -> Times:
        """As the planner takes it."""
        ladder = tuple(Rung(rung.budget, rung.capacity) for rung in self.rungs)
        rung_ms = tuple(rung.ms for rung in self.rungs)
        table = CostTable(rung_ms, self.eager.fixed_ms, self.eager.row_ms, self.pack_ms)
        return Times(ladder, table, source)


class InfoDocument(BaseModel):
    """What is read of `/info`."""

    ladder: LadderTimes


def read_times(place: str, checkpoint: str, ladder: Sequence[Rung]) -> Times:
    """From a service's URL, a file of its `/info`, or the results of a benchmark.

    checkpoint  `model.checkpoint` of the pool, by which a benchmark's tower is found
    ladder      of the pool, for which a benchmark's times are fitted

    Raises ValueError, naming the place, for what is none of these; OSError for a file that cannot be read.
    """
    if place.startswith(("http://", "https://")):
        return _of_info(_fetch(f"{place.rstrip('/')}/info"), place)
    document = _json(Path(place))
    if "cases" in document:
        return _of_benchmark(Path(place), checkpoint, ladder)
    return _of_info(document, place)


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(
            f"{path} is neither `/info` of a service nor the results of encoder-pool bench tower"
        )
    return document


def _fetch(url: str) -> Any:
    try:
        return httpx.get(url, timeout=10).raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise ValueError(f"{url} does not answer with /info of a service: {error}") from error


def _of_info(document: Any, place: str) -> Times:
    try:
        return InfoDocument.model_validate(document).ladder.times(f"measured by the service, {place}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place} is no /info with times: {where}: {first['msg']}") from error


def _of_benchmark(path: Path, checkpoint: str, ladder: Sequence[Rung]) -> Times:
    results = read(path)
    names = {known: name for name, known in TOWERS.items()}
    tower = names.get(checkpoint, "")
    cases = [case for case in results.cases if case.tower == tower]
    if not cases:
        measured = ", ".join(names_of(results.towers)) or "none"
        raise ValueError(f"{path} has no times of model.checkpoint '{checkpoint}'; it has {measured}")
    card = results.machine.card or results.machine.cpu
    return Times(tuple(ladder), fit(cases, ladder), f"fitted to {path.name}, {card}")


def names_of(towers: Sequence[str]) -> list[str]:
    """Checkpoints of towers by the names that results have."""
    return [TOWERS.get(tower, tower) for tower in towers]


def fit(cases: Sequence[CaseResult], ladder: Sequence[Rung]) -> CostTable:
    """Times of all rungs by the packs of some cases, least relative error.

    Eager was not measured: it is the last resort. Raises ValueError without three packs that differ, and for
    a fit that makes no sense.
    """
    packs = [(match, case) for case in cases if (match := _PACKS.fullmatch(case.ours_packs))]
    shapes = np.array([[1.0, int(m[2]), int(m[2]) * int(m[3])] for m, _ in packs]).reshape(-1, 3)
    ms = np.array([case.ours_ms / int(m[1] or 1) for m, case in packs])
    if np.linalg.matrix_rank(shapes) < 3:
        raise ValueError("a fit needs three cases that differ in budget and longest segment")
    factors, *_ = np.linalg.lstsq(shapes / ms[:, None], np.ones(len(ms)), rcond=None)
    if factors.min() < 0:
        raise ValueError(
            f"the times of {', '.join(case.case for _, case in packs)} do not grow with the work"
        )
    held = [rung.capacity for rung in ladder]
    wanted = np.array([[1.0, cost.out_rows, cost.out_rows * cost.longest] for cost in held])
    rung_ms = tuple((wanted @ factors).tolist())
    row_ms = max(each / cost.patch_rows for each, cost in zip(rung_ms, held, strict=True))
    return CostTable(rung_ms, max(rung_ms), row_ms, rung_ms[0] * PACK_SHARE)
