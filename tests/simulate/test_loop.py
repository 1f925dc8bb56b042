import asyncio

import pytest

from encoder_pool.simulate.loop import NothingLeft, VirtualLoop, run


def test_waiting_moves_the_clock_and_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run(main()) == 3600


def test_what_comes_first_happens_first_and_of_one_moment_what_was_set_first() -> None:
    seen: list[str] = []

    async def at(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        seen.append(name)

    async def main() -> None:
        await asyncio.gather(at(2, "c"), at(1, "a"), at(1, "b"), at(3, "d"))

    run(main())
    assert seen == ["a", "b", "c", "d"]


def test_timeouts_and_conditions_work_as_on_any_loop() -> None:
    async def main() -> float:
        condition = asyncio.Condition()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), condition:
                await condition.wait()
        return asyncio.get_running_loop().time()

    assert run(main()) == 5


def test_threads_do_their_work_at_once_on_the_loops_own() -> None:
    async def main() -> tuple[int, float]:
        value = await asyncio.to_thread(lambda: 7)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return value, asyncio.get_running_loop().time()

    assert run(main()) == (7, 0)


def test_timeouts_that_did_not_come_are_forgotten() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for _ in range(5000):
            async with asyncio.timeout(60):
                await asyncio.sleep(0.001)
        return len(loop._timers)

    assert run(main()) <= 1001


def test_coroutines_that_wait_for_each_other_end_the_simulation() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    loop = VirtualLoop()
    task = loop.create_task(main())
    with pytest.raises(NothingLeft, match="nothing is left to happen"):
        loop.run_until_complete(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
