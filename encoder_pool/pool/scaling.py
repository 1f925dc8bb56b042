"""How many replicas the work needs: outstanding and shed tokens over measured tokens a second.

Never by the number of requests, whose sizes differ a hundredfold. Shed tokens count, because a bounded
queue stops growing just when more replicas are needed most. The policy runs in Serve's controller each
tick, where an exception would stall the scaling of every application: replicas that have not reported are
waited for, not guessed. Imports no Ray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from encoder_pool.pool.admission import Admission, TokenRate

OUTSTANDING, SHED, RATE = "outstanding_tokens", "shed_tokens_per_s", "tokens_per_s"


class Context(Protocol):
    """What is used of ray.serve.config.AutoscalingContext."""

    target_num_replicas: int

    @property
    def current_num_replicas(self) -> int:
        """Replicas that run."""
        ...

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]]:
        """What replicas reported, by name and replica."""
        ...


class WorkPolicy:
    """A Serve autoscaling policy; Serve applies delays and bounds around it."""

    def __init__(self, target_drain_s: float) -> None:
        """What is outstanding should be done in `target_drain_s` seconds."""
        self._target_drain_s = target_drain_s

    def __call__(self, context: Context) -> tuple[int, dict[str, Any]]:
        """The number of replicas wanted, and no state."""
        reported = context.aggregated_metrics
        rates = [rate for rate in reported.get(RATE, {}).values() if rate > 0]
        if not rates:
            return context.target_num_replicas, {}
        outstanding = sum(reported.get(OUTSTANDING, {}).values())
        shed_per_s = sum(reported.get(SHED, {}).values())
        per_replica = sum(rates) / len(rates)
        wanted = max(math.ceil((outstanding / self._target_drain_s + shed_per_s) / per_replica), 1)
        if len(rates) < context.current_num_replicas:
            wanted = max(wanted, context.target_num_replicas)
        return wanted, {}


class WorkReport:
    """What a replica tells the policy, each time Serve asks."""

    def __init__(self, admission: Admission, rate: TokenRate, clock: Callable[[], float]) -> None:
        self._admission = admission
        self._rate = rate
        self._clock = clock
        self._last_s = clock()
        self._last_shed = 0.0

    def __call__(self) -> dict[str, float]:
        """Tokens held now, tokens a second refused since the last call, tokens a second encoded."""
        now, shed = self._clock(), self._admission.shed_tokens
        elapsed_s = max(now - self._last_s, 1e-3)
        shed_per_s = (shed - self._last_shed) / elapsed_s
        self._last_s, self._last_shed = now, shed
        return {
            OUTSTANDING: float(self._admission.tokens),
            SHED: shed_per_s,
            RATE: self._rate.tokens_per_s,
        }
