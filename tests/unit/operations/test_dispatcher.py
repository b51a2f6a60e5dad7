"""From a `Run` to its work, and operations that a person asked for."""

from __future__ import annotations

import asyncio

import pytest

from unit.operations.bench import Bench, an_operation, failing, now, sleeping
from volplane.controller.actions import Run
from volplane.controller.controller import Work
from volplane.errors import Unavailable
from volplane.operations.operation import Again
from volplane.operations.registry import OneShots, OneShotState, OneShotStatus

FIRST, SECOND = an_operation("repair", asset="1"), Run(verb="repair", key="other", uid="uid", driver="d", asset="2")


class Repairs:
    """One-shot operations whose work is given by the test, and that write down when they ran."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.ran: list[tuple[str, float]] = []
        self.outcomes: list[object] = []
        self.shots = OneShots(self.bench.registry, "repair", self._perform)

    def start(self, *runs: Run) -> None:
        self.shots.start((run, run.key) for run in runs)

    async def _perform(self, _run: Run, item: str) -> str | None:
        self.ran.append((item, now()))
        outcome = self.outcomes.pop(0) if self.outcomes else None
        await asyncio.sleep(1.0)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome) if outcome is not None else None

    def status(self, run: Run = FIRST) -> OneShotStatus | None:
        return self.shots.statuses.get(run.name)


async def test_a_verb_is_done_by_its_handler_and_its_object_is_queued_again() -> None:
    bench = Bench()
    did: list[str] = []

    def handler(run: Run) -> Work:
        async def work() -> None:
            did.append(run.name)

        return work

    bench.registry.register("repair", handler)
    bench.registry.dispatch(FIRST, lambda: did.append("queued"))
    await asyncio.sleep(0.1)
    assert did == ["repair-data[uid]", "queued"]
    with pytest.raises(ValueError, match="verb repair has a handler already"):
        bench.registry.register("repair", handler)
    with pytest.raises(KeyError):
        bench.registry.dispatch(an_operation("unknown"), lambda: None)


async def test_what_a_person_asked_for_runs_once_and_says_what_was_done() -> None:
    repairs = Repairs()
    repairs.outcomes = ["volume v was deleted"]
    assert repairs.status() is None
    repairs.start(FIRST, SECOND)
    assert repairs.status() == OneShotStatus(state=OneShotState.RUNNING)
    repairs.start(FIRST)
    assert repairs.status() == OneShotStatus(state=OneShotState.RUNNING)
    await asyncio.sleep(600.0)
    assert repairs.ran == [("data", 0.0), ("other", 0.0)]
    assert repairs.status() == OneShotStatus(state=OneShotState.DONE, detail="volume v was deleted")
    assert repairs.status(SECOND) == OneShotStatus(state=OneShotState.DONE)
    assert repairs.bench.registry.snapshot() == ()


async def test_what_failed_is_told_and_not_tried_again() -> None:
    repairs = Repairs()
    repairs.outcomes = [Unavailable("the filer is down"), TimeoutError()]
    repairs.start(FIRST, SECOND)
    await asyncio.sleep(600.0)
    assert repairs.ran == [("data", 0.0), ("other", 0.0)]
    assert repairs.status() == OneShotStatus(state=OneShotState.FAILED, detail="the filer is down")
    assert repairs.status(SECOND) == OneShotStatus(state=OneShotState.FAILED, detail="TimeoutError")


async def test_a_failure_that_is_forgotten_is_not_taken_up_at_the_end_of_its_delay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    repairs = Repairs()
    repairs.outcomes = [Unavailable("down")]
    repairs.start(FIRST)
    await asyncio.sleep(1.1)
    repairs.start(SECOND)
    assert repairs.status() is None
    caplog.clear()
    await asyncio.sleep(600.0)
    assert repairs.ran == [("data", 0.0), ("other", 1.1)]
    assert not [record for record in caplog.records if record.exc_info]


async def test_what_takes_several_calls_goes_on_until_it_is_done() -> None:
    repairs = Repairs()
    repairs.outcomes = [Again(after=20.0), "done at last"]
    repairs.start(FIRST)
    await asyncio.sleep(10.0)
    assert repairs.status() == OneShotStatus(state=OneShotState.RUNNING)
    await asyncio.sleep(600.0)
    assert repairs.ran == [("data", 0.0), ("data", 21.0)]
    assert repairs.status() == OneShotStatus(state=OneShotState.DONE, detail="done at last")


async def test_what_holds_the_asset_refuses_it() -> None:
    repairs = Repairs()
    repairs.bench.start("delete", sleeping(5.0), asset="1")
    repairs.start(FIRST)
    refused = repairs.status()
    assert refused is not None
    assert refused.state is OneShotState.REFUSED
    assert refused.state.value == "refused", "as commands show it"
    assert refused.detail.startswith("repair-data[uid] waits for delete-data[uid], which is ")
    await asyncio.sleep(600.0)
    assert repairs.ran == []
    assert repairs.status() == refused


async def test_a_person_may_ask_again_once_it_has_ended_and_earlier_ends_are_forgotten() -> None:
    repairs = Repairs()
    repairs.start(FIRST, SECOND)
    await asyncio.sleep(5.0)
    repairs.start(FIRST)
    assert repairs.status(SECOND) is None
    await asyncio.sleep(5.0)
    assert repairs.ran == [("data", 0.0), ("other", 0.0), ("data", 5.0)]


async def test_a_delay_after_a_failure_refuses_what_a_person_asks_for_meanwhile() -> None:
    repairs = Repairs()
    repairs.outcomes = [Unavailable("down")]
    repairs.start(FIRST)
    await asyncio.sleep(1.1)
    repairs.start(FIRST)
    refused = repairs.status()
    assert refused is not None
    assert refused.state is OneShotState.REFUSED
    assert "failed 1 times, last: down; next try in" in refused.detail


async def test_what_failed_on_the_asset_does_not_hold_it_up() -> None:
    repairs = Repairs()
    repairs.bench.start("provision", failing(RuntimeError("a bug")), asset="1")
    await asyncio.sleep(0.1)
    repairs.start(FIRST)
    await asyncio.sleep(2.0)
    assert repairs.status() == OneShotStatus(state=OneShotState.DONE)
