"""The service that is measured: one application of a file, without cache or autoscaling, on its own port.

A cache would answer what was sent before, and photos are sent again and again; with the file's least
replicas, one at least, it is known how many towers they are compared with; and there is room to share every
reply. What else the file says stays as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml

from encoder_pool.bench.service.load import Target
from encoder_pool.core import Modality
from encoder_pool.launch.file import Application, ServiceFile, read_service_file
from encoder_pool.towers.adapter import adapter_class

INFO_TIMEOUT_S = 30.0
SHARED_BYTES = 8 << 30
"""Room for as many replies as are in flight; nothing is reserved for it."""


def as_measured(service: ServiceFile, name: str | None, port: int, folder: Path) -> ServiceFile:
    """The file to serve, written to the folder; `name` is the application's, by default the first one's.

    Raises ValueError if there is no such application, or if it takes no images.
    """
    entries = service.document["applications"]
    names = [application.name for application in service.applications]
    if name is not None and name not in names:
        raise ValueError(f"{service.path} has no application '{name}'; it has {', '.join(names)}")
    position = names.index(name) if name is not None else 0
    config = service.applications[position].config
    if Modality.IMAGE not in adapter_class(config.model.adapter).modalities:
        raise ValueError(f"application '{names[position]}' of {service.path} takes no images")
    replicas = max(1, config.scaling.min_replicas)
    scaling = {
        **entries[position]["args"].get("scaling", {}),
        "min_replicas": replicas,
        "max_replicas": replicas,
    }
    delivery = {**entries[position]["args"].get("delivery", {}), "max_bytes": SHARED_BYTES}
    args = {**entries[position]["args"], "cache": {"max_bytes": 0}, "scaling": scaling, "delivery": delivery}
    document = {
        **service.document,
        "applications": [{**entries[position], "args": args}],
        "http_options": {**service.document.get("http_options", {}), "host": "127.0.0.1", "port": port},
    }
    path = folder / service.path.name
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return read_service_file(path)


def target_of(service: ServiceFile) -> Target:
    """Where its only application is."""
    (application,) = service.applications
    parts = urlsplit(service.url(application))
    assert parts.hostname is not None
    return Target(parts.hostname, service.port, parts.path, application.config.model.name)


def only(service: ServiceFile) -> Application:
    """Its only application."""
    (application,) = service.applications
    return application


def info(target: Target) -> dict[str, Any]:
    """The `/info` of one of its replicas."""
    url = f"http://{target.host}:{target.port}{target.prefix}/info"
    reply = httpx.get(url, timeout=INFO_TIMEOUT_S)
    reply.raise_for_status()
    document: dict[str, Any] = reply.json()
    return document
