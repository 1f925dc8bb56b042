from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from encoder_pool.launch.file import ServiceFile, read_service_file
from encoder_pool.launch.host import (
    PROCESS_BYTES,
    Host,
    count_gpus,
    early_problems,
    free_port,
    problems,
    why_unbindable,
)
from encoder_pool.launch.plan import plan_service
from tests.launch.toy_service import toy_document, toy_entry, write

AMPLE = Host(cpus=64.0, free_bytes=1 << 40)


def a_service(folder: Path, *entries: dict[str, Any], **options: Any) -> ServiceFile:
    return read_service_file(
        write(folder, toy_document(folder, *entries, **{"port": free_port(), **options}))
    )


def found(service: ServiceFile, host: Host) -> list[str]:
    return problems(service, plan_service(service), host)


@pytest.fixture
def listening() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_host_with_room_has_no_problem(tmp_path: Path) -> None:
    assert found(a_service(tmp_path), AMPLE) == []


def test_fractions_of_cpus_add_up_over_applications(tmp_path: Path) -> None:
    shares: dict[str, Any] = {"replica": {"cpus": 0.1}, "shard": {"cpus": 0.2}}
    names = [f"app{number}" for number in range(10)]
    service = a_service(tmp_path, *(toy_entry(tmp_path, name, **shares) for name in names))
    assert found(service, Host(3.0, AMPLE.free_bytes)) == []
    (problem,) = found(service, Host(2.9, AMPLE.free_bytes))
    assert problem == (
        "the applications reserve 3 CPUs (replica.cpus + shard.cpus a shard, times scaling.min_replicas); "
        "this host has 2.9"
    )


def test_cpus_and_address_are_looked_at_before_there_is_a_plan(tmp_path: Path, listening: int) -> None:
    entry = toy_entry(tmp_path, model={"checkpoint": "/no/weights"})
    service = a_service(tmp_path, entry, port=listening)
    assert len(early_problems(service, Host(0.5, 0))) == 2
    assert early_problems(a_service(tmp_path, entry), AMPLE) == []


def test_a_share_that_floating_point_rounds_up_still_fits(tmp_path: Path) -> None:
    shares: dict[str, Any] = {"replica": {"cpus": 0.1}, "shard": {"cpus": 0.2}}
    assert 0.1 + 0.2 > 0.3
    assert found(a_service(tmp_path, toy_entry(tmp_path, **shares)), Host(0.3, AMPLE.free_bytes)) == []


def test_every_replica_reserves_its_cpus(tmp_path: Path) -> None:
    scaling = {"min_replicas": 3, "max_replicas": 5}
    entry = toy_entry(tmp_path, scaling=scaling, replica={"cpus": 0.5}, shard={"cpus": 1.5})
    (problem,) = found(a_service(tmp_path, entry), Host(5.0, AMPLE.free_bytes))
    assert "reserve 6 CPUs" in problem
    assert found(a_service(tmp_path, entry), Host(6.0, AMPLE.free_bytes)) == []


def test_memory_is_that_of_processes_rings_and_weights(tmp_path: Path) -> None:
    service = a_service(tmp_path)
    (plan,) = plan_service(service)
    needed = PROCESS_BYTES + plan.host_bytes
    assert found(service, Host(64.0, needed)) == []
    (problem,) = found(service, Host(64.0, needed - 1))
    assert problem.startswith(f"about {needed >> 20} MiB of memory are needed, ")


def test_every_worker_is_a_process_with_a_ring_and_reserves_what_a_shard_does(tmp_path: Path) -> None:
    entry = toy_entry(tmp_path, replica={"workers": 3, "cpus": 0.5}, shard={"cpus": 1.5})
    service = a_service(tmp_path, entry)
    (plan,) = plan_service(service)
    assert plan.host_bytes >= 3 * plan.sizing.ring_bytes
    needed = 3 * PROCESS_BYTES + plan.host_bytes
    assert found(service, Host(5.0, needed)) == []
    assert len(found(service, Host(4.9, needed - 1))) == 2


