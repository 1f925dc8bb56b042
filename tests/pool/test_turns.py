import asyncio

import pytest

from encoder_pool.pool.turns import Turns


class Stage:
    """Counts who is on it and remembers the order of entries."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.entered: list[str] = []
        self.leave = {name: asyncio.Event() for name in "abcd"}

    async def shared(self, name: str) -> None:
        async with self.turns.shared():
            self.entered.append(name)
            await self.leave[name].wait()

    async def alone(self, name: str) -> None:
        async with self.turns.alone():
            self.entered.append(name)
            await self.leave[name].wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_sharers_are_side_by_side() -> None:
    stage = Stage()
    tasks = [asyncio.create_task(stage.shared(name)) for name in "ab"]
    await settle()
    assert stage.entered == ["a", "b"]
    for task in tasks:
        task.cancel()


async def test_one_alone_waits_for_sharers_and_goes_before_those_who_come_later() -> None:
    stage = Stage()
    tasks = [asyncio.create_task(stage.shared("a"))]
    await settle()
    tasks += [asyncio.create_task(stage.alone("b")), asyncio.create_task(stage.shared("c"))]
    await settle()
    assert stage.entered == ["a"]
    stage.leave["a"].set()
    await settle()
    assert stage.entered == ["a", "b"]
    stage.leave["b"].set()
    await settle()
    assert stage.entered == ["a", "b", "c"]
    stage.leave["c"].set()
    await asyncio.gather(*tasks)


async def test_two_who_want_it_alone_take_turns() -> None:
    stage = Stage()
    tasks = [asyncio.create_task(stage.alone(name)) for name in "ab"]
    await settle()
    assert stage.entered == ["a"]
    stage.leave["a"].set()
    await settle()
    assert stage.entered == ["a", "b"]
    stage.leave["b"].set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("kind", ["shared", "alone"])
async def test_a_turn_that_is_cancelled_is_free_again(kind: str) -> None:
    stage = Stage()
    holder = asyncio.create_task(getattr(stage, kind)("a"))
    await settle()
    waiter = asyncio.create_task(stage.alone("b"))
    await settle()
    waiter.cancel()
    holder.cancel()
    await settle()
    task = asyncio.create_task(stage.shared("c"))
    await settle()
    assert stage.entered == ["a", "c"]
    task.cancel()
