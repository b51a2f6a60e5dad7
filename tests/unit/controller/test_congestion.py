"""How much may be in flight follows from how long the loop takes to get round."""

import asyncio
import time

from volplane.controller.congestion import Congestion
from volplane.controller.workqueue import WorkQueue
from volplane.testing.clock import run


async def ask(congestion: Congestion, times: int, *, busy: float) -> None:
    """As a worker does, in a loop whose turns take `busy` seconds."""

    def work() -> None:
        until = time.monotonic() + busy
        while time.monotonic() < until:
            pass

    for _ in range(times):
        if busy:
            asyncio.get_running_loop().call_soon(work)
        congestion.ask()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def test_a_loop_at_leisure_allows_the_most() -> None:
    async def main() -> int:
        congestion = Congestion(most=16, fewest=4)
        await ask(congestion, 20, busy=0.0)
        return congestion.allowed

    assert run(main()) == 16


def test_a_busy_loop_allows_less_and_less_but_never_less_than_the_fewest() -> None:
    async def main() -> list[int]:
        congestion = Congestion(most=16, fewest=4)
        seen = []
        for _ in range(20):
            await ask(congestion, 1, busy=0.004)
            seen.append(congestion.allowed)
        return seen

    seen = asyncio.run(main())
    assert seen == sorted(seen, reverse=True)
    assert seen[0] < 16
    assert seen[-1] == 4


def test_when_it_is_over_more_is_allowed_again() -> None:
    async def main() -> tuple[int, int]:
        congestion = Congestion(most=16, fewest=4)
        await ask(congestion, 30, busy=0.004)
        low = congestion.allowed
        await ask(congestion, 200, busy=0.0)
        return low, congestion.allowed

    low, high = asyncio.run(main())
    assert low == 4
    assert high > 12


def test_fewer_than_the_fewest_workers_are_all_allowed() -> None:
    assert Congestion(most=2, fewest=4).allowed == 2


def test_a_crowded_lane_shrinks_to_what_is_allowed_and_grows_again_without_losing_a_key() -> None:
    class Told(Congestion):
        now = 3

        @property
        def allowed(self) -> int:
            return self.now

    async def main() -> tuple[list[int], list[str]]:
        congestion = Told(most=3, fewest=1)
        queue = WorkQueue("claims", lane=lambda _key: "class", congestion=congestion)
        in_work: list[int] = []
        done: list[str] = []

        async def work() -> None:
            while (key := await queue.get()) is not None:
                in_work.append(len(queue.working))
                await asyncio.sleep(1)
                done.append(key)
                queue.done(key)

        workers = [asyncio.ensure_future(work()) for _ in range(5)]
        for number in range(20):
            queue.add(f"k{number}")
        await asyncio.sleep(1.5)
        congestion.now = 1
        await asyncio.sleep(4)
        congestion.now = 3
        await asyncio.sleep(30)
        queue.close()
        await asyncio.gather(*workers)
        return in_work, done

    in_work, done = run(main())
    assert sorted(done) == sorted(f"k{number}" for number in range(20))
    assert max(in_work[:3]) == 3
    assert in_work[8] == 1
    assert in_work[-1] == 3
