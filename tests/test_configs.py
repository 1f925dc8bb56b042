"""Every configuration that comes with the project works, for us and for plain `serve run`."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from encoder_pool.launch.file import read_service_file
from encoder_pool.launch.host import Host, problems
from encoder_pool.launch.plan import plan_service
from tests.serve_schema import ServeDeploySchema

FOLDER = Path(__file__).parents[1] / "serve_configs"
FILES = sorted(FOLDER.glob("*.yaml"))
TWO_CORES = Host(cpus=2.0, free_bytes=8 << 30)
GPU_HOST = Host(cpus=16.0, free_bytes=64 << 30, gpus=1)
FITTING = [
    ("demo.yaml", TWO_CORES),
    ("qwen-tiny.yaml", TWO_CORES),
    ("qwen-small-images.yaml", GPU_HOST),
    ("qwen.yaml", GPU_HOST),
    ("qwen3.yaml", GPU_HOST),
]


def test_every_configuration_is_said_to_fit_a_host() -> None:
    assert {FOLDER / name for name, _ in FITTING} == set(FILES)


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


@pytest.mark.parametrize(("name", "host"), FITTING)
def test_a_configuration_runs_on_the_host_that_it_is_made_for(name: str, host: Host) -> None:
    service = read_service_file(FOLDER / name).with_port(1)
    fit = [found for found in problems(service, plan_service(service), host) if "port" not in found]
    assert not fit


def test_the_kubernetes_service_is_a_configuration_of_ours(tmp_path: Path) -> None:
    resource = yaml.safe_load((FOLDER / "kubernetes" / "rayservice.yaml").read_text())
    inner = tmp_path / "serve.yaml"
    inner.write_text(resource["spec"]["serveConfigV2"])
    (application,) = read_service_file(inner).applications
    ServeDeploySchema.model_validate(yaml.safe_load(inner.read_text()))
    head, (workers,) = (
        resource["spec"]["rayClusterConfig"][key] for key in ("headGroupSpec", "workerGroupSpecs")
    )
    assert resource["spec"]["rayClusterConfig"]["rayVersion"] == version("ray")
    assert workers["maxReplicas"] == application.config.scaling.max_replicas
    assert head["rayStartParams"]["num-cpus"] == "0"
    grace_s = workers["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > application.config.queue.deadline_s


def test_a_rung_takes_the_largest_image_of_the_published_processor() -> None:
    service = read_service_file(FOLDER / "qwen.yaml")
    (plan,) = plan_service(service)
    assert plan.sizing.largest_item.out_rows == 12_845_056 // 28**2
    assert {rung.capacity.longest for rung in plan.sizing.ladder if rung.budget == 16384} == {
        1024,
        4096,
        4 * 16384,
    }


def test_the_tiny_configuration_is_the_other_in_small() -> None:
    sections = [
        read_service_file(FOLDER / name).applications[0].config for name in ("qwen.yaml", "qwen-tiny.yaml")
    ]
    large, small = (section.model_dump(exclude_unset=True) for section in sections)
    assert set(small) == set(large)
    assert set(small["model"]) | {"attention"} == set(large["model"])


def test_the_tiny_configuration_leaves_its_ladder_to_the_shard() -> None:
    (plan,) = plan_service(read_service_file(FOLDER / "qwen-tiny.yaml"))
    assert plan.config.ladder.is_automatic
    assert plan.sizing.largest_item.out_rows == 256
