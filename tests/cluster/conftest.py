from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import ENVIRONMENT, Nodes
from tests.service.running import ROOT, end


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A head node that has room for one replica and no more."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.nodes", "1"],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    nodes = Nodes(process)
    try:
        yield nodes
    finally:
        end(process, nodes.stop)
