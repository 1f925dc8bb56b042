"""Starts the service of a file on a Ray cluster of its own, waits until it serves, and stops it.

The environment for HAProxy must be set before this module is imported, because Ray reads it on import. With
RAY_ADDRESS set the service goes to that cluster instead.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
from pydantic import ValidationError
from ray import serve
from ray.exceptions import GetTimeoutError, RayError
from ray.serve.config import ProxyLocation
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, ServeDeploySchema

from encoder_pool.launch.errors import ConfigError, StartFailed
from encoder_pool.launch.file import ServiceFile, explain
from encoder_pool.pool.messages import ShardStatus
from encoder_pool.pool.ray_shard import CONTROL, NAMESPACE
from encoder_pool.weights import Progress

Show = Callable[[], contextlib.AbstractContextManager[Progress]]
"""Opens a progress display for the length of a `with` block."""

POLL_S = 0.2
OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Nearly Ray's minimum: media and embeddings never pass through the object store."""
FAILED = {ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY}
START_ERROR = "failed to start with exception"
"""Of a deployment's message while Serve retries a replica whose constructor raised; no field says it."""
TAIL_LINES = 6
"""Of a deployment's message, which ends with a traceback."""


@contextlib.contextmanager
def running(service: ServiceFile, show: Show, start_timeout_s: float) -> Iterator[None]:
    """The service, serving, for the length of the block. Raises ConfigError, StartFailed."""
    schema = _schema(service)
    try:
        with show() as progress:
            progress("starting Ray", None)
            with _own_sigterm():
                _start_ray()
            progress("starting Ray Serve", None)
            _deploy(schema)
            _wait(service, progress, start_timeout_s)
        yield
    finally:
        with show() as progress, _uninterrupted():
            progress("stopping", None)
            _stop()


def _stop() -> None:
    if not ray.is_initialized():
        return  # interrupted early: asked to shut down, Serve would start a cluster to do it on
    # Ray prints there that the controller, which it has just killed, is dead.
    with contextlib.redirect_stdout(io.StringIO()):
        serve.shutdown()
        ray.shutdown()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Stop in peace: HAProxy and replicas outlive a shutdown that a second Ctrl-C cuts short."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the process's handler: Ray puts one in its place that aborts the process."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _start_ray() -> None:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        return
    ray.init(
        address="local",
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )


def _schema(service: ServiceFile) -> ServeDeploySchema:
    """The file as Serve reads it: what `read_service_file` passed unseen is checked here."""
    try:
        return ServeDeploySchema.model_validate(service.document)
    except ValidationError as error:
        raise ConfigError(explain(error, service.path)) from error


def _deploy(schema: ServeDeploySchema) -> None:
    """Hand Serve the whole file, as `serve run` does; the public API takes only built applications."""
    location = ProxyLocation(schema.proxy_location)
    serve.start(proxy_location=location, http_options=schema.http_options.model_dump())
    client = _get_global_client()
    assert client is not None, "serve.start has made one"
    client.deploy_apps(schema, _blocking=False)


def _wait(service: ServiceFile, progress: Progress, start_timeout_s: float) -> None:
    deadline = time.monotonic() + start_timeout_s
    names = [application.name for application in service.applications]
    while True:
        status = serve.status().applications
        for name in names:
            if name in status and _has_failed(status[name]):
                raise StartFailed(_failure(name, status[name]))
        ready = [
            name for name in names if name in status and status[name].status == ApplicationStatus.RUNNING
        ]
        if len(ready) == len(names):
            return
        if time.monotonic() > deadline:
            missing = ", ".join(name for name in names if name not in ready)
            raise StartFailed(f"not serving after {start_timeout_s:g} s: {missing}; logs: {_log_folder()}")
        shards = _shards()
        fraction = (len(ready) + sum(shard.fraction for shard in shards.values())) / (2 * len(names))
        progress(_line(shards), min(fraction, 1.0))
        time.sleep(POLL_S)


def _has_failed(application: ApplicationStatusOverview) -> bool:
    """Also while Serve still retries: what a constructor raises, it raises again."""
    return application.status in FAILED or any(
        START_ERROR in deployment.message for deployment in application.deployments.values()
    )


def _failure(name: str, application: ApplicationStatusOverview) -> str:
    """Why an application does not start: the error first, for it is the last line of a traceback."""
    messages = [deployment.message for deployment in application.deployments.values() if deployment.message]
    tails = [message.rstrip().splitlines()[-TAIL_LINES:] for message in messages or [application.message]]
    lines = [line.strip() for tail in tails for line in reversed(tail) if line.strip()]
    return "\n  ".join([f"application '{name}' does not start:", *lines, f"logs: {_log_folder()}"])


def _log_folder() -> str:
    """Where Ray keeps this cluster's logs; no public function tells."""
    node: Any = ray._private.worker._global_node
    return str(node.get_logs_dir_path())


def _shards() -> dict[str, ShardStatus]:
    """By application, what that of its shards that are there already is doing which is least far."""
    shards: dict[str, ShardStatus] = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE:
            with contextlib.suppress(RayError, ValueError, GetTimeoutError):
                handle: Any = ray.get_actor(actor["name"], NAMESPACE)
                status = ray.get(handle.status.options(concurrency_group=CONTROL).remote(), timeout=1.0)
                name = str(actor["name"]).partition("/")[0]
                shards[name] = min(shards.get(name, status), status, key=lambda each: each.progress)
    return shards


def _line(shards: dict[str, ShardStatus]) -> str:
    if not shards:
        return "starting replicas"
    return ", ".join(f"{name}: {shard.phase}" for name, shard in sorted(shards.items()))
