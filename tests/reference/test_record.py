from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reference import cases

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", ["ImportError('no such library')", "RuntimeError('of another build')"])
def test_where_torchvision_is_missing_nothing_is_recorded_and_the_reason_told(
    tmp_path: Path, fault: str
) -> None:
    (tmp_path / "torchvision.py").write_text(f"raise {fault}")
    before = cases.PIXELS.stat(), cases.TABLES.stat()
    run = subprocess.run(
        [sys.executable, "-m", "tests.reference.record"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith("torchvision cannot be imported: ")
    assert "Traceback" not in run.stderr
    assert (cases.PIXELS.stat(), cases.TABLES.stat()) == before


def test_what_is_recorded_says_by_which_versions() -> None:
    versions = json.loads(cases.TABLES.read_text())["versions"]
    assert set(versions) == {"torch", "torchvision", "transformers"}
    assert all(re.match(r"\d+\.\d+", version) for version in versions.values())
