import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from volplane.cli.framework import eventloop

SLOW = """
import asyncio
from volplane.cli.framework import eventloop

async def main(stop):
    print("ready", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    await asyncio.Event().wait()

eventloop.run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_to_stop(number: signal.Signals) -> None:
    seen: list[str] = []

    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), number)
        await stop.wait()
        seen.append("stopped in order")

    before = signal.getsignal(number)
    try:
        with pytest.raises(KeyboardInterrupt) if number is signal.SIGINT else contextlib.nullcontext():
            eventloop.run(main)
    finally:
        signal.signal(number, before)
    assert seen == ["stopped in order"]


def test_what_fails_in_the_end_after_ctrl_c_is_no_error() -> None:
    async def main(stop: asyncio.Event) -> None:
        signal.raise_signal(signal.SIGINT)
        await stop.wait()
        raise LookupError("the other half was stopped first")

    with pytest.raises(KeyboardInterrupt):
        eventloop.run(main)


def test_the_second_signal_ends_a_process_that_hangs() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            process.send_signal(signal.SIGTERM)
            if line == "stopping\n":
                break
        assert process.wait(timeout=60) == 128 + signal.SIGTERM


def test_what_main_raises_is_raised() -> None:
    async def main(_: asyncio.Event) -> None:
        raise LookupError("nothing")

    with pytest.raises(LookupError):
        eventloop.run(main)


def test_the_loop_is_the_fast_one_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    modules: list[str] = []

    async def main(_: asyncio.Event) -> None:
        modules.append(type(asyncio.get_running_loop()).__module__)

    eventloop.run(main)
    assert modules == ["uvloop"]


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is frozen, and garbage is collected as Python begins."""
    before = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_garbage_is_collected_seldom_while_a_command_runs() -> None:
    seen: list[int] = []

    async def main(_: asyncio.Event) -> None:
        seen.append(gc.get_threshold()[0])
        assert gc.get_freeze_count() > 0

    eventloop.run(main)
    assert seen == [eventloop.YOUNG]
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("thawed")
def test_what_was_frozen_before_a_command_stays_so() -> None:
    async def main(_: asyncio.Event) -> None:
        assert gc.get_freeze_count() > 0

    gc.freeze()
    eventloop.run(main)
    assert gc.get_freeze_count() > 0
