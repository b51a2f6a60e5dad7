"""The loop with virtual time."""

import asyncio
import threading
import time
from datetime import UTC, datetime

import pytest

from volplane_testing.clock import Deadlock, OutOfTime, VirtualTimeLoop, now, run


def test_hours_pass_without_waiting() -> None:
    async def main() -> float:
        await asyncio.sleep(36 * 3600)
        return asyncio.get_running_loop().time()

    begun = time.monotonic()
    assert run(main()) == pytest.approx(36 * 3600)
    assert time.monotonic() - begun < 5


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        for name, when in (("c", 3.3), ("a", 0.1), ("b", 0.7)):
            loop.call_later(when, seen.append, name)
        await asyncio.sleep(3.3)
        await asyncio.sleep(0)
        return seen

    assert run(main()) == ["a", "b", "c"]


def test_timeouts_work_in_virtual_time() -> None:
    async def main() -> None:
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run(main())


def test_waiting_for_nobody_is_a_deadlock_that_names_the_tasks() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"at 0\.000 s 1 tasks wait:\n.*main"):
        run(main())


def test_going_on_for_ever_runs_out_of_time() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(60)

    with pytest.raises(OutOfTime, match="3600 virtual seconds are over"):
        run(main(), limit=3600)


def _order(seed: int | None) -> list[int]:
    async def main() -> list[int]:
        seen: list[int] = []

        async def step(number: int) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(step(number))
        return seen

    return run(main(), seed=seed)


def test_without_a_seed_the_order_is_that_of_asyncio() -> None:
    assert _order(None) == [0, 1, 2, 3, 4] * 3


def test_a_seed_decides_the_order_and_repeats_it() -> None:
    orders = [_order(seed) for seed in range(20)]
    assert orders == [_order(seed) for seed in range(20)]
    assert len({tuple(order) for order in orders}) > 10


def test_time_stands_still_while_a_thread_computes() -> None:
    async def main() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        loop.call_later(10, lambda: None)
        answer = await asyncio.to_thread(lambda: "computed")
        return answer, loop.time()

    assert run(main()) == ("computed", 0.0)


def test_a_thread_that_hangs_does_not_stop_time() -> None:
    free = threading.Event()

    async def main() -> float:
        waiting = asyncio.create_task(asyncio.to_thread(free.wait))
        await asyncio.wait({waiting}, timeout=120)
        free.set()
        await waiting
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(120)


def test_time_moves_after_thirty_years() -> None:
    loop = VirtualTimeLoop()
    loop._virtual = 1e9
    try:
        loop.run_until_complete(asyncio.sleep(1.1))
        assert loop.time() > 1e9 + 1
    finally:
        loop.close()


def test_wall_time_follows_loop_time() -> None:
    async def main() -> datetime:
        await asyncio.sleep(90)
        return now()

    assert run(main()) == datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)
