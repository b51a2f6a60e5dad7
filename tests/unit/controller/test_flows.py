"""How much may be in flight follows from how long the loop takes to get round."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from volplane.controller.workqueue import AdaptiveConcurrency, WorkQueue
from volplane_testing.clock import run


async def probe(concurrency: AdaptiveConcurrency, times: int, *, busy: float) -> None:
    """As a worker does, in a loop whose turns take `busy` seconds."""

    def work() -> None:
        until = time.thread_time() + busy
        while time.thread_time() < until:
            pass

    for _ in range(times):
        if busy:
            asyncio.get_running_loop().call_soon(work)
        concurrency.probe(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_an_idle_loop_keeps_the_maximum() -> None:
    concurrency = AdaptiveConcurrency(maximum=16, minimum=4)
    await probe(concurrency, 20, busy=0.0)
    assert concurrency.limit == 16


@pytest.mark.real_time
async def test_a_busy_loop_allows_less_and_less_but_never_less_than_the_fewest() -> None:
    concurrency = AdaptiveConcurrency(maximum=16, minimum=4)
    seen = []
    for _ in range(20):
        await probe(concurrency, 1, busy=0.004)
        seen.append(concurrency.limit)
    assert seen == sorted(seen, reverse=True)
    assert seen[0] < 16
    assert seen[-1] == 4


@pytest.mark.real_time
async def test_when_it_is_over_more_is_allowed_again() -> None:
    concurrency = AdaptiveConcurrency(maximum=16, minimum=4)
    await probe(concurrency, 30, busy=0.004)
    low = concurrency.limit
    await probe(concurrency, 200, busy=0.0005)
    assert low == 4
    assert concurrency.limit > 12


def test_fewer_than_the_fewest_workers_are_all_allowed() -> None:
    assert AdaptiveConcurrency(maximum=2, minimum=4).limit == 2


class Fixed(AdaptiveConcurrency):
    """Its limit is set by the test."""

    now = 3

    @property
    def limit(self) -> int:
        return self.now


def crowd_of(
    keys: int, allowed: int, meanwhile: Callable[[WorkQueue, Fixed], Awaitable[None]]
) -> list[tuple[float, int]]:
    """Five workers on a crowd in flow c, a second a key, while something else happens.

    When each of the crowd's keys was begun, and how many of them were in work then.
    """
    concurrency = Fixed(maximum=3, minimum=1)
    concurrency.now = allowed
    queue = WorkQueue("claims", flow=lambda key: key[0], concurrency=concurrency)
    seen: list[tuple[float, int]] = []

    async def work() -> None:
        while (key := await queue.get()) is not None:
            if key.startswith("c"):
                at_once = sum(each.startswith("c") for each in queue.working)
                seen.append((asyncio.get_running_loop().time(), at_once))
            await asyncio.sleep(1)
            queue.done(key)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(work())
            for number in range(keys):
                queue.add(f"c{number}")
            await meanwhile(queue, concurrency)
            queue.close()

    run(main())
    return seen


def test_a_crowd_shrinks_to_what_is_allowed_while_others_have_work_and_loses_no_key() -> None:
    async def others_come(queue: WorkQueue, concurrency: Fixed) -> None:
        for number in range(60):
            queue.add(f"other{number}")
            concurrency.now = 1 if 10 <= number < 30 else 3
            await asyncio.sleep(0.5)

    seen = crowd_of(50, 3, others_come)
    assert len(seen) == 50
    assert {count for at, count in seen if at < 5} == {1, 2, 3}
    assert {count for at, count in seen if 7 <= at < 15} == {1}
    assert max(count for at, count in seen if at >= 16) == 3


def test_a_crowd_that_is_alone_may_have_the_most_however_busy_the_loop() -> None:
    async def another_comes(queue: WorkQueue, _: Fixed) -> None:
        await asyncio.sleep(2.5)
        queue.add("other")
        await asyncio.sleep(20)

    seen = crowd_of(25, 1, another_comes)
    assert len(seen) == 25
    assert max(count for at, count in seen if at < 2.5) == 3
    assert {count for at, count in seen if 3 <= at < 4} <= {1}, "for the moment there is somebody to delay"
    assert max(count for at, count in seen if at > 5) == 3
