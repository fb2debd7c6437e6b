"""Uploads that together would take too much memory wait for each other, in their order."""

import asyncio

from fedsm.serve.budget import Budget


def run(total: int, *asked: int) -> tuple[list[int], int]:
    """In which order requests got their bytes, and the most that was out at once."""
    order, out, most = [], 0, 0

    async def one(budget: Budget, number: int) -> None:
        nonlocal out, most
        async with budget.take(asked[number]):
            order.append(number)
            out += asked[number]
            most = max(most, out)
            for _ in range(5):
                await asyncio.sleep(0)
            out -= asked[number]

    async def everybody() -> None:
        budget = Budget(total)
        await asyncio.gather(*(one(budget, number) for number in range(len(asked))))

    asyncio.run(asyncio.wait_for(everybody(), 20))
    return order, most


def test_never_more_than_there_is():
    assert run(10, 4, 4, 4, 4, 4) == ([0, 1, 2, 3, 4], 8)


def test_small_ones_do_not_overtake_a_large_one_for_ever():
    assert run(10, 6, 9, 1, 1)[0] == [0, 1, 2, 3]


def test_one_that_is_larger_than_all_goes_alone():
    assert run(10, 3, 50, 3) == ([0, 1, 2], 50)


def test_what_was_cancelled_gives_its_turn_away():
    async def go() -> None:
        budget = Budget(10)
        async with budget.take(10):
            waiting = asyncio.create_task(budget.take(5).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(20), budget.take(10):
            pass

    asyncio.run(go())
