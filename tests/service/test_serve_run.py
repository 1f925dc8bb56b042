"""Plain `serve run FILE`, as Ray's own documentation says to, with and without HAProxy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
import pytest

from encoder_pool.client import EncoderClient
from encoder_pool.launch.haproxy import haproxy_environment
from encoder_pool.launch.host import free_port
from tests.service.running import ROOT, START_S, STOP_S, processes_of, wait_until

pytestmark = pytest.mark.service

FOLDER = ROOT / "serve_configs"


class Case(NamedTuple):
    """A file, where its images are encoded, with what shape, and whether HAProxy is asked for."""

    file: str
    prefix: str
    shape: tuple[int, int]
    has_haproxy: bool


CASES = (
    Case("demo.yaml", "/image", (257, 384), has_haproxy=False),
    Case("qwen-tiny.yaml", "", (176, 256), has_haproxy=True),
)


def test_every_file_that_needs_no_gpu_is_served() -> None:
    files = [path.name for path in FOLDER.glob("*.yaml") if "device: cuda" not in path.read_text()]
    assert {case.file for case in CASES} == set(files)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_serve_run_serves_the_file(case: Case, tmp_path: Path, photo: bytes) -> None:
    port = free_port()
    file = tmp_path / case.file
    file.write_text((FOLDER / case.file).read_text().replace("port: 8000", f"port: {port}"))
    url = f"http://127.0.0.1:{port}{case.prefix}"
    with (
        haproxy_environment(drain_s=0.1) as haproxy,
        serve_run(file, haproxy if case.has_haproxy else {}) as process,
    ):
        wait_until(lambda: is_ready(url, process), START_S)
        family = processes_of(process)
        assert any("/haproxy " in line for line in family.values()) == case.has_haproxy
        with EncoderClient(url) as client:
            assert client.encode(photo)[0].embedding.shape == case.shape
    assert not psutil.wait_procs(family, timeout=10)[1]


@contextmanager
def serve_run(file: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [Path(sys.executable).with_name("serve"), "run", str(file)],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": "local", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=STOP_S)


def is_ready(url: str, process: subprocess.Popen[str]) -> bool:
    assert process.poll() is None, process.communicate()[0]
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False
