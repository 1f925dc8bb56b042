"""Every configuration that comes with the project works, for us and for plain `serve run`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from encoder_pool.launch.file import read_service_file
from encoder_pool.launch.host import Host, problems
from encoder_pool.launch.plan import plan_service
from tests.serve_schema import ServeDeploySchema

FOLDER = Path(__file__).parents[1] / "serve_configs"
FILES = sorted(FOLDER.glob("*.yaml"))
TWO_CORES = Host(cpus=2.0, free_bytes=8 << 30)


def test_there_is_a_default() -> None:
    assert FOLDER / "demo.yaml" in FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_configuration_is_valid_for_us_and_for_serve(path: Path) -> None:
    service = read_service_file(path)
    schema = ServeDeploySchema.model_validate(service.document)
    assert (schema.http_options.host, schema.http_options.port) == (service.host, service.port)
    for ours, serves in zip(service.applications, schema.applications, strict=True):
        assert (ours.name, ours.route_prefix) == (serves.name, serves.route_prefix)
        module, _, builder = serves.import_path.partition(":")
        assert callable(getattr(import_module(module), builder))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_configuration_has_a_plan(path: Path) -> None:
    service = read_service_file(path)
    for application, plan in zip(service.applications, plan_service(service), strict=True):
        assert plan.config is application.config
        assert plan.sizing.ladder
        assert (plan.weight_bytes or 0) > 1 << 20
        assert all(0 <= share < 1 for share in plan.padding.values())


def test_the_default_runs_on_two_cores() -> None:
    service = read_service_file(FOLDER / "demo.yaml").with_port(1)
    fit = [found for found in problems(service, plan_service(service), TWO_CORES) if "port" not in found]
    assert not fit
