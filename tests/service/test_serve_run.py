"""Plain `serve run FILE`, as Ray's own documentation says to, with and without HAProxy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from encoder_pool.client import EncoderClient
from encoder_pool.launch.haproxy import haproxy_environment
from encoder_pool.launch.host import free_port
from tests.service.running import ROOT, START_S, STOP_S, family_of, wait_until

pytestmark = pytest.mark.service

CONFIGS = sorted((ROOT / "serve_configs").glob("*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("has_haproxy", [False, True], ids=["own proxy", "haproxy"])
def test_serve_run_serves_the_file(config: Path, has_haproxy: bool, tmp_path: Path, photo: bytes) -> None:
    port = free_port()
    file = tmp_path / config.name
    file.write_text(config.read_text().replace("port: 8000", f"port: {port}"))
    with (
        haproxy_environment(drain_s=0.1) as haproxy,
        serve_run(file, haproxy if has_haproxy else {}) as process,
    ):
        wait_until(lambda: is_ready(f"http://127.0.0.1:{port}/image", process), START_S)
        family = family_of(process)
        assert any("/haproxy " in line for line in family.values()) == has_haproxy
        with EncoderClient(f"http://127.0.0.1:{port}/image") as client:
            assert client.encode(photo)[0].embedding.shape == (257, 384)
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
