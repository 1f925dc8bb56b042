"""Reads a Serve configuration file and validates it before Ray is imported.

The file is Ray Serve's own format, so that plain `serve run` takes it too. Serve ignores keys it does not
know; here they are refused, with the nearest known one. What Serve's keys hold is Serve's to check.
Errors name the file, the place and the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from encoder_pool.config import PoolConfig, Section
from encoder_pool.launch.errors import ConfigError

Passed = Any
"""A value that Serve checks."""


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


class HttpOptions(Section):
    """The keys of `http_options`; defaults are Serve's."""

    host: str = "0.0.0.0"
    port: int = Field(8000, ge=1, le=65535)
    root_path: Passed = None
    request_timeout_s: Passed = None
    keep_alive_timeout_s: Passed = None
    ssl_keyfile: Passed = None
    ssl_certfile: Passed = None
    ssl_keyfile_password: Passed = None
    ssl_ca_certs: Passed = None


class ApplicationEntry(Section):
    """The keys of one entry of `applications`; defaults are Serve's."""

    name: str = "default"
    route_prefix: str = Field("/", pattern="^/")
    import_path: Literal["encoder_pool.builder:build_app"]
    args: PoolConfig
    runtime_env: Passed = None
    host: Passed = None
    port: Passed = None
    deployments: Passed = None
    autoscaling_policy: Passed = None
    logging_config: Passed = None
    external_scaler_enabled: Passed = None


class Document(Section):
    """The keys of the file."""

    applications: tuple[ApplicationEntry, ...]
    http_options: HttpOptions = HttpOptions()
    proxy_location: Passed = None
    grpc_options: Passed = None
    controller_options: Passed = None
    logging_config: Passed = None
    tracing_config: Passed = None
    target_capacity: Passed = None

    @model_validator(mode="after")
    def _some_and_distinct(self) -> Document:
        if not self.applications:
            raise ValueError("applications is empty")
        _check_distinct("name", [entry.name for entry in self.applications])
        _check_distinct("route_prefix", [entry.route_prefix for entry in self.applications])
        return self


def _check_distinct(key: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"two applications have the {key} '{value}'; each needs its own")


def read_service_file(path: Path) -> ServiceFile:
    """The file, validated. Raises ConfigError."""
    document = _read_yaml(path)
    try:
        checked = Document.model_validate(document)
    except ValidationError as error:
        raise ConfigError(explain(error, path)) from error
    applications = tuple(
        Application(entry.name, entry.route_prefix, entry.args) for entry in checked.applications
    )
    return ServiceFile(path, checked.http_options.host, checked.http_options.port, applications, document)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not a Serve configuration; it needs a list 'applications'")
    return document


def explain(error: ValidationError, path: Path) -> str:
    """One line per mistake: the file, the place, what is wrong. Values are not repeated."""
    lines = []
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])
        place = "".join(parts).removeprefix(".")
        is_no_mapping = detail["type"] == "model_type"
        message = "must be a mapping" if is_no_mapping else detail["msg"].removeprefix("Value error, ")
        lines.append(": ".join(part for part in (str(path), place, message) if part))
    return "\n".join(lines)
