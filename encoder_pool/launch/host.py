"""Whether this host can run the service, and the environment that Ray Serve's HAProxy needs on it.

Looks, and starts nothing. HAProxy's ports and its folder of sockets are per host: each service gets its
own, so that several run side by side.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from encoder_pool.launch.file import ServiceFile
from encoder_pool.launch.plan import PoolPlan

PROCESS_BYTES = 700 * 1024 * 1024
"""A replica and its shard without weights and ring: Python, Ray, torch, transformers."""
REPLICA_PORTS = range(30_000, 60_000, 100)
"""Serve binds replicas' ports with SO_REUSEPORT: two services in one range would mix their requests."""
PORTS_PROBED = 8


@dataclass(frozen=True, slots=True)
class Host:
    """What the host offers."""

    cpus: float
    free_bytes: int

    @staticmethod
    def this() -> Host:
        """The host we run on."""
        return Host(float(os.cpu_count() or 1), psutil.virtual_memory().available)


def problems(service: ServiceFile, plans: Sequence[PoolPlan], host: Host) -> list[str]:
    """What stands in the way of starting; empty if nothing does."""
    found = []
    cpus = sum(plan.cpus for plan in plans)
    if cpus > host.cpus + 1e-9:
        found.append(
            f"the applications reserve {cpus:g} CPUs (replica.cpus + shard.cpus, times "
            f"scaling.min_replicas); this host has {host.cpus:g}"
        )
    needed = sum(plan.host_bytes + plan.num_replicas * PROCESS_BYTES for plan in plans)
    if needed > host.free_bytes:
        found.append(f"about {needed >> 20} MiB of memory are needed, {host.free_bytes >> 20} MiB are free")
    if reason := why_unbindable(service.host, service.port):
        found.append(
            f"port {service.port} on {service.host}: {reason} "
            "(http_options.host, http_options.port, or --port to choose another)"
        )
    return found


def why_unbindable(host: str, port: int) -> str | None:
    """Why the TCP port cannot be bound now, in the system's words; None if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def free_port() -> int:
    """A TCP port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def replica_ports(http_port: int) -> range:
    """A range of free ports for the replicas, different for services on different HTTP ports."""
    first = http_port % len(REPLICA_PORTS)
    for index in (*range(first, len(REPLICA_PORTS)), *range(first)):
        base = REPLICA_PORTS[index]
        if not any(why_unbindable("127.0.0.1", port) for port in range(base, base + PORTS_PROBED)):
            return range(base, base + REPLICA_PORTS.step)
    raise OSError("no range of free ports for Serve's replicas")


@contextmanager
def haproxy_folder() -> Iterator[Path]:
    """A folder for HAProxy's sockets for the length of the block.

    Directly under /tmp, whatever TMPDIR says: Serve appends 67 characters of its own, and a socket's path
    may have 97 in all.
    """
    with tempfile.TemporaryDirectory(prefix="ep-", dir="/tmp") as folder:
        yield Path(folder)


def haproxy_environment(folder: Path, http_port: int, drain_s: float) -> dict[str, str]:
    """Variables that make Serve use its HAProxy ingress, with ports and a folder of this service's own.

    They are read when ray is imported, by every process of the cluster.
    """
    ports = replica_ports(http_port)
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports.start),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports.stop - 1),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(drain_s),
    }
