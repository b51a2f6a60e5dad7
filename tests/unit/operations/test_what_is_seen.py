"""What can be seen of operations, and what is said where one is refused."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from unit.operations.bench import Bench, Ended, an_operation, failing, now, sleeping
from volplane.controller.actions import Run
from volplane.errors import BackoffError, InvalidArgument, OperationError, OperationInProgress, Unavailable
from volplane.operations.operation import UNLIMITED, Again, DriverLimits, OperationState, Phase, hold_until
from volplane.operations.registry import OperationRegistry

FAILED = Unavailable("down")


def state(verb: str, *, asset: str, phase: Phase, since: float, node: str = "", **more: object) -> OperationState:
    given: dict[str, object] = {"key": "data", "uid": "uid", "driver": "d", **more}
    name = f"{verb}-data[{node or 'uid'}]"
    return OperationState(name=name, verb=verb, asset=asset, node=node, phase=phase, since=since, **given)  # type: ignore[arg-type]


async def test_everything_that_runs_waits_or_pauses_is_seen_oldest_first() -> None:
    bench = Bench({"d": DriverLimits(concurrency=1)})
    bench.start("failed", failing(FAILED), asset="1")
    await asyncio.sleep(0.1)
    bench.start("runs", sleeping(5.0), asset="2", node="n")
    await asyncio.sleep(0.1)
    bench.start("b", asset="4")
    bench.start("a", asset="3")
    assert bench.registry.snapshot() == (
        state("failed", asset="1", phase=Phase.WAITING, since=0.0, next_try=0.5, failures=1, error="down"),
        state("runs", asset="2", node="n", phase=Phase.RUNNING, since=0.1),
        state("a", asset="3", phase=Phase.QUEUED, since=0.2),
        state("b", asset="4", phase=Phase.QUEUED, since=0.2),
    )
    counted = {("d", "failed", "waiting"): 1, ("d", "runs", "running"): 1}
    assert bench.registry.counts() == Counter({**counted, ("d", "a", "queued"): 1, ("d", "b", "queued"): 1})


async def test_what_overruns_is_seen_with_its_error_and_what_goes_on_later_without_failures() -> None:
    bench = Bench()
    hung = asyncio.get_running_loop().create_future()

    async def overrun() -> None:
        hold_until(hung)
        raise FAILED

    bench.start("overruns", overrun, asset="1")
    bench.start("goes-on", failing(Again(after=20.0)), asset="2")
    await asyncio.sleep(0.1)
    goes_on, overruns = bench.registry.snapshot()
    assert overruns == state("overruns", asset="1", phase=Phase.OVERRUN, since=0.0, error="down")
    assert str(Again(after=20.0)) == "goes on in 20 s"
    assert (goes_on.verb, goes_on.phase, goes_on.next_try, goes_on.failures) == ("goes-on", Phase.WAITING, 20.0, 0)
    hung.set_result(None)
    await asyncio.sleep(0.1)
    assert [each.phase for each in bench.registry.snapshot()] == [Phase.WAITING, Phase.WAITING]


async def test_every_end_is_reported_with_how_long_it_took_and_when_it_goes_on() -> None:
    bench = Bench()

    async def fails_later() -> None:
        await asyncio.sleep(2.0)
        raise FAILED

    bench.start("fails", fails_later, asset="1")
    bench.start("goes-on", failing(Again(after=20.0)), asset="2")
    bench.start("succeeds", sleeping(1.0), asset="3")
    await asyncio.sleep(2.1)
    assert bench.ended == [
        Ended(run=an_operation("goes-on", asset="2"), seconds=0.0, error=None),
        Ended(run=an_operation("succeeds", asset="3"), seconds=1.0, error=None),
        Ended(run=an_operation("fails", asset="1"), seconds=2.0, error=FAILED),
    ]


async def test_what_is_refused_says_by_what_and_until_when() -> None:
    bench = Bench()
    bench.start("runs", sleeping(5.0), asset="1")
    with pytest.raises(OperationInProgress, match=r"runs-data\[uid\] is queued already|is running already"):
        bench.start("runs", asset="2")
    with pytest.raises(OperationInProgress, match=r"other-data\[uid\] waits for runs-data\[uid\], which is running"):
        bench.start("other", asset="1")
    bench.start("fails", failing(FAILED), asset="3")
    bench.start("goes-on", failing(Again(after=20.0)), asset="4")
    await asyncio.sleep(0.1)
    with pytest.raises(BackoffError, match=r"fails-data\[uid\] failed 1 times, last: down; next try in 0\.4 s") as late:
        bench.start("fails", asset="3")
    assert late.value.until == 0.5
    with pytest.raises(BackoffError, match=r"goes-on-data\[uid\] is in progress; next try in 19\.9 s"):
        bench.start("goes-on", asset="4")
    await bench.registry.drain(0.0)
    with pytest.raises(OperationError, match=r"late-data\[uid\] was not started: driver d is shutting down"):
        bench.start("late", asset="5")


async def test_limits_are_those_of_the_driver_or_the_default_ones_and_none_without_a_driver() -> None:
    registry = OperationRegistry({"d": DriverLimits(concurrency=3)})
    assert registry.limits("d") == DriverLimits(concurrency=3)
    assert registry.limits("e") == DriverLimits(concurrency=10, rate=None, timeout=120.0)
    assert registry.limits("") is UNLIMITED
    assert UNLIMITED.concurrency > 10**9


async def test_the_attempts_of_an_operation_are_counted_within_it_alone() -> None:
    bench = Bench()
    attempts: list[int] = []

    async def fails() -> None:
        attempts.append(bench.registry.attempt())
        raise FAILED

    def again() -> None:
        if len(attempts) < 3:
            bench.start("fails", fails, requeue=again)

    assert bench.registry.attempt() == 1
    again()
    await asyncio.sleep(60.0)
    assert attempts == [1, 2, 3]
    assert bench.registry.attempt() == 1


async def test_the_next_delay_follows_the_failures_so_far() -> None:
    bench = Bench()
    run = an_operation("fails")
    assert bench.registry.next_delay(run, FAILED) == 0.5
    bench.start("fails", failing(FAILED))
    await asyncio.sleep(0.1)
    assert bench.registry.next_delay(run, FAILED) == 1.0, "it pauses"
    await asyncio.sleep(0.5)
    bench.start("fails", sleeping(5.0))
    assert bench.registry.next_delay(run, FAILED) == 1.0, "it runs"


async def test_the_next_delay_is_that_of_the_error() -> None:
    bench = Bench()
    refused = InvalidArgument("no such zone")
    assert bench.registry.next_delay(an_operation("fails"), refused) == 300.0
    bench.start("fails", failing(FAILED))
    await asyncio.sleep(0.1)
    assert bench.registry.next_delay(an_operation("fails"), refused) == 300.0


async def test_how_long_an_operation_takes_is_counted_from_its_begin_not_from_its_place_in_the_queue() -> None:
    bench = Bench({"d": DriverLimits(concurrency=1)})
    bench.start("first", sleeping(10.0), asset="1")
    bench.start("second", sleeping(2.0), asset="2")
    await asyncio.sleep(11.0)
    assert [state.since for state in bench.registry.snapshot()] == [10.0]
    await asyncio.sleep(5.0)
    assert [(each.run.verb, each.seconds) for each in bench.ended] == [("first", 10.0), ("second", 2.0)]


async def test_verbs_take_turns_and_within_one_the_first_comes_first() -> None:
    bench = Bench({"d": DriverLimits(concurrency=1)})
    bench.start("holds", sleeping(1.0), asset="0")
    order: list[str] = []

    def queue(verb: str, number: int) -> None:
        async def work() -> None:
            order.append(f"{verb}{number}")

        run = Run(verb=verb, key=str(number), uid="uid", driver="d", asset=f"{verb}{number}")
        bench.registry.start(run, work, lambda: None)

    for number in range(3):
        queue("detach", number)
    for number in range(2):
        queue("attach", number)
    await asyncio.sleep(5.0)
    assert order == ["detach0", "attach0", "detach1", "attach1", "detach2"]


async def test_a_hook_that_returned_already_holds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)

    async def returned() -> None:
        hold_until(done)

    bench.start("ends", returned)
    await asyncio.sleep(0.1)
    assert bench.registry.snapshot() == ()
    assert bench.requeued == [("ends", 0.0)]
    assert caplog.messages == []
    hold_until(done)  # Outside operations it does nothing.
    assert now() == 0.1
