"""Client processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from math import inf
from pathlib import Path

import psutil
import pytest

from encoder_pool.bench.service.crew import Crew
from encoder_pool.bench.service.load import OK, Share

from .server import serving


def test_clients_send_their_shares_from_processes_of_their_own_and_end_with_the_crew(tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(b"a photo")
    now = time.monotonic()
    with serving() as server, Crew(2) as crew:
        share = Share(server.target, (photo,), 1, 2, 0, now, now, inf, most=5)
        crew.begin([share, replace(share, most=7)])
        reports = crew.reports(2)
        assert [len(report.samples) for report in reports] == [5, 7]
        assert {sample.status for report in reports for sample in report.samples} == {OK}
        assert len(server.asked) == 12
        assert len({os.getpid(), *crew.pids}) == 3
        crew.begin([replace(share, most=1)])  # fewer shares than clients: the others have nothing to do
        assert [len(report.samples) for report in crew.reports(1)] == [1]
        pids = crew.pids
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="a client process has died"):
            crew.reports(1)
    assert not any(psutil.pid_exists(pid) for pid in pids)
