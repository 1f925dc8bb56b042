from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from encoder_pool.builder import _scale
from encoder_pool.config import QueueConfig, ScalingConfig
from encoder_pool.errors import Overloaded
from encoder_pool.pool.admission import Admission, TokenRate
from encoder_pool.pool.scaling import OUTSTANDING, RATE, SHED, WorkPolicy, WorkReport


@dataclass
class Situation:
    current_num_replicas: int = 1
    target_num_replicas: int = 1
    aggregated_metrics: Mapping[str, Mapping[Any, float]] = field(default_factory=dict)


def reported(*replicas: tuple[float, float, float]) -> dict[str, dict[Any, float]]:
    """Per replica: outstanding tokens, shed tokens a second, tokens a second."""
    names = (OUTSTANDING, SHED, RATE)
    return {name: {at: values[n] for at, values in enumerate(replicas)} for n, name in enumerate(names)}


def wanted(situation: Situation, target_drain_s: float = 1.0) -> int:
    return WorkPolicy(target_drain_s)(situation)[0]


@pytest.mark.parametrize(
    ("replicas", "number"),
    [
        ([(0, 0, 100)], 1),
        ([(100, 0, 100)], 1),
        ([(101, 0, 100)], 2),
        ([(100, 150, 100)], 3),
        ([(500, 0, 100), (300, 0, 100)], 8),
        ([(100, 0, 50), (100, 0, 150)], 2),
    ],
)
def test_replicas_follow_outstanding_and_shed_tokens_over_the_rate(
    replicas: list[tuple[float, float, float]], number: int
) -> None:
    assert wanted(Situation(len(replicas), len(replicas), reported(*replicas))) == number


def test_a_longer_drain_time_needs_fewer_replicas() -> None:
    assert wanted(Situation(1, 1, reported((1000, 0, 100))), target_drain_s=5.0) == 2


def test_without_any_report_the_number_stays() -> None:
    assert wanted(Situation(3, 3)) == 3
    assert wanted(Situation(3, 3, reported((0, 0, 0)))) == 3


def test_a_replica_that_has_not_reported_is_not_taken_for_idle() -> None:
    assert wanted(Situation(2, 2, reported((10, 0, 100)))) == 2
    assert wanted(Situation(2, 2, reported((10, 0, 100), (0, 0, 100)))) == 1


def test_a_report_has_what_is_held_the_rate_and_what_was_shed_since_the_last() -> None:
    now = [0.0]
    rate = TokenRate(50.0, 1.0)
    door = Admission(QueueConfig(max_requests=1), rate)
    report = WorkReport(door, rate, lambda: now[0])
    with door.request() as held:
        held.add_tokens(300)
        for _ in range(4):
            with pytest.raises(Overloaded), door.request():
                pass
        now[0] = 2.0
        assert report() == {OUTSTANDING: 300.0, SHED: 4 * 300 / 2.0, RATE: 50.0}
        now[0] = 3.0
        assert report()[SHED] == 0.0


def test_equal_bounds_are_a_fixed_number_and_others_an_autoscaler() -> None:
    assert _scale(ScalingConfig(min_replicas=2, max_replicas=2)) == {"num_replicas": 2}
    options = _scale(ScalingConfig(max_replicas=4, target_drain_s=3.0))["autoscaling_config"]
    assert (options["min_replicas"], options["max_replicas"]) == (1, 4)
    assert options["policy"]["policy_kwargs"] == {"target_drain_s": 3.0}
