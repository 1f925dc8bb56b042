"""Whether this host can run the service. Looks, and starts nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from encoder_pool.launch.file import ServiceFile
from encoder_pool.launch.plan import PoolPlan, reserved_cpus

PROCESS_BYTES = 700 * 1024 * 1024
"""A replica and its shard without weights and ring: Python, Ray, torch, transformers."""


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
    found = early_problems(service, host)
    needed = sum(plan.host_bytes + plan.num_replicas * PROCESS_BYTES for plan in plans)
    if needed > host.free_bytes:
        found.append(f"about {needed >> 20} MiB of memory are needed, {host.free_bytes >> 20} MiB are free")
    return found


def early_problems(service: ServiceFile, host: Host) -> list[str]:
    """Those of the problems that the file alone tells, before any weights are there."""
    found = []
    cpus = sum(reserved_cpus(application.config) for application in service.applications)
    if cpus > host.cpus + 1e-9:
        found.append(
            f"the applications reserve {cpus:g} CPUs (replica.cpus + shard.cpus, times "
            f"scaling.min_replicas); this host has {host.cpus:g}"
        )
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
