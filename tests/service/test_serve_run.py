"""Plain `serve run FILE`, as Ray's own documentation says to, with and without HAProxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoder_pool.client import EncoderClient
from tests.service.running import ROOT, Service, processes_of, serve_running

pytestmark = pytest.mark.service

FOLDER = ROOT / "serve_configs"


def has_haproxy(service: Service) -> bool:
    return any("/haproxy " in line for line in processes_of(service.process).values())


def test_every_file_that_needs_no_gpu_is_served_here() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml") if "device: cuda" not in path.read_text()}
    assert files == {"demo.yaml", "qwen-tiny.yaml"}


def test_serve_run_serves_the_default_through_its_own_proxy(tmp_path: Path, photo: bytes) -> None:
    with serve_running(FOLDER / "demo.yaml", tmp_path, "/image", has_haproxy=False) as service:
        assert not has_haproxy(service)
        with EncoderClient(service.image) as client:
            assert client.encode(photo)[0].embedding.shape == (257, 384)


def test_serve_run_serves_a_grid_tower_through_haproxy(qwen_tiny: Service, photo: bytes) -> None:
    assert has_haproxy(qwen_tiny)
    with EncoderClient(qwen_tiny.root) as client:
        assert client.encode(photo)[0].embedding.shape == (176, 256)
