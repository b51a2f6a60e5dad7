"""The event loop of a command: uvloop if it is installed; SIGTERM and SIGINT set an event."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["run"]

YOUNG = 20_000
"""Allocations less deallocations between two collections of the youngest generation; Python's default is 700."""


def run(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `main(stop)` to its end. `stop` is set by the first SIGTERM or SIGINT; a second one ends the process at once.

    The loop is uvloop where the extra `speed` is installed. Raises what `main` raises.
    """
    with _rare_collection(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_with_signals(main))


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Collect garbage rarely, and skip what imports left: cached objects are in no cycles, requests in few."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop  # noqa: PLC0415 - an optional extra

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _with_signals(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)

    def stopped() -> None:
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in signals:
        loop.add_signal_handler(number, stopped)
    try:
        await main(stop)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
