"""What the machine is, which versions run on it, and what it can do at best in this run."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from encoder_pool.bench.device import Device, Repeats, timed
from encoder_pool.bench.floor import MATRIX_FLOPS
from encoder_pool.bench.results import Machine, Rates

_PACKAGES = (
    "encoder-pool",
    "numpy",
    "ray",
    "torch",
    "transformers",
    "triton",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
)
# Large enough to reach the best rate, small enough to take no time: (product side, bytes copied).
_SIZES = {"cuda": (8192, 1 << 31), "cpu": (512, 1 << 26)}


def this_machine(device: Device) -> Machine:
    """Where we are."""
    is_gpu = device.name == "cuda"
    return Machine(
        card=torch.cuda.get_device_name(device.torch_device) if is_gpu else None,
        driver=_driver() if is_gpu else None,
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
    )


def versions() -> Mapping[str, str]:
    """Of all that bears on speed, as far as it is installed; `cuda` is the one that torch was built with."""
    installed = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def measure_rates(device: Device, machine: Machine, repeats: Repeats) -> Rates:
    """Time a large product and a large copy."""
    side, num_bytes = _SIZES[device.name]
    with torch.inference_mode():
        product_tflops = 2 * side**3 / _product_ms(device, side, repeats) / 1e9
        copy_gb_s = 2 * num_bytes / _copy_ms(device, num_bytes, repeats) / 1e6
    known = MATRIX_FLOPS.get(machine.card or "")
    source = f"a product of {side} x {side} x {side} in this run" if known is None else f"{machine.card}"
    return Rates(product_tflops, side, product_tflops if known is None else known / 1e12, source, copy_gb_s)


def _product_ms(device: Device, side: int, repeats: Repeats) -> float:
    dtype = getattr(torch, device.dtype.value)
    left, right = (torch.randn(side, side, dtype=dtype, device=device.torch_device) for _ in range(2))
    return timed(device.time_ms, lambda: torch.mm(left, right), repeats).ms


def _copy_ms(device: Device, num_bytes: int, repeats: Repeats) -> float:
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device.torch_device)
    target = torch.empty_like(source)
    return timed(device.time_ms, lambda: target.copy_(source), repeats).ms


def _driver() -> str | None:
    """The NVIDIA driver's version, if its own tool is there to say."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=30)
    return answer.stdout.strip() or None


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
