"""Ports and a folder of a service's own for Ray Serve's HAProxy ingress, as the environment Serve reads.

Serve's defaults are the same for every service of a host, and it binds replicas and its fallback proxy with
SO_REUSEPORT: two services on the same numbers do not clash, they get each other's requests. So each claims
a block of ports, by a socket name that the kernel frees when the process ends, however it ends.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from encoder_pool.launch.host import why_unbindable

PORT_BLOCKS = range(20_000, 32_700, 100)
"""First ports of the blocks; below the ports that the kernel gives to outgoing connections."""
FALLBACK_HTTP, FALLBACK_GRPC, STATS, METRICS, FIRST_REPLICA = range(5)
"""What the first ports of a block are for; replicas have all the rest."""
PORTS_PROBED = 12


@contextmanager
def haproxy_environment(drain_s: float) -> Iterator[dict[str, str]]:
    """Variables that make Serve use HAProxy, on what is this service's for the length of the block.

    They are read when ray is imported, by every process of the cluster.

    drain_s  how long a stopping replica goes on to take requests, in seconds
    """
    # Directly under /tmp, whatever TMPDIR says: Serve appends 67 characters of its own to the folder, and
    # a socket's path may have 97 in all.
    with _port_block() as ports, tempfile.TemporaryDirectory(prefix="ep-", dir="/tmp") as folder:
        yield _environment(Path(folder), ports, drain_s)


@contextmanager
def _port_block() -> Iterator[range]:
    """A block of ports that no other service has claimed and nobody listens on."""
    for first in PORT_BLOCKS:
        ports = range(first, first + PORT_BLOCKS.step)
        with socket.socket(socket.AF_UNIX) as claim:
            if _claimed(claim, first) and not any(map(_is_taken, ports[:PORTS_PROBED])):
                yield ports
                return
    raise OSError(f"no block of free ports from {PORT_BLOCKS.start} to {PORT_BLOCKS.stop}")


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
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports[FALLBACK_HTTP]),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports[FALLBACK_GRPC]),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports[STATS]),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports[METRICS]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports[FIRST_REPLICA]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports[-1]),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(drain_s),
    }
