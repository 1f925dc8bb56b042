"""A running service is given another configuration, or has too many replicas: no request is lost by it.

`serve run` deploys the changed file, as Ray's own documentation says to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import pytest

from encoder_pool.launch.host import free_port
from tests.service.fault_table import FaultTable
from tests.service.load import Load
from tests.service.running import COMMAND, ROOT, Service, processes_of, started, wait_until
from tests.service.toys import application, service_file

pytestmark = [pytest.mark.service, pytest.mark.long]

WAIT_S = 90.0
SETTLE_S = 3.0
MIB = 1 << 20
PLACEMENT_GROUPS = """
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
table = ray.util.placement_group_table().values()
print(sum(group["state"] != "REMOVED" for group in table))
"""
STATUS = """
import ray
from ray import serve
ray.init(log_to_driver=False, logging_level="ERROR", namespace="serve")
print(serve.status().applications["single"].status.value)
"""


class Held(NamedTuple):
    """What a service has of the host."""

    processes: int
    ports: int
    placement_groups: int


class Changing:
    """A service whose file is changed while it runs."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service = service
        self._folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_ADDRESS": _address(service),
            "RAY_AUTH_MODE": "token",
        }

    def url(self, name: str) -> str:
        return f"{self.service.root}/{name}"

    def deploy(self, **changed: Any) -> None:
        file = service_file(self._folder, *applications(**changed))
        self._call([f"{COMMAND.with_name('serve')}", "run", "--non-blocking", f"{file}"])

    def replicas(self, name: str) -> set[int]:
        return {process.pid for process, line in self._family().items() if f"ServeReplica:{name}:" in line}

    def configured(self, name: str) -> Any:
        """What `/info` says of the configuration."""
        return self.service.info(self.url(name))["config"]

    def held(self) -> Held:
        # An idle worker of Ray's that has built an application goes by itself, or serves for the next.
        family = [process for process, line in self._family().items() if "ray::IDLE" not in line]
        ports = {port for process in family for port in _listening(process)}
        return Held(len(family), len(ports), int(self._run(PLACEMENT_GROUPS)))

    def settled(self) -> Held:
        """What is held once that no longer changes: Ray starts some workers late."""
        before = None
        while (now := self.held()) != before:
            before = now
            time.sleep(SETTLE_S)
        return now

    def wait_until_held(self, expected: Held) -> None:
        """Until that is all again. Fails with what is held instead."""
        deadline = time.monotonic() + WAIT_S
        while (now := self.held()) != expected:
            lines = sorted(line[:80] for line in self._family().values())
            assert time.monotonic() < deadline, f"{now}, not {expected}: {lines}"
            time.sleep(1)

    def single_status(self) -> str:
        """What Serve says of the application `single`."""
        return self._run(STATUS).strip()

    def rss_mib(self) -> float:
        return sum(map(_resident, self._family())) / MIB

    def _family(self) -> dict[psutil.Process, str]:
        return processes_of(self.service.process)

    def _run(self, code: str) -> str:
        return self._call([sys.executable, "-c", code])

    def _call(self, command: Sequence[str]) -> str:
        return subprocess.run(
            command,
            env=self._environment,
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        ).stdout


def _address(service: Service) -> str:
    """Where the service's own Ray cluster is."""
    mark = "--gcs-address="
    words = " ".join(processes_of(service.process).values()).split()
    (address,) = {word.removeprefix(mark) for word in words if word.startswith(mark)}
    return address


def _listening(process: psutil.Process) -> list[int]:
    """None of a process that has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        connections = process.net_connections("tcp")
        return [each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN]
    return []


def _resident(process: psutil.Process) -> int:
    """Nothing of a process that has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


