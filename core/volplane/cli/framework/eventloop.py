"""The event loop of a command: uvloop if it is installed; SIGTERM and SIGINT set an event, a second one is final."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
YOUNG = 20_000
"""Allocations less deallocations between two collections of the youngest generation; Python's default is 700."""


def run(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run `main(stop)` to its end. `stop` is set by the first SIGTERM or SIGINT; a second one ends the process at once.

    The loop is uvloop where the extra `speed` is installed. Raises KeyboardInterrupt once `main` has ended after a
    SIGINT, else what `main` raises.
    """
    received: list[signal.Signals] = []

    async def with_signals() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def stopped(number: signal.Signals) -> None:
            received.append(number)
            stop.set()
            for each in SIGNALS:
                loop.remove_signal_handler(each)
                signal.signal(each, lambda last, _frame: os._exit(128 + last))

        for number in SIGNALS:
            loop.add_signal_handler(number, stopped, number)
        try:
            await main(stop)
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop  # noqa: PLC0415 - an optional extra

        factory = uvloop.new_event_loop
    try:
        with _rare_collection(), asyncio.Runner(loop_factory=factory) as runner:
            runner.run(with_signals())
    except Exception as failure:
        if signal.SIGINT in received:
            raise KeyboardInterrupt from failure
        raise
    if signal.SIGINT in received:
        raise KeyboardInterrupt


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Collect garbage rarely, and skip what imports left: cached objects are in no cycles, requests in few."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    frozen_before = gc.get_freeze_count() > 0  # what the caller has frozen stays frozen
    if not frozen_before:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()
        gc.set_threshold(*before)
