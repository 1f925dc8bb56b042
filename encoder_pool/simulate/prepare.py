"""From a configuration file and measured times to what every simulation of the pool shares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from encoder_pool.launch.file import Application, explain, read_service_file
from encoder_pool.pool.sizing import size_pool
from encoder_pool.simulate.costs import Costs, Machines
from encoder_pool.simulate.replica import Blueprint
from encoder_pool.simulate.shard import Tower
from encoder_pool.simulate.times import read_times
from encoder_pool.towers.adapter import ForeseesImages, adapter_class
from encoder_pool.weights import ensure


class Prepared(NamedTuple):
    """A pool, and its adapter, which foresees what images cost; in words where its times are from."""

    model: str
    blueprint: Blueprint
    adapter: ForeseesImages
    times: str


def prepare(file: Path, application: str | None, times: str, costs: Costs) -> Prepared:
    """The pool of an application; by default the file's first. Raises ValueError, naming what is wrong."""
    config = _application(file, application).config
    if config.replica.workers > 1:
        raise ValueError(
            f"replica.workers must be 1 (it is {config.replica.workers}): a replica is simulated with one GPU"
        )
    adapter = adapter_class(config.model.adapter)(ensure(config.model.checkpoint))
    if not isinstance(adapter, ForeseesImages):
        raise ValueError(
            f"model.adapter '{config.model.adapter}' does not say what an image costs by its size "
            "(foresee_image), so that it cannot be simulated"
        )
    sizing = size_pool(config, adapter)
    found = read_times(times, config.model.checkpoint, sizing.ladder)
    megapixel = adapter.foresee_image(1024, 1024)
    tower = Tower(
        found.ladder,
        found.table,
        input_row_bytes=megapixel.num_bytes / megapixel.cost.patch_rows,
        output_row_bytes=adapter.width * config.model.dtype.storage.itemsize,
    )
    return Prepared(config.model.name, Blueprint(config, sizing, tower, costs), adapter, found.source)


def _application(file: Path, name: str | None) -> Application:
    applications = read_service_file(file).applications
    for application in applications:
        if name in (None, application.name):
            return application
    known = ", ".join(application.name for application in applications)
    raise ValueError(f"{file} has no application '{name}'; it has {known}")


def read_machines(path: Path | None) -> Machines:
    """Hardware and costs of a JSON file; the defaults without one. Raises ValueError, naming the key."""
    if path is None:
        return Machines()
    try:
        return Machines.model_validate(json.loads(path.read_bytes()))
    except ValidationError as error:
        raise ValueError(explain(error, path)) from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
