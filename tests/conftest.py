from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.running import Service, making_serve

ROOT = Path(__file__).parents[1]
MEDIA = ROOT / "encoder_pool" / "demo" / "media"


@pytest.fixture(scope="session")
def demo() -> Iterator[Service]:
    """The default service, started once for all tests that only ask it things."""
    with making_serve() as service:
        yield service


@pytest.fixture(scope="session")
def qwen_tiny() -> Iterator[Service]:
    """The small grid tower of the README, likewise."""
    with making_serve("serve_configs/qwen-tiny.yaml") as service:
        yield service


@pytest.fixture
def photo() -> bytes:
    return (MEDIA / "cat.jpg").read_bytes()


@pytest.fixture
def speech() -> bytes:
    return (MEDIA / "speech.flac").read_bytes()
