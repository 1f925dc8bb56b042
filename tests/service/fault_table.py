"""The table of faults in the docs: what each costs and how soon it is mended, as the tests saw it."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from encoder_pool.bench.device import open_device
from encoder_pool.bench.machine import this_machine

_HEAD = """\
# Faults

What a service does when something breaks, seen by the tests that break it (`make faults` writes this page):
how all requests ended that were under way or came meanwhile, and the seconds until the application could
encode again, or until all of its replicas were new ones. None was left without an ending. "By the client":
`EncoderClient` sent them, and repeats what a closed connection, a 503 or a proxy's 500 costs; all others were
repeated by nobody. The service stands behind HAProxy, in the rows of nodes behind Serve's own proxy.
"""


@dataclass(frozen=True, slots=True)
class _Row:
    fault: str
    endings: str
    recovered_s: float | None


@dataclass(slots=True)
class FaultTable:
    """Filled by the tests, in the order in which they run."""

    rows: list[_Row] = field(default_factory=list)

    def note(
        self,
        fault: str,
        endings: Iterable[object],
        recovered_s: float | None = None,
        longest_s: float | None = None,
    ) -> None:
        """A fault, how each of the requests ended, and when all was well; None if nothing was mended.

        longest_s  of the request that took longest
        """
        counted = Counter(map(str, endings))
        shown = ", ".join(f"{count} x {ending}" for ending, count in counted.items()) or "-"
        if longest_s is not None:
            shown += f"; the longest took {longest_s:.1f} s"
        self.rows.append(_Row(fault, shown, recovered_s))

    def write(self, path: Path) -> None:
        """As a page."""
        machine = this_machine(open_device("cpu"))
        lines = ["| fault | requests ended as | mended after |", "|---|---|---|"]
        for row in self.rows:
            mended = "-" if row.recovered_s is None else f"{row.recovered_s:.1f} s"
            lines.append(f"| {row.fault} | {row.endings} | {mended} |")
        where = f"On {machine.cores} cores of {machine.cpu}, Python {platform.python_version()}."
        path.write_text(f"{_HEAD}\n{where}\n\n" + "\n".join(lines) + "\n")
