from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encoder_pool.simulate.find import Goal, fewest
from encoder_pool.simulate.results import Result, Use

GOAL = Goal(p99_ms=100)
FOUND = Result(
    gpus=1,
    hosts=1,
    replicas=1,
    requests=10_000,
    offered_per_s=100,
    answered_per_s=100,
    images_per_s=100,
    tokens_per_s=100,
    p50_ms=10,
    p90_ms=20,
    p99_ms=100,
    shed=10,
    expired=0,
    failed=0,
    mean_batch=1,
    padding=0,
    uses={"gpu": Use(0.5, 0.5)},
    first_to_break="gpu",
    breaks_at_per_s=200,
)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 300))
def test_the_least_number_that_is_enough_is_found_with_few_attempts(needed: int) -> None:
    tried = fewest(GOAL, 300, lambda gpus: replace(FOUND, gpus=gpus, p99_ms=99 if gpus >= needed else 101))
    assert [result.gpus for result in tried] == sorted({result.gpus for result in tried})
    assert next(result.gpus for result in tried if GOAL.is_met(result)) == needed
    assert len(tried) <= 2 * needed.bit_length() + 1


def test_where_no_number_is_enough_the_most_is_the_last_that_was_tried() -> None:
    tried = fewest(GOAL, 5, lambda gpus: replace(FOUND, gpus=gpus, p99_ms=101))
    assert [result.gpus for result in tried] == [1, 2, 4, 5]
    assert not any(map(GOAL.is_met, tried))


@pytest.mark.parametrize(
    ("change", "is_met"),
    [
        ({}, True),
        ({"p99_ms": 100.1}, False),
        ({"shed": 6, "expired": 2, "failed": 2}, True),
        ({"shed": 6, "expired": 3, "failed": 2}, False),
        ({"p99_ms": float("nan")}, False),
    ],
)
def test_a_goal_is_a_p99_with_next_to_nothing_lost(change: dict[str, Any], is_met: bool) -> None:
    assert GOAL.is_met(replace(FOUND, **change)) is is_met
