"""`encoder-pool bench scaling`: a real service on this host, under a load that rises and falls.

The service is `encoder-pool serve` in a process of its own, with HAProxy; its tower is `paced`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml
from pydantic import TypeAdapter, ValidationError

from encoder_pool.bench.load import Phase, Second, drive, quantile
from encoder_pool.bench.results import Machine
from encoder_pool.launch.host import free_port

FULL = (Phase(300, 30), Phase(2500, 60), Phase(300, 90))
QUICK = (Phase(300, 5), Phase(2500, 20), Phase(300, 30))
_SCALING = {
    "min_replicas": 1,
    "max_replicas": 4,
    "target_drain_s": 1.0,
    "upscale_delay_s": 1.0,
    "downscale_delay_s": 15.0,
}
_SERVE = "import sys; from encoder_pool.cli import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class ScalingResults:
    """A run. `scaling` is the section of the configuration."""

    machine: Machine
    versions: Mapping[str, str]
    command: str
    date: str
    scaling: Mapping[str, float]
    phases: tuple[Phase, ...]
    seconds: tuple[Second, ...]

    @property
    def lost(self) -> int:
        """Requests that ended without embeddings."""
        return sum(second.lost for second in self.seconds)

    def first_s(self, since_s: float, holds: Callable[[Second], bool]) -> float | None:
        """Seconds from then until this held for the first time; None if it never did."""
        after = (second.second + 1 - since_s for second in self.seconds[int(since_s) :] if holds(second))
        return next(after, None)


_RESULTS = TypeAdapter(ScalingResults)


def read_scaling(path: Path) -> ScalingResults:
    """The results in a file. Raises ValueError if it holds none, OSError if it cannot be read."""
    try:
        return _RESULTS.validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path} holds no results of encoder-pool bench scaling") from error


def write_scaling(results: ScalingResults, path: Path) -> None:
    """Put the results in the place of the file."""
    path.write_bytes(_RESULTS.dump_json(results, indent=1) + b"\n")


def bench_scaling(phases: Sequence[Phase], command: str, say: Callable[[str, float], None]) -> ScalingResults:
    """Start the service, send the load, stop it. Raises RuntimeError if it does not start."""
    from encoder_pool.bench.device import open_device
    from encoder_pool.bench.machine import this_machine, versions

    say("starting a service", 0.0)
    with _service() as (url, count_started):
        seconds = asyncio.run(drive(url, phases, count_started, say))
    date = datetime.now(UTC).date().isoformat()
    machine = this_machine(open_device("cpu"))
    return ScalingResults(machine, versions(), command, date, _SCALING, tuple(phases), seconds)


def summary(results: ScalingResults) -> Iterator[str]:
    """What to say of a run, a line each."""
    calm_s, burst_s = results.phases[0].seconds, results.phases[1].seconds
    most = max(second.replicas for second in results.seconds)
    yield f"{sum(second.offered for second in results.seconds)} tokens offered, {results.lost} requests lost"
    decided = results.first_s(calm_s, lambda second: second.started > 1)
    served = results.first_s(calm_s, lambda second: second.replicas > 1)
    after = calm_s + burst_s
    least = min(second.started for second in results.seconds[int(after) :])
    left = results.first_s(after, lambda second: second.started == least)
    yield (
        f"another replica was started {_seconds(decided)} after the burst began, "
        f"and served after {_seconds(served)}"
    )
    yield f"at most {most} served; {_seconds(left)} after the burst had ended {least} of them were left"
    begin = 0.0
    for name, phase in zip(("calm", "burst", "calm again"), results.phases, strict=True):
        end = begin + phase.seconds
        within = [second for second in results.seconds if begin <= second.second < end]
        p50 = quantile([second.p50_ms for second in within if second.p50_ms is not None], 0.5)
        p99 = max((second.p99_ms for second in within if second.p99_ms is not None), default=None)
        yield f"{name}: median of the seconds' p50 {p50} ms, the worst second's p99 {p99} ms"
        begin = end


def _seconds(number: float | None) -> str:
    return "never" if number is None else f"{number:g} s"


@contextmanager
def _service() -> Iterator[tuple[str, Callable[[], int]]]:
    """The base URL of a service that runs for the length of the block, and what counts its replicas."""
    # However this process is asked to end, also where a shell has it ignore SIGINT: the service ends first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        file = Path(folder) / "scaling.yaml"
        file.write_text(yaml.safe_dump(_document(Path(folder))))
        (Path(folder) / "config.json").write_text("{}")
        command = [sys.executable, "-c", _SERVE, "serve", str(file), "--port", str(port), "--drain-s", "2"]
        log = Path(folder) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
        try:
            assert process.stdout is not None
            if not any(line.startswith("serving") for line in process.stdout):
                raise RuntimeError(f"the service does not start:\n{log.read_text()}")
            yield f"http://127.0.0.1:{port}", partial(_replicas_under, psutil.Process(process.pid))
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGINT)
            process.communicate()


def _replicas_under(process: psutil.Process) -> int:
    """Replicas among all that the process has started, directly or not."""
    count = 0
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            count += any("ServeReplica:" in word for word in child.cmdline())
    return count


def _document(folder: Path) -> dict[str, Any]:
    model = {"name": "paced", "adapter": "encoder_pool.bench.paced:PacedAdapter", "checkpoint": str(folder)}
    arguments = {
        "model": model,
        "ladder": {"min": 64, "max": 512},
        "cache": {"max_bytes": 0},
        # About four seconds of work: what is beyond is told to come again, and then finds other replicas.
        "queue": {"max_tokens": 4096},
        "replica": {"cpus": 0.1},
        "shard": {"cpus": 0.1},
        "scaling": _SCALING,
    }
    application = {
        "name": "paced",
        "route_prefix": "/",
        "import_path": "encoder_pool.builder:build_app",
        "args": arguments,
    }
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1"},
        "applications": [application],
    }
