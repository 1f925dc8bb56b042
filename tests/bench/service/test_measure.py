"""How many requests a set gets at once, and when."""

from __future__ import annotations

import pytest

from encoder_pool.bench.service.measure import SPARE_LANES, WARM_S, Subject
from encoder_pool.bench.service.results import TowerRate
from encoder_pool.config import PoolConfig, QueueConfig


def subject(items_s: float, tokens: int, queue: QueueConfig, seconds: float = 10.0) -> Subject:
    own = TowerRate(
        items_s=items_s, tokens_s=items_s * tokens, mean_batch=4.0, padding=0.0, replay_ms=(5.0,) * 4
    )
    model = {"name": "toy", "adapter": "tests.toy:ToyAdapter", "checkpoint": "unused"}
    config = PoolConfig.model_validate({"model": model, "ladder": {"min": 1, "max": 4}, "queue": queue})
    return Subject("toy-224", (), own, config, seconds)


@pytest.mark.parametrize(
    ("items_s", "tokens", "queue", "depths"),
    [
        (1000.0, 64, QueueConfig(max_tokens=131072), [64, 128, 256]),
        (66.0, 1369, QueueConfig(max_tokens=131072), [21, 43, 86]),  # 90 % of the queue's tokens
        (1000.0, 64, QueueConfig(max_tokens=131072, max_requests=40), [9, 18, 36]),  # of its requests
        (20.0, 64, QueueConfig(), [10, 20, 40]),  # two seconds of work
        (1.0, 64, QueueConfig(), [2, 4, 8]),
        (1.0, 64, QueueConfig(max_requests=1), [1]),
    ],
)
def test_closed_loops_fill_the_service_and_not_more_than_its_queue(
    items_s: float, tokens: int, queue: QueueConfig, depths: list[int]
) -> None:
    assert subject(items_s, tokens, queue).depths == depths


def test_the_rate_of_several_towers_is_what_a_replica_with_as_many_workers_is_held_against() -> None:
    one = subject(20.0, 64, QueueConfig()).own
    three = one.times(3)
    assert (three.items_s, three.tokens_s) == (60.0, 60.0 * 64)
    assert (three.mean_batch, three.padding, three.replay_ms) == (one.mean_batch, one.padding, one.replay_ms)


def test_a_closed_loop_counts_from_its_second_round_on() -> None:
    plan = subject(20.0, 64, QueueConfig()).closed("grouped", 5, 8)
    assert (plan.lanes, plan.images, plan.warm_s, plan.seconds) == (5, 8, WARM_S + 2.0, 10.0)


def test_an_open_loop_has_somebody_to_send_whatever_the_queue_may_hold() -> None:
    plan = subject(66.0, 1369, QueueConfig(max_tokens=131072)).opened("overload", 90.0)
    assert plan.due is not None
    assert plan.lanes == 512 + SPARE_LANES
    assert plan.offered == 90.0
    assert max(plan.due) < plan.warm_s + plan.seconds
    few = subject(1.0, 64, QueueConfig()).opened("bursts", 0.5)
    assert few.lanes == len(few.due or ()) == 11
