"""What keeps a load's rate from being higher.

In a closed loop requests pile up in front of whatever is slowest, so the stage in which they spend most of
their time names it; how busy the processes were tells the rest. The client comes first: where it is the
limit, nothing else was measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from encoder_pool.bench.service.results import LoadResult

BUSY = 0.85
"""Of a core, for what is done on one thread."""
TOWER_RATIO = 0.9
"""From this share of the tower's own rate on, the tower is what one waits for."""
IDLE_CORES = 0.05
"""Share of the machine; with less left the cores are the limit, whoever wants them."""
LATE = 0.1
"""Of the latency, both as 99 % have them: clients that send later than that do not keep their schedule."""

AT_THE_WORKER = ("queue", "copy", "encode")
AT_DECODING = ("prepare",)


ARRIVING = ("lone", "poisson", "bursts")
"""Kinds of loads that ask for less than the peak."""
CLIENT, TOWER, CORES, DECODING, HAND_OVER, EVENT_LOOP, PROXY, TRANSPORT, ARRIVALS = (
    "client",
    "tower",
    "cores",
    "decoding",
    "hand-over",
    "event loop",
    "haproxy",
    "transport",
    "arrivals",
)


def limit_of(load: LoadResult, ratio: float, num_cores: int) -> str:
    """One word for a load whose rate is this share of the tower's own.

    client      a client process is busy, or behind its schedule while there are cores left
    arrivals    no more was asked for
    tower       the worker does nearly what the tower does by itself
    cores       the machine has none left, for the service or for clients
    decoding    requests wait for the processes that decode and resize (replica.prepare_processes)
    hand-over   requests wait for the worker, and it does less: packs come too late or are too small
    event loop  requests wait at the worker or elsewhere, and one thread of the replica is busy
    haproxy     requests wait elsewhere, and HAProxy is busy
    transport   requests wait elsewhere, and nobody is busy: sockets, copies, interpreter locks
    """
    cores = load.cores
    is_late = (load.late_p99_ms or 0.0) > LATE * load.p99_ms
    has_no_core = cores.idle < IDLE_CORES * num_cores
    if cores.client >= BUSY or (is_late and not has_no_core):
        return CLIENT
    if load.kind in ARRIVING:
        return CORES if is_late else ARRIVALS
    if ratio >= TOWER_RATIO:
        return TOWER
    if has_no_core:
        return CORES
    waited_for = _longest(load.stages_ms)
    if waited_for == DECODING:
        return DECODING
    if cores.replica_thread >= BUSY:
        return EVENT_LOOP
    if waited_for == HAND_OVER:
        return HAND_OVER
    return PROXY if cores.haproxy_thread >= BUSY else TRANSPORT


def _longest(stages_ms: Mapping[str, float]) -> str:
    """Where requests spend most time: at the worker (hand-over), at decoding, or elsewhere (transport)."""
    worker, decoding = (sum(stages_ms[stage] for stage in stages) for stages in (AT_THE_WORKER, AT_DECODING))
    elsewhere = sum(stages_ms.values()) - worker - decoding
    spent = {HAND_OVER: worker, DECODING: decoding, TRANSPORT: elsewhere}
    return max(spent, key=lambda where: spent[where])