def applications(**changed: Any) -> list[dict[str, Any]]:
    """One replica, two of them, and from one to two."""
    shrinking = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 0.5, "downscale_delay_s": 5}
    return [
        application("single", **changed),
        application("pair", scaling={"min_replicas": 2, "max_replicas": 2}, **changed),
        application("shrinking", scaling=shrinking),
    ]


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changing]:
    folder = tmp_path_factory.mktemp("rollout")
    port = free_port()
    file = service_file(folder, *applications())
    command = [f"{COMMAND}", "serve", f"{file}", "--port", f"{port}", "--drain-s", "0.1"]
    with started(command, port) as service:  # which prints what `serve run` complains of, later
        yield Changing(service, folder)


def test_a_changed_file_is_served_from_then_on_and_costs_no_request(
    changing: Changing, fault_table: FaultTable
) -> None:
    names = ("single", "pair")
    held, rss_mib = changing.settled(), changing.rss_mib()
    before = {name: changing.replicas(name) for name in names}
    assert [len(pids) for pids in before.values()] == [1, 2]
    mended_s: dict[str, float] = {}
    with Load(changing.url("single"), 4, 4) as single, Load(changing.url("pair"), 4, 4) as pair:
        loads = {"single": single, "pair": pair}
        wait_until(lambda: all(load.endings.total() > 20 for load in loads.values()), WAIT_S)
        began = time.monotonic()
        changing.deploy(queue={"max_requests": 77}, model={"aliases": ["plaything"]})

        def is_through(name: str) -> bool:
            now = changing.replicas(name)
            if len(now) != len(before[name]) or now & before[name] or not _is_ready(changing.url(name)):
                return False
            mended_s.setdefault(name, time.monotonic() - began)
            return True

        wait_until(lambda: sum(map(is_through, names)) == len(names), WAIT_S)
        then = {name: load.endings.total() for name, load in loads.items()}
        wait_until(
            lambda: all(load.endings.total() > then[name] + 20 for name, load in loads.items()), WAIT_S
        )
    for name, load in loads.items():
        assert set(load.endings) == {"rows", "rows, by the client"}
        config = changing.configured(name)
        assert (config["queue"]["max_requests"], config["model"]["aliases"]) == (77, ["plaything"])
        of = "a pool of one replica" if name == "single" else "a pool of two"
        fault_table.note(
            f"`serve run` of a changed file, {of}", load.endings.elements(), mended_s[name], load.longest_s
        )
    # Nothing of the old replicas stays: processes, their ports, their placement groups, their memory.
    changing.wait_until_held(held)
    wait_until(lambda: changing.rss_mib() < rss_mib + 64, WAIT_S, every_s=1)


def test_a_changed_file_that_cannot_work_leaves_all_as_it_was(
    changing: Changing, fault_table: FaultTable
) -> None:
    before = changing.replicas("single")
    config = changing.configured("single")
    with Load(changing.url("single"), 4, 4) as load:
        changing.deploy(ladder={"min": 9, "max": 8})
        wait_until(lambda: changing.single_status() == "DEPLOY_FAILED", WAIT_S)
        then = load.endings.total()
        wait_until(lambda: load.endings.total() > then + 20, WAIT_S)
    assert set(load.endings) == {"rows", "rows, by the client"}
    assert changing.replicas("single") == before
    assert changing.configured("single") == config
    fault_table.note("`serve run` of a changed file that cannot work", load.endings.elements())


def test_a_replica_that_is_taken_away_ends_what_it_has(changing: Changing, fault_table: FaultTable) -> None:
    name = "shrinking"
    with Load(changing.url(name), 1, 1) as little:
        with Load(changing.url(name), 40) as much:
            wait_until(lambda: len(changing.replicas(name)) == 2, WAIT_S)
            then = much.endings.total()
            wait_until(lambda: much.endings.total() > then + 100, WAIT_S)
        assert set(much.endings) == {"rows"}
        wait_until(lambda: len(changing.replicas(name)) == 1, WAIT_S)
        then = little.endings.total()
        wait_until(lambda: little.endings.total() > then + 10, WAIT_S)
    assert set(little.endings) == {"rows", "rows, by the client"}
    fault_table.note(
        "one replica of two is taken away, since there is less to do",
        little.endings.elements(),
        None,
        little.longest_s,
    )


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False
