import asyncio
from collections.abc import Coroutine
from typing import Any

from encoder_pool.simulate.line import Line, Threads, pause, until
from encoder_pool.simulate.loop import run


def test_one_server_does_one_thing_after_the_other() -> None:
    line = Line()
    assert [line.book(0.0, 2.0), line.book(1.0, 1.0), line.book(5.0, 1.0)] == [2.0, 3.0, 6.0]
    assert line.busy_s == 4.0


def test_several_servers_share_a_queue() -> None:
    line = Line(2)
    assert [line.book(0.0, seconds) for seconds in (3.0, 1.0, 1.0, 1.0)] == [3.0, 1.0, 2.0, 3.0]


def ends(threads: int, cores: int, *work: float) -> list[float]:
    """When each piece of work ended, in the order in which it came."""
    at: dict[int, float] = {}

    async def one(pool: Threads, number: int, seconds: float) -> None:
        await pool.work(seconds)
        at[number] = asyncio.get_running_loop().time()

    async def main() -> None:
        pool = Threads(threads, Line(cores))
        await asyncio.gather(*(one(pool, number, seconds) for number, seconds in enumerate(work)))
        assert pool.busy_s == sum(work)

    run(main())
    return [at[number] for number in range(len(work))]


def test_threads_need_cores() -> None:
    assert ends(3, 8, 1, 1, 1, 1) == [1, 1, 1, 2]
    assert ends(3, 2, 1, 1, 1, 1) == [1, 1, 2, 2]


def test_two_processes_share_the_cores_of_their_host() -> None:
    async def main() -> list[float]:
        cores = Line(1)
        found: list[float] = []

        async def one(threads: Threads) -> None:
            await threads.work(1)
            found.append(asyncio.get_running_loop().time())

        await asyncio.gather(one(Threads(2, cores)), one(Threads(2, cores)))
        return found

    assert run(main()) == [1, 2]


def test_a_wait_that_is_given_up_disturbs_nobody() -> None:
    async def give_up(wait: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(wait)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    async def main() -> float:
        await give_up(until(1))
        await give_up(pause(1))
        await pause(2)
        return asyncio.get_running_loop().time()

    assert run(main()) == 2