def test_every_rank_is_a_process_and_reserves_what_a_shard_does(tmp_path: Path) -> None:
    model = {
        "adapter": "grid",
        "checkpoint": "config:qwen2.5-vl-7b",
        "load_format": "dummy",
        "device": "cuda",
        "dtype": "bfloat16",
        "tensor_parallel_size": 2,
    }
    entry = toy_entry(
        tmp_path, model=model, ladder={"min": 64, "max": 256}, replica={"cpus": 1}, shard={"cpus": 2}
    )
    service = a_service(tmp_path, entry)
    (plan,) = plan_service(service)
    needed = 2 * PROCESS_BYTES + plan.host_bytes
    assert (plan.cpus, plan.gpus) == (5, 2)
    assert found(service, Host(5.0, needed, gpus=2)) == []
    assert [problem.partition(" (")[0] for problem in found(service, Host(4.0, needed - 1, gpus=1))] == [
        "the applications reserve 5 CPUs",
        "the applications reserve 2 GPUs",
        f"about {needed >> 20} MiB of memory are needed, {(needed - 1) >> 20} MiB are free",
    ]


def cuda_entry(folder: Path, name: str = "toy", **shard: Any) -> dict[str, Any]:
    return toy_entry(folder, name, model={"device": "cuda"}, shard={"cpus": 1, **shard})


def test_without_a_gpu_a_cuda_tower_is_refused_with_what_to_do(tmp_path: Path) -> None:
    service = a_service(tmp_path, cuda_entry(tmp_path))
    (problem,) = found(service, AMPLE)
    for part in (
        "reserve 1 GPUs (shard.gpus",
        "this host has none",
        "model.device cpu",
        "serve_configs/qwen-tiny.yaml",
    ):
        assert part in problem
    assert found(service, replace(AMPLE, gpus=1)) == []


def test_keys_that_are_not_there_are_named_with_their_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = a_service(tmp_path, toy_entry(tmp_path, auth={"keys_env": "THIS_POOLS_KEYS"}))
    (problem,) = found(service, AMPLE)
    assert problem.startswith("the environment variable THIS_POOLS_KEYS (auth.keys_env) holds no key")
    monkeypatch.setenv("THIS_POOLS_KEYS", "one,two")
    assert found(service, AMPLE) == []


def test_shares_of_gpus_add_up_over_applications(tmp_path: Path) -> None:
    entries = [cuda_entry(tmp_path, f"app{number}", gpus=0.4) for number in range(5)]
    service = a_service(tmp_path, *entries)
    assert found(service, replace(AMPLE, gpus=2)) == []
    (problem,) = found(service, replace(AMPLE, gpus=1))
    assert problem == (
        "the applications reserve 2 GPUs (shard.gpus a shard, times scaling.min_replicas); this host has 1"
    )


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 2), ("0,1,2", 2), ("1", 1), ("GPU-8932f937", 1), ("", 0), ("-1", 0)]
)
def test_gpus_are_device_files_that_the_environment_shows(
    tmp_path: Path, visible: str | None, count: int
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / "dev" / name).touch()
    for bus in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
    assert count_gpus(tmp_path, visible) == count


def test_without_device_files_gpus_are_those_of_the_driver(tmp_path: Path) -> None:
    assert count_gpus(tmp_path, None) == 0
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert count_gpus(tmp_path, None) == 1


def test_a_taken_port_is_named_with_its_settings(tmp_path: Path, listening: int) -> None:
    (problem,) = found(a_service(tmp_path, port=listening), AMPLE)
    for part in (f"port {listening} on 127.0.0.1", "already in use", "http_options.port", "--port"):
        assert part in problem


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_port_taken_on_all_addresses_is_taken_on_each(host: str) -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        assert why_unbindable(host, listener.getsockname()[1]) == "Address already in use"


def test_a_port_that_several_processes_share_is_taken() -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert why_unbindable("127.0.0.1", listener.getsockname()[1]) == "Address already in use"


def test_an_address_of_another_host_is_named_with_its_setting(tmp_path: Path) -> None:
    (problem,) = found(a_service(tmp_path, host="203.0.113.7"), AMPLE)
    assert "203.0.113.7: Cannot assign requested address (http_options.host" in problem


def test_all_problems_are_told_at_once(tmp_path: Path, listening: int) -> None:
    assert len(found(a_service(tmp_path, port=listening), Host(0.5, 0))) == 3


def test_a_free_port_can_be_bound_and_looking_does_not_take_it() -> None:
    port = free_port()
    assert why_unbindable("127.0.0.1", port) is None
    assert why_unbindable("127.0.0.1", port) is None


def test_this_host_has_cpus_and_memory() -> None:
    host = Host.this()
    assert host.cpus >= 1
    assert host.free_bytes > 1 << 20
