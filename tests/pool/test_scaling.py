import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool.builder import _scale
from encoder_pool.config import QueueConfig, ScalingConfig
from encoder_pool.errors import Overloaded
from encoder_pool.pool.admission import Admission, TokenRate
from encoder_pool.pool.scaling import LATE_S, OUTSTANDING, RATE, SHED, WorkPolicy, WorkReport


class Measured(NamedTuple):
    timestamp: float


@dataclass
class Situation:
    current_num_replicas: int = 1
    target_num_replicas: int = 1
    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None = field(default_factory=dict)
    raw_metrics: Mapping[str, Mapping[Any, Sequence[Measured]]] | None = None
    current_time: float | None = None


def reported(*replicas: tuple[float, float, float]) -> dict[str, dict[Any, float]]:
    """Per replica: outstanding tokens, shed tokens a second, tokens a second."""
    names = (OUTSTANDING, SHED, RATE)
    return {name: {at: values[n] for at, values in enumerate(replicas)} for n, name in enumerate(names)}


def wanted(situation: Situation, target_drain_s: float = 1.0) -> int:
    return WorkPolicy(target_drain_s)(situation)[0]


@pytest.mark.parametrize(
    ("replicas", "number"),
    [
        ([(0, 0, 100)], 0),
        ([(1, 0, 100)], 1),
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


def test_a_replica_that_reports_late_is_not_taken_for_idle() -> None:
    policy = WorkPolicy(1.0)
    idle = reported((10, 0, 100), (0, 0, 100))

    def after(seconds: float, *newest: float) -> int:
        raw = {RATE: {at: [Measured(0.0), Measured(when)] for at, when in enumerate(newest)}}
        return policy(Situation(2, 2, idle, raw, current_time=1000.0 + seconds))[0]

    # What the replicas' clocks say does not matter, only that they go on.
    assert after(0, 77.0, 50_000.0) == 1
    assert after(LATE_S, 78.0, 50_000.0) == 1
    assert after(LATE_S + 1, 79.0, 50_000.0) == 2
    assert after(LATE_S + 2, 80.0, 50_001.0) == 1


def test_a_late_replica_does_not_keep_others_from_being_added() -> None:
    policy = WorkPolicy(1.0)
    raw = {RATE: {0: [Measured(1.0)], 1: []}}
    busy = reported((500, 0, 100), (100, 0, 100))
    policy(Situation(2, 2, busy, raw, current_time=0.0))
    assert policy(Situation(2, 2, busy, raw, current_time=LATE_S + 1))[0] == 6


NUMBERS = st.floats() | st.integers(-5, 2000) | st.sampled_from([5e-324, 1e-3, 1e300, 1e308])
METRICS = st.dictionaries(
    st.sampled_from([OUTSTANDING, SHED, RATE, "other"]), st.dictionaries(st.integers(0, 4), NUMBERS)
)
POINTS = st.lists(NUMBERS.map(Measured), max_size=3)


@settings(deadline=None, derandomize=True, max_examples=500)
@given(
    st.lists(
        st.builds(
            Situation,
            st.integers(0, 8),
            st.integers(0, 8),
            st.none() | METRICS,
            st.none() | st.dictionaries(st.just(RATE), st.dictionaries(st.integers(0, 4), POINTS)),
            st.none() | st.floats(0, 1e10),
        ),
        min_size=1,
        max_size=4,
    ),
    st.floats(1e-300, 1e300),
)
def test_the_policy_never_raises_and_without_a_usable_rate_changes_nothing(
    situations: list[Situation], target_drain_s: float
) -> None:
    policy = WorkPolicy(target_drain_s)
    for situation in situations:
        number, state = policy(situation)
        assert (type(number), state) == (int, {})
        assert 0 <= number <= 10**6
        rates = (situation.aggregated_metrics or {}).get(RATE, {}).values()
        usable = [rate for rate in rates if 0 < rate <= 1e15]
        if not usable:
            assert number == situation.target_num_replicas
        if len(usable) < situation.current_num_replicas:
            assert number >= situation.target_num_replicas


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e5), st.floats(0.1, 1e5)), min_size=1, max_size=6),
    st.floats(0.1, 60),
)
def test_as_many_replicas_as_drain_the_work_in_time_and_not_one_more(
    replicas: list[tuple[float, float, float]], target_drain_s: float
) -> None:
    number = wanted(Situation(len(replicas), 0, reported(*replicas)), target_drain_s)
    work = sum(held for held, _, _ in replicas) / target_drain_s + sum(shed for _, shed, _ in replicas)
    rate = sum(rate for _, _, rate in replicas) / len(replicas)
    assert number == min(math.ceil(work / rate), 10**6)


def test_a_request_that_is_still_read_is_work() -> None:
    rate = TokenRate(50.0, 1.0)
    door = Admission(QueueConfig(), rate)
    report = WorkReport(door, rate, lambda: 0.0)

    def of_one_replica() -> int:
        values = report()
        return wanted(Situation(1, 1, reported((values[OUTSTANDING], values[SHED], values[RATE]))))

    with door.request():
        assert of_one_replica() == 1
    assert of_one_replica() == 0


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
    assert (options["min_replicas"], options["initial_replicas"], options["max_replicas"]) == (1, 1, 4)
    assert options["policy"]["policy_kwargs"] == {"target_drain_s": 3.0}


def test_with_no_replica_at_least_one_is_started_all_the_same_to_show_that_it_works() -> None:
    options = _scale(ScalingConfig(min_replicas=0))["autoscaling_config"]
    assert (options["min_replicas"], options["initial_replicas"], options["max_replicas"]) == (0, 1, 1)
