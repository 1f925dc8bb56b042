"""A service in a process of its own, as a user starts it: `encoder-pool serve FILE`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from encoder_pool.launch.haproxy import haproxy_environment
from encoder_pool.launch.host import free_port

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("encoder-pool")
KEY = "a-key-of-the-tests"
"""What the application `bulky` wants; the others let everybody in."""
START_S = 120.0
STOP_S = 60.0


@dataclass(frozen=True)
class Service:
    """A running service, the process that started it, and the lines that this printed."""

    port: int
    process: subprocess.Popen[str]
    lines: list[str]

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def image(self) -> str:
        return f"{self.root}/image"

    @property
    def audio(self) -> str:
        return f"{self.root}/audio"

    def info(self, url: str) -> dict[str, Any]:
        reply = httpx.get(f"{url}/info", timeout=30, headers={"authorization": f"Bearer {KEY}"})
        reply.raise_for_status()
        document: dict[str, Any] = reply.json()
        return document

    def shard_pid(self, url: str) -> int:
        return int(self.info(url)["workers"][0]["pid"])


@contextmanager
def serving(file: Path) -> Iterator[Service]:
    """The service of the file on a free port, until it is asked to end, as a supervisor asks."""
    port = free_port()
    with started([COMMAND, "serve", file, "--port", str(port), "--drain-s", "0.1"], port) as service:
        yield service
        output = end(service.process, service.process.terminate)
        # Ray tells of workers that a test has killed.
        lines = [line for line in output.splitlines() if "(raylet)" not in line]
        assert (service.process.returncode, lines) == (0, []), (service.process.returncode, lines)


@contextmanager
def making_serve() -> Iterator[Service]:
    """The default service as `make serve` starts it and Ctrl-C ends it, in the environment of the tests."""
    port = free_port()
    with started(["make", "serve", f"PORT={port}", f"VENV={COMMAND.parents[1]}"], port) as service:
        yield service


@contextmanager
def serve_running(
    file: Path, folder: Path, prefix: str, has_haproxy: bool, start_s: float = START_S
) -> Iterator[Service]:
    """What plain `serve run` makes of a copy of the file, as Ray's own documentation says to.

    folder  for the copy and for what Ray prints
    prefix  route of an application of the file
    """
    port = free_port()
    copy = folder / file.name
    copy.write_text(file.read_text().replace("port: 8000", f"port: {port}"))
    with haproxy_environment(drain_s=0.1) as haproxy, (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [COMMAND.with_name("serve"), "run", str(copy)],
            cwd=ROOT,
            env={**os.environ, "RAY_ADDRESS": "local", **(haproxy if has_haproxy else {})},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        service = Service(port, process, [])
        try:
            wait_until(lambda: _is_ready(service, prefix), start_s)
            yield service
        finally:
            end(process, lambda: process.send_signal(signal.SIGINT))


def _is_ready(service: Service, prefix: str) -> bool:
    assert service.process.poll() is None, "serve run has ended"
    try:
        return httpx.get(f"{service.root}{prefix}/ready").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def started(command: Sequence[str | Path], port: int) -> Iterator[Service]:
    """The service that the command starts, until the block ends."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield Service(port, process, _lines_until_serving(process))
    finally:
        if process.poll() is None:
            end(process, lambda: os.killpg(process.pid, signal.SIGINT))


def _lines_until_serving(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("serving"):
            return lines
    raise AssertionError(f"the service did not start, status {process.wait()}:\n{''.join(lines)}")


def processes_of(process: subprocess.Popen[str]) -> dict[psutil.Process, str]:
    """The command line of every process that it has started, directly or not, and that is still there."""
    family = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            family[child] = " ".join(child.cmdline())
    return family


def end(process: subprocess.Popen[str], ask: Callable[[], None]) -> str:
    """Ask the service to end, and see that it and its whole family do. What it printed meanwhile."""
    family = processes_of(process)
    ask()
    output, _ = process.communicate(timeout=STOP_S)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive, f"left behind: {[family[child] for child in alive]}"
    return output


def wait_until(condition: Any, timeout_s: float, every_s: float = 0.1) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so after {timeout_s} s"
        time.sleep(every_s)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
