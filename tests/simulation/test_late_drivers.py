"""Schedules of trouble in which drivers are made while their processes work already, a moment later or much later."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from schedules import soaked
from volplane.drivers.driver import Driver, PendingDriver
from volplane.drivers.registry import DriverRegistry
from volplane_testing import run_seed
from volplane_testing.simulation.process import Process, ProcessParts

SECONDS = (0.5, 3.0, 10.0, 40.0)


@pytest.fixture
def made_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most drivers of each process are made after it has begun."""
    begin, live = Process.__init__, Process._live
    held: dict[Process, list[tuple[PendingDriver, Driver]]] = {}

    def begin_without(process: Process, name: str, parts: ProcessParts) -> None:
        begin(process, name, parts)
        chance = random.Random(f"{parts.seed} {name}")
        late = [driver for driver in parts.drivers if chance.random() < 0.6]
        held[process] = [(PendingDriver(name=each.name, backend="late", doing="importing"), each) for each in late]
        process._loaded = replace(
            process._loaded,
            drivers=tuple(each for each in parts.drivers if each not in late),
            pending=tuple(pending for pending, _ in held[process]),
        )

    async def live_and_make(process: Process) -> None:
        chance = random.Random(process.name)
        for pending, driver in held[process]:
            asyncio.get_running_loop().call_later(chance.choice(SECONDS), pending.made.set_result, driver)
        await live(process)

    monkeypatch.setattr(Process, "__init__", begin_without)
    monkeypatch.setattr(Process, "_live", live_and_make)


@pytest.mark.usefixtures("made_late")
@pytest.mark.parametrize("seed", soaked(range(100), few=4))
def test_nothing_breaks_while_drivers_are_made(seed: int) -> None:
    report = run_seed(seed)
    assert report.passed, str(report)


@pytest.mark.usefixtures("made_late")
def test_a_driver_that_never_joins_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(_registry: DriverRegistry, _pending: PendingDriver) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(DriverRegistry, "_keep_once_made", wait)
    assert not run_seed(2).passed
