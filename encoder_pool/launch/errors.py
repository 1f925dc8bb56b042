"""Why a service does not start, with the exit status that says so."""

from __future__ import annotations

from typing import ClassVar


class LaunchError(Exception):
    """Base; the message is for the person at the terminal."""

    exit_status: ClassVar[int] = 1


class ConfigError(LaunchError):
    """The file cannot be used; the message says where and why."""

    exit_status = 2


class HostUnfit(LaunchError):
    """This host lacks what the file asks for."""

    exit_status = 2


class StartFailed(LaunchError):
    """The service did not come up; the message is Serve's."""
