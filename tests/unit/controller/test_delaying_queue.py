"""Keys that are due later, on every event loop that a process may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from volplane.controller.workqueue import WorkQueue


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    if request.param == "asyncio":
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = pytest.importorskip("uvloop").new_event_loop
    return factory


def test_a_key_that_is_due_at_once_is_not_lost_and_holds_up_no_other(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A time less than 1 ms away: uvloop gives no timer for it, but calls it soon."""

    async def main() -> list[str | None]:
        queue = WorkQueue("claims")
        queue.add_after("later", 0.01)
        queue.add_after("soon", 0.0004)
        queue.add_after("past", -1.0)
        async with asyncio.timeout(5.0):
            return [await queue.get() for _ in range(3)]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == ["past", "soon", "later"]
