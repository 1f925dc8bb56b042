"""How many replicas the work needs: outstanding and shed tokens over measured tokens a second.

Never by the number of requests, whose sizes differ a hundredfold. Shed tokens count, because a bounded
queue stops growing just when more replicas are needed most. The policy runs in Serve's controller each
tick, where an exception would stall the scaling of every application: replicas that have not reported, or
not lately, are waited for, not guessed, and it is total on whatever numbers they report. Where no replica
runs Serve does not ask it: the first request starts one. Imports no Ray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from encoder_pool.pool.admission import Admission, Rate

OUTSTANDING, SHED, RATE = "outstanding_tokens", "shed_tokens_per_s", "tokens_per_s"

LATE_S = 10.0
"""A replica whose newest measurement has been the same for so long is not taken for idle."""
MOST_REPLICAS, MOST_TOKENS = 1e6, 1e15
"""Beyond what is real, so that the policy's numbers stay finite."""


class Point(Protocol):
    """One measurement of a replica, by its own clock."""

    @property
    def timestamp(self) -> float:
        """When it was taken."""
        ...


class Context(Protocol):
    """What is used of ray.serve.config.AutoscalingContext."""

    target_num_replicas: int
    current_time: float | None

    @property
    def current_num_replicas(self) -> int:
        """Replicas that run."""
        ...

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None:
        """What replicas reported, by name and replica."""
        ...

    @property
    def raw_metrics(self) -> Mapping[str, Mapping[Any, Sequence[Point]]] | None:
        """The measurements that it was made of."""
        ...


class WorkPolicy:
    """A Serve autoscaling policy; Serve applies delays and bounds around it."""

    def __init__(self, target_drain_s: float) -> None:
        """What is outstanding should be done in `target_drain_s` seconds."""
        self._target_drain_s = target_drain_s
        self._newest: dict[Any, tuple[float, float]] = {}

    def __call__(self, context: Context) -> tuple[int, dict[str, Any]]:
        """The number of replicas wanted, 0 where there is nothing to do, and no state."""
        reported = context.aggregated_metrics or {}
        rates = {replica: rate for replica, rate in _sound(reported, RATE).items() if rate > 0}
        if not rates:
            return context.target_num_replicas, {}
        outstanding = sum(_sound(reported, OUTSTANDING).values())
        shed_per_s = sum(_sound(reported, SHED).values())
        per_replica = sum(rates.values()) / len(rates)
        needed = (outstanding / self._target_drain_s + shed_per_s) / per_replica
        wanted = math.ceil(min(needed, MOST_REPLICAS))
        if len(rates.keys() - self._late(context)) < context.current_num_replicas:
            wanted = max(wanted, context.target_num_replicas)
        return wanted, {}

    def _late(self, context: Context) -> set[Any]:
        """Replicas that have measured nothing new for a while, by the clock of this process."""
        now = context.current_time or 0.0
        newest = {}
        for replica, points in (context.raw_metrics or {}).get(RATE, {}).items():
            at = points[-1].timestamp if points else 0.0
            known = self._newest.get(replica)
            newest[replica] = known if known is not None and known[0] == at else (at, now)
        self._newest = newest
        return {replica for replica, (_, since) in newest.items() if now - since > LATE_S}


def _sound(reported: Mapping[str, Mapping[Any, float]], name: str) -> dict[Any, float]:
    """The values that mean something: no number, less than nothing or an infinity is a replica's mistake."""
    values = reported.get(name, {}).items()
    return {replica: value for replica, value in values if 0 <= value <= MOST_TOKENS}


class WorkReport:
    """What a replica tells the policy, each time Serve asks."""

    def __init__(self, admission: Admission, rate: Rate, clock: Callable[[], float]) -> None:
        self._admission = admission
        self._rate = rate
        self._clock = clock
        self._last_s = clock()
        self._last_shed = 0.0

    def __call__(self) -> dict[str, float]:
        """Tokens held now, tokens a second refused since the last call, tokens a second encoded.

        A request counts for a token at least, also while it is still read and decoded.
        """
        now, shed = self._clock(), self._admission.shed_tokens
        elapsed_s = max(now - self._last_s, 1e-3)
        shed_per_s = (shed - self._last_shed) / elapsed_s
        self._last_s, self._last_shed = now, shed
        return {
            OUTSTANDING: float(max(self._admission.tokens, self._admission.requests)),
            SHED: shed_per_s,
            RATE: self._rate.tokens_per_s,
        }
