"""Fuzzes all targets in turn and writes what came of it: `python -m tests.fuzz SECONDS REPORT`.

Each target runs in a process of its own for its share of the seconds, from the seeds and from what earlier
runs have kept in .fuzz/. An input that crashes, hangs or takes too much memory is left in
tests/fuzz/findings, where test_findings.py runs it from then on; the status is 1 if there is any.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

FINDINGS = Path(__file__).parent / "findings"
CORPUS = Path(".fuzz")
HANG_S = 60
MOST_MB = 2048
PACKAGES = ("encoder-pool", "atheris", "pillow", "av", "pydantic", "starlette", "fastapi")


def main(seconds: int, report: Path) -> int:
    """Run every target, write the report, and say whether nothing was found."""
    results = {target: run(target, seconds // len(TARGETS)) for target in TARGETS}
    document = {
        "command": f"make fuzz FUZZ_S={seconds}",
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}",
        "packages": {package: version(package) for package in PACKAGES},
        "limits": {"hang_seconds": HANG_S, "memory_mb": MOST_MB},
        "seconds": sum(result["seconds"] for result in results.values()),
        "executions": sum(result["executions"] for result in results.values()),
        "targets": results,
    }
    report.write_text(json.dumps(document, indent=2) + "\n")
    return int(any(result["findings"] for result in results.values()))


def run(target: str, seconds: int) -> dict[str, Any]:
    """Fuzz one target, going on after a finding until its time is used up."""
    corpus = CORPUS / target
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds(target):
        (corpus / hashlib.sha256(seed).hexdigest()).write_bytes(seed)
    before = set(FINDINGS.iterdir())
    started, executions = time.monotonic(), 0
    while (left := seconds - int(time.monotonic() - started)) > 0:
        executions += _fuzz(target, corpus, left)
    found = sorted(path.name for path in set(FINDINGS.iterdir()) - before)
    return {"seconds": int(time.monotonic() - started), "executions": executions, "findings": found}


def _fuzz(target: str, corpus: Path, seconds: int) -> int:
    """Run until the time is up or something is found; how many inputs were tried."""
    command = [
        *(sys.executable, "-m", "tests.fuzz.one", target, str(corpus)),
        *(f"-max_total_time={seconds}", f"-timeout={HANG_S}", f"-rss_limit_mb={MOST_MB}", "-max_len=65536"),
        *("-print_final_stats=1", f"-artifact_prefix={FINDINGS}/{target}-"),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    log = done.stdout.decode("utf-8", "replace")
    (CORPUS / f"{target}.log").write_text(log)
    executions = re.search(r"stat::number_of_executed_units:\s+(\d+)", log)
    assert executions, f"the fuzzer did not start:\n{log}"
    return int(executions[1])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
