from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from encoder_pool.launch.file import ServiceFile, read_service_file
from encoder_pool.launch.host import (
    PORTS_PROBED,
    PROCESS_BYTES,
    REPLICA_PORTS,
    Host,
    free_port,
    haproxy_environment,
    problems,
    replica_ports,
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
        "the applications reserve 3 CPUs (replica.cpus + shard.cpus, times scaling.min_replicas); "
        "this host has 2.9"
    )


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


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ports that cannot be bound on a host where all others can, whoever else runs on this one."""
    ports: set[int] = set()

    def why(host: str, port: int) -> str | None:
        return "taken" if port in ports else None

    monkeypatch.setattr("encoder_pool.launch.host.why_unbindable", why)
    return ports


@pytest.mark.usefixtures("taken")
def test_services_on_neighbouring_ports_get_ranges_of_their_own() -> None:
    ranges = [replica_ports(port) for port in range(8000, 8010)]
    assert all(len(each) == REPLICA_PORTS.step for each in ranges)
    assert len({port for each in ranges for port in each}) == 10 * REPLICA_PORTS.step


@pytest.mark.parametrize("offset", [0, PORTS_PROBED - 1])
def test_a_range_with_a_taken_port_is_skipped(offset: int) -> None:
    free = replica_ports(8000)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free.start + offset))
        listener.listen()
        other = replica_ports(8000)
    assert not set(free) & set(other)
    assert other.start in REPLICA_PORTS


def test_the_search_for_a_range_goes_round_at_the_end_and_ends(taken: set[int]) -> None:
    last = len(REPLICA_PORTS) - 1
    taken.add(REPLICA_PORTS[last])
    assert replica_ports(last).start == REPLICA_PORTS[0]
    taken.update(REPLICA_PORTS)
    with pytest.raises(OSError, match="no range of free ports"):
        replica_ports(last)


@pytest.mark.usefixtures("taken")
def test_each_service_has_haproxy_ports_and_files_of_its_own(tmp_path: Path) -> None:
    one = haproxy_environment(tmp_path / "one", 8000, 2.0)
    two = haproxy_environment(tmp_path / "two", 8001, 2.0)
    shared = {name for name in one if one[name] == two[name]}
    assert shared == {"RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"}


def test_haproxys_files_lie_in_the_services_folder(tmp_path: Path) -> None:
    environment = haproxy_environment(tmp_path, 8000, 2.0)
    paths = [value for value in environment.values() if value.startswith("/")]
    assert len(paths) == 4
    assert all(Path(path) == tmp_path or Path(path).parent == tmp_path for path in paths)


@pytest.mark.usefixtures("taken")
def test_haproxys_replicas_are_in_the_services_range(tmp_path: Path) -> None:
    environment = haproxy_environment(tmp_path, 8000, 0.5)
    first = int(environment["RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT"])
    last = int(environment["RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT"])
    assert range(first, last + 1) == replica_ports(8000)
    assert environment["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] == "0.5"


def test_ray_serve_knows_every_variable() -> None:
    """A variable that Ray renames would be ignored, and services would share their ports again."""
    import importlib.util

    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.submodule_search_locations
    constants = Path(spec.submodule_search_locations[0]) / "serve" / "_private" / "constants.py"
    text = constants.read_text(encoding="utf-8")
    for name in haproxy_environment(Path("/nowhere"), 8000, 2.0):
        assert f'"{name}"' in text, name
