import pytest

from encoder_pool.config import QueueConfig
from encoder_pool.errors import Overloaded, TooLarge
from encoder_pool.pool.admission import LONGEST_RETRY_S, Admission, TokenRate


def admission(rate: float = 100.0, **limits: int) -> Admission:
    config = QueueConfig.model_validate({"max_tokens": 1000, "max_bytes": 1000, "max_requests": 3, **limits})
    return Admission(config, TokenRate(rate, 1.0))


def test_what_a_request_held_is_given_back_when_it_ends() -> None:
    door = admission()
    with door.request() as held:
        held.add_bytes(600)
        held.add_tokens(700)
        assert (door.requests, door.bytes, door.tokens) == (1, 600, 700)
    assert (door.requests, door.bytes, door.tokens) == (0, 0, 0)


def test_what_a_request_held_is_given_back_when_it_fails() -> None:
    door = admission()

    def failing_request() -> None:
        with door.request() as held:
            held.add_bytes(600)
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        failing_request()
    assert (door.requests, door.bytes, door.tokens) == (0, 0, 0)


def test_one_request_too_many_is_overload() -> None:
    door = admission()
    with door.request(), door.request(), door.request():
        with pytest.raises(Overloaded, match=r"queue\.max_requests") as caught, door.request():
            pass
        assert caught.value.retry_after_s == 1.0
    assert door.shed_requests == 1
    assert door.requests == 0


def test_bytes_beyond_the_limit_are_overload_that_names_limit_value_and_setting() -> None:
    door = admission()
    with door.request() as first, door.request() as second:
        first.add_bytes(600)
        with pytest.raises(Overloaded) as caught:
            second.add_bytes(500)
        for part in ("600", "500", "1000", "queue.max_bytes"):
            assert part in caught.value.message
        second.add_bytes(400)


def test_a_request_no_empty_replica_could_hold_is_too_large_and_not_overload() -> None:
    door = admission()
    with door.request() as held, pytest.raises(TooLarge, match=r"queue\.max_tokens"):
        held.add_tokens(1001)


def test_what_a_request_holds_itself_is_no_overload_for_what_it_brings_next() -> None:
    door = admission()
    with door.request() as held:
        held.add_bytes(600)
        with pytest.raises(TooLarge, match=r"needs 1100 bytes; .* at most 1000 \(queue\.max_bytes\)"):
            held.add_bytes(500)
    assert door.shed_requests == 0


def test_a_full_replica_refuses_before_anything_is_decoded() -> None:
    door = admission()
    with door.request() as held:
        held.add_tokens(1000)
        with pytest.raises(Overloaded), door.request():
            pass


def test_retry_after_is_the_time_that_half_of_the_queue_takes() -> None:
    door = admission(rate=100.0)
    with door.request() as held:
        held.add_tokens(800)
        assert door.retry_after_s == pytest.approx(4.0)
    assert door.retry_after_s == 1.0


def test_retry_after_is_bounded() -> None:
    door = admission(rate=0.001)
    with door.request() as held:
        held.add_tokens(1000)
        assert door.retry_after_s == LONGEST_RETRY_S


def test_the_rate_follows_what_is_measured_and_forgets_what_was_assumed() -> None:
    rate = TokenRate(10.0, 1.0)
    for _ in range(100):
        rate.observe(tokens=500, busy_s=1.0)
    assert rate.tokens_per_s == pytest.approx(500, rel=0.01)


def test_the_rate_is_never_zero() -> None:
    rate = TokenRate(0.0, 1.0)
    rate.observe(tokens=0, busy_s=100.0)
    assert rate.tokens_per_s > 0


def test_a_first_measurement_of_a_moment_does_not_outweigh_a_real_pack() -> None:
    rate = TokenRate(tokens=24, busy_s=0.0001)
    rate.observe(tokens=24, busy_s=0.2)
    assert rate.tokens_per_s == pytest.approx(240, rel=0.01)


def test_what_is_handed_over_outlasts_its_request_until_it_is_given_back() -> None:
    door = admission()
    with door.request() as held:
        held.add_bytes(50)
        held.add_tokens(700)
        give_back = held.hand_over(20, 600)
        assert (door.bytes, door.tokens) == (50, 700)
    assert (door.requests, door.bytes, door.tokens) == (0, 20, 600)
    give_back()
    assert (door.bytes, door.tokens) == (0, 0)
