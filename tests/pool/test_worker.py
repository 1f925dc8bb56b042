import asyncio
import logging
from contextlib import suppress

import pytest

from encoder_pool.config import ShardConfig
from encoder_pool.pool import worker as worker_module
from encoder_pool.pool.messages import PackRequest
from encoder_pool.pool.worker import PackFailed, ShardDied, Worker, WorkerGone
from tests.pool.fake_shard import Factory, FakeShard

PACK = PackRequest(0, 0, ())


def config(**values: float) -> ShardConfig:
    return ShardConfig.model_validate({"pack_timeout_s": 60, "max_restarts": 2, **values})


async def started(factory: Factory, **values: float) -> Worker:
    worker = Worker(config(**values), factory)
    await worker.start()
    return worker


async def settled(worker: Worker) -> None:
    """Wait until the worker is ready or has given up."""
    with suppress(WorkerGone):
        await asyncio.wait_for(worker.wait_ready(), timeout=60)


async def test_a_worker_is_ready_only_when_its_shard_has_captured() -> None:
    factory = Factory()
    worker = Worker(config(), factory)
    assert (worker.is_ready, worker.state) == (False, "starting")
    await worker.start()
    assert (worker.is_ready, worker.state) == (True, "ready")
    assert worker.report.pid == 0


async def test_how_long_each_phase_of_a_start_took_is_in_the_replicas_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "ray.serve"):
        await started(Factory())
    assert [record.message for record in caplog.records] == ["a shard of 3 rungs is ready: load 1.5 s"]


async def test_an_error_while_loading_the_first_shard_is_raised_as_it_is() -> None:
    def break_weights(shard: FakeShard) -> None:
        shard.load_error = ValueError("missing key")

    with pytest.raises(ValueError, match="missing key"):
        await started(Factory(break_weights))


async def test_a_load_that_hangs_ends_at_its_deadline() -> None:
    def hang(shard: FakeShard) -> None:
        shard.hangs = True

    with pytest.raises(TimeoutError):
        await started(Factory(hang), load_timeout_s=0.05)


async def test_a_dead_shard_is_replaced_and_the_pack_is_given_back() -> None:
    factory = Factory()
    worker = await started(factory)
    factory.shards[0].is_dead = True
    with pytest.raises(ShardDied):
        await worker.run(PACK)
    assert not worker.is_ready
    await settled(worker)
    assert (worker.is_ready, worker.restarts, len(factory.shards)) == (True, 1, 2)
    await worker.run(PACK)


async def test_two_packs_that_fail_with_one_shard_replace_it_once() -> None:
    factory = Factory()
    worker = await started(factory)
    factory.shards[0].is_dead = True
    outcomes = await asyncio.gather(worker.run(PACK), worker.run(PACK), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ShardDied, ShardDied]
    await settled(worker)
    assert len(factory.shards) == 2


async def test_a_hanging_shard_is_killed_and_replaced() -> None:
    factory = Factory()
    worker = await started(factory, pack_timeout_s=0.05)
    factory.shards[0].hangs = True
    with pytest.raises(ShardDied, match="hangs"):
        await worker.run(PACK)
    await settled(worker)
    assert factory.shards[0].is_dead
    assert worker.is_ready


async def test_a_pack_that_fails_in_a_live_shard_does_not_replace_it() -> None:
    factory = Factory()
    worker = await started(factory)
    factory.shards[0].pack_error = RuntimeError("bad pack")
    with pytest.raises(PackFailed, match="bad pack"):
        await worker.run(PACK)
    assert worker.is_ready
    assert len(factory.shards) == 1


async def test_a_worker_whose_shards_spoil_all_rows_gives_up() -> None:
    def spoil(shard: FakeShard) -> None:
        shard.finite = (False,)

    factory = Factory(spoil)
    worker = await started(factory)
    while not worker.has_given_up:
        assert (await worker.run(PACK)).finite == (False,)
        worker.give_up_shard("spoilt")
        await settled(worker)
    assert len(factory.shards) == 3


async def test_a_shard_that_never_comes_up_again_makes_the_worker_give_up() -> None:
    def only_the_first_lives(shard: FakeShard) -> None:
        shard.is_dead = shard.number > 0

    factory = Factory(only_the_first_lives)
    worker = await started(factory)
    factory.shards[0].is_dead = True
    with pytest.raises(ShardDied):
        await worker.run(PACK)
    await settled(worker)
    assert worker.has_given_up
    assert worker.state == "failed"
    assert worker.restarts == 2


async def test_a_good_pack_forgets_earlier_deaths() -> None:
    factory = Factory()
    worker = await started(factory)
    for number in range(5):
        factory.shards[number].is_dead = True
        with pytest.raises(ShardDied):
            await worker.run(PACK)
        await settled(worker)
        await worker.run(PACK)
    assert worker.restarts == 5
    assert not worker.has_given_up


async def test_deaths_without_a_good_pack_between_them_add_up() -> None:
    factory = Factory()
    worker = await started(factory)
    for number in range(3):
        factory.shards[number].is_dead = True
        with pytest.raises(ShardDied):
            await worker.run(PACK)
        await settled(worker)
    assert worker.has_given_up


async def test_a_health_check_finds_an_idle_shard_dead_and_replaces_it() -> None:
    factory = Factory()
    worker = await started(factory)
    factory.shards[0].is_dead = True
    await worker.check()
    assert not worker.is_ready
    await settled(worker)
    assert worker.is_ready


async def test_a_health_check_replaces_a_shard_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "STATUS_TIMEOUT_S", 0.05)
    factory = Factory()
    worker = await started(factory)
    factory.shards[0].hangs = True
    await worker.check()
    await settled(worker)
    assert len(factory.shards) == 2


async def test_stopping_ends_the_shard_and_a_replacement_under_way() -> None:
    factory = Factory()
    worker = await started(factory)
    factory.shards[0].is_dead = True
    with pytest.raises(ShardDied):
        await worker.run(PACK)
    worker.stop()
    await asyncio.sleep(0.01)
    assert not worker.is_ready
    assert all(shard.is_dead for shard in factory.shards)


async def test_a_health_check_replaces_a_shard_that_is_at_one_pack_for_too_long() -> None:
    factory = Factory()
    worker = await started(factory)
    factory.shards[0].busy_s = 59.0
    await worker.check()
    assert worker.is_ready
    factory.shards[0].busy_s = 61.0
    await worker.check()
    await settled(worker)
    assert len(factory.shards) == 2
