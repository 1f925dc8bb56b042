"""From a file to its running service, for every command that starts one: host check, ports, HAProxy, Ray.

Ray is imported in here and not with the module: it reads the environment on import.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from encoder_pool.launch.errors import HostUnfit
from encoder_pool.launch.file import ServiceFile
from encoder_pool.launch.haproxy import haproxy_environment
from encoder_pool.launch.host import Host, early_problems, problems
from encoder_pool.launch.plan import PoolPlan, plan_service
from encoder_pool.launch.show import progress_bar


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How a service is started.

    drain_s          how long a stopping replica goes on to take requests
    start_timeout_s  when starting is given up
    """

    has_haproxy: bool = True
    drain_s: float = 2.0
    start_timeout_s: float = 300.0


def stop_on_signals() -> None:
    """SIGTERM stops like Ctrl-C, and SIGINT too where a shell started us in the background, ignoring it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def check_early(service: ServiceFile) -> None:
    """Raise HostUnfit for what the file alone tells, before any weights are there."""
    _require(early_problems(service, Host.this()))


@contextmanager
def started(service: ServiceFile, options: StartOptions) -> Iterator[None]:
    """The service, running, for the length of the block. Raises HostUnfit, ConfigError and StartFailed."""
    _require(problems(service, plans_of(service), Host.this()))
    with ExitStack() as ports:
        if options.has_haproxy:
            os.environ.update(ports.enter_context(haproxy_environment(options.drain_s)))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        from encoder_pool.launch.service import running

        with running(service, progress_bar, options.start_timeout_s):
            yield


def plans_of(service: ServiceFile) -> list[PoolPlan]:
    """The plan of every application; brings their weights."""
    with progress_bar() as progress:
        return plan_service(service, progress)


def _require(found: Sequence[str]) -> None:
    if found:
        raise HostUnfit("\n".join(found))
