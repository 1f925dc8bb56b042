"""Whether this host can run the service. Looks, and starts nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from encoder_pool.auth import load_keys
from encoder_pool.config import AuthConfig
from encoder_pool.launch.file import ServiceFile
from encoder_pool.launch.plan import PoolPlan, reserved_cpus, reserved_gpus

PROCESS_BYTES = 700 * 1024 * 1024
"""A replica and its shard, or one more shard, without weights and ring: Python, Ray, torch, transformers."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the host offers."""

    cpus: float
    free_bytes: int
    gpus: int = 0

    @staticmethod
    def this() -> Host:
        """The host we run on."""
        gpus = count_gpus(Path("/"), os.environ.get("CUDA_VISIBLE_DEVICES"))
        return Host(float(os.cpu_count() or 1), psutil.virtual_memory().available, gpus)


def problems(service: ServiceFile, plans: Sequence[PoolPlan], host: Host) -> list[str]:
    """What stands in the way of starting; empty if nothing does."""
    found = early_problems(service, host)
    needed = sum(plan.host_bytes + plan.num_shards * PROCESS_BYTES for plan in plans)
    if needed > host.free_bytes:
        found.append(f"about {needed >> 20} MiB of memory are needed, {host.free_bytes >> 20} MiB are free")
    return found


def early_problems(service: ServiceFile, host: Host) -> list[str]:
    """Those of the problems that the file alone tells, before any weights are there."""
    found = []
    cpus = sum(reserved_cpus(application.config) for application in service.applications)
    if cpus > host.cpus + 1e-9:
        found.append(
            f"the applications reserve {cpus:g} CPUs (replica.cpus + shard.cpus a shard, times "
            f"scaling.min_replicas); this host has {host.cpus:g}"
        )
    configs = [application.config for application in service.applications]
    gpus = sum(map(reserved_gpus, configs))
    if gpus > host.gpus + 1e-9:
        found.append(_too_few_gpus(gpus, host.gpus))
    found += [problem for config in configs if (problem := _why_no_keys(config.auth))]
    if reason := why_unbindable(service.host, service.port):
        found.append(
            f"port {service.port} on {service.host}: {reason} "
            "(http_options.host, http_options.port, or --port to choose another)"
        )
    return found


def _why_no_keys(auth: AuthConfig) -> str | None:
    try:
        load_keys(auth)
    except ValueError as error:
        return str(error)
    return None


def _too_few_gpus(needed: float, there: int) -> str:
    reserved = f"the applications reserve {needed:g} GPUs (shard.gpus a shard, times scaling.min_replicas)"
    if there:
        return f"{reserved}; this host has {there}"
    return (
        f"{reserved}; this host has none that its NVIDIA driver shows (CUDA_VISIBLE_DEVICES included). Start "
        "it where there is a GPU, or serve a file with model.device cpu: serve_configs/qwen-tiny.yaml is "
        "serve_configs/qwen.yaml in small"
    )


def count_gpus(root: Path, visible: str | None) -> int:
    """NVIDIA GPUs that a process here may use, as the driver's files say; without importing torch.

    A container sees the device files of its own GPUs only, but the driver's list of all of the host.

    visible  as CUDA_VISIBLE_DEVICES: what of them is shown, None for all
    """
    devices = sum(path.name.removeprefix("nvidia").isdigit() for path in (root / "dev").glob("nvidia*"))
    there = devices or len(list((root / "proc/driver/nvidia/gpus").glob("*")))
    if visible is None:
        return there
    return min(there, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))


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
