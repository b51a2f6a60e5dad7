"""Keys that are due later, on every event loop that a process may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from volplane.controller.workqueue import DelayingQueue


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    if request.param == "asyncio":
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = pytest.importorskip("uvloop").new_event_loop
    return factory


def test_a_key_that_is_due_at_once_is_not_lost_and_holds_up_no_other(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A time less than 1 ms away, or past: uvloop gives no timer for it, but a handle without a time."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        due: list[str] = []
        ended = asyncio.Event()

        def come(key: str) -> None:
            due.append(key)
            if len(due) == 4:
                ended.set()

        queue = DelayingQueue(come, loop.time)
        queue.set("past", loop.time() - 1.0)
        queue.set("now", loop.time() + 0.0001)
        queue.set("soon", loop.time() + 0.0004)
        queue.set("later", loop.time() + 0.01)
        async with asyncio.timeout(5.0):
            await ended.wait()
        return due

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == ["past", "now", "soon", "later"]
