"""Reads a Serve configuration file and validates what is ours in it, before Ray is imported.

The file is Ray Serve's own format, so that plain `serve run` takes it too. Errors name the file, the place
and the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from encoder_pool.config import PoolConfig
from encoder_pool.launch.errors import ConfigError

IMPORT_PATH = "encoder_pool.builder:build_app"
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8000
"""Serve's own defaults for a file without `http_options`."""


@dataclass(frozen=True, slots=True)
class Application:
    """One model of the file: its name, where it is mounted, and its pool."""

    name: str
    route_prefix: str
    config: PoolConfig


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """A validated file. `document` is the whole of it, as Serve wants it."""

    path: Path
    host: str
    port: int
    applications: tuple[Application, ...]
    document: dict[str, Any]

    def with_port(self, port: int) -> ServiceFile:
        """The same service on another HTTP port."""
        options = {**self.document.get("http_options", {}), "port": port}
        document = {**self.document, "http_options": options}
        return ServiceFile(self.path, self.host, port, self.applications, document)

    def url(self, application: Application) -> str:
        """Base URL of one application's routes."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        return f"http://{host}:{self.port}{application.route_prefix.rstrip('/')}"


def read_service_file(path: Path) -> ServiceFile:
    """The file, validated. Raises ConfigError."""
    document = _read_yaml(path)
    entries = document.get("applications")
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path}: no 'applications' in it")
    applications = tuple(_application(path, index, entry) for index, entry in enumerate(entries))
    options = document.get("http_options") or {}
    host, port = options.get("host", DEFAULT_HOST), options.get("port", DEFAULT_PORT)
    return ServiceFile(path, str(host), int(port), applications, document)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not a Serve configuration")
    return document


def _application(path: Path, index: int, entry: dict[str, Any]) -> Application:
    where = f"{path}: applications[{index}]"
    if entry.get("import_path") != IMPORT_PATH:
        raise ConfigError(f"{where}.import_path must be {IMPORT_PATH}")
    try:
        config = PoolConfig.model_validate(entry.get("args") or {})
    except ValidationError as error:
        raise ConfigError(explain(error, f"{where}.args")) from error
    return Application(str(entry.get("name", "default")), str(entry.get("route_prefix", "/")), config)


def explain(error: ValidationError, where: str) -> str:
    """One line per mistake: the place, the key, what is wrong. Values are not repeated."""
    lines = []
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(str(part) for part in (where, *detail["loc"]))
        lines.append(f"{place}: {detail['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)
