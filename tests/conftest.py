import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.fault_table import FaultTable
from tests.service.running import Service, making_serve, serve_running

ROOT = Path(__file__).parents[1]
MEDIA = ROOT / "encoder_pool" / "demo" / "media"
SHARED = {"demo", "qwen_tiny", "several"}
"""Fixtures that are services."""

# A shell that starts the tests in the background has them ignore SIGINT, and so would all that they start:
# `serve run` could not be stopped as Ctrl-C does.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-table", type=Path, help="write what faults cost to this page")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that share a service come last: an idle one, which stays, takes a share of the cores."""
    items.sort(key=_lateness)


def _lateness(item: pytest.Item) -> int:
    is_shared = not SHARED.isdisjoint(getattr(item, "fixturenames", ()))
    return 2 if is_shared else item.get_closest_marker("service") is not None


@pytest.fixture(scope="session", autouse=True)
def _measured_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests measure is neither kept for services nor taken from them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENCODER_POOL_MEASURED", str(tmp_path_factory.mktemp("measured")))
        yield


@pytest.fixture(scope="session")
def demo() -> Iterator[Service]:
    """The default service, started once for all tests that only ask it things."""
    with making_serve() as service:
        yield service


@pytest.fixture(scope="session")
def qwen_tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The small grid tower of the README, likewise, by plain `serve run`."""
    file = ROOT / "serve_configs" / "qwen-tiny.yaml"
    with serve_running(file, tmp_path_factory.mktemp("serve-run"), "", has_haproxy=True) as service:
        yield service


@pytest.fixture(scope="session")
def fault_table(pytestconfig: pytest.Config) -> Iterator[FaultTable]:
    """What the tests have seen of faults; a page of the docs if asked for."""
    table = FaultTable()
    yield table
    path: Path | None = pytestconfig.getoption("--fault-table")
    if path is not None:
        table.write(path)


@pytest.fixture
def photo() -> bytes:
    return (MEDIA / "cat.jpg").read_bytes()


@pytest.fixture
def speech() -> bytes:
    return (MEDIA / "speech.flac").read_bytes()
