"""Limits of a driver, shutting down, and what can be seen from outside."""

import asyncio
import contextlib
import gc
import logging
import weakref
from functools import partial

import pytest

from unit.operations.bench import Bench, Work, failing, now, sleeping
from volplane.controller import logs
from volplane.controller.actions import Run
from volplane.drivers.executor import PendingCall
from volplane.errors import OperationError, OperationInProgress, Unavailable
from volplane.operations.operation import DriverLimits, Phase
from volplane_testing.executor import InlineExecutor

# --- limits of a driver -----------------------------------------------------------------------------------------


async def test_no_more_than_the_drivers_concurrency_run_at_once_in_order() -> None:
    bench = Bench({"d": DriverLimits(concurrency=2)})
    for number in range(6):
        bench.start(f"p{number}", sleeping(10), asset=str(number))
    await asyncio.sleep(1)
    assert list(bench.phases().values()).count(Phase.QUEUED) == 4
    await asyncio.sleep(60)
    assert bench.ran == [(f"p{n}", 10.0 * (n // 2)) for n in range(6)]


async def test_a_hung_driver_does_not_hold_up_another() -> None:
    bench = Bench({"dead": DriverLimits(concurrency=3)})
    for number in range(50):
        bench.start(f"dead{number}", sleeping(10_000), asset=str(number), driver="dead")
    bench.start("alive", asset="x", driver="alive")
    await asyncio.sleep(0.001)
    assert "alive" not in bench.phases()


async def test_a_queued_operation_holds_its_asset_already() -> None:
    bench = Bench({"d": DriverLimits(concurrency=1)})
    bench.start("first", sleeping(10), asset="1")
    bench.start("second", asset="2")
    with pytest.raises(OperationInProgress, match=r"second-data\[uid\], which is queued"):
        bench.start("third", asset="2")
    await asyncio.sleep(20)


async def test_the_rate_spreads_starts_after_a_burst_of_one_second() -> None:
    bench = Bench({"d": DriverLimits(rate=2.0)})
    for number in range(6):
        bench.start(f"p{number}", asset=str(number))
    await asyncio.sleep(10)
    assert [at for _, at in bench.ran] == [0.0, 0.0, 0.5, 1.0, 1.5, 2.0]


async def test_a_crowd_of_one_group_delays_another_one_by_no_more_than_its_turn() -> None:
    bench, ran = Bench({"d": DriverLimits(rate=5.0)}), list[str]()

    async def work(group: str) -> None:
        ran.append(group)

    for number, group in enumerate((*["crowd"] * 200, "few", "few", "other")):
        run = Run(verb="provision", key=f"c{number}", uid=f"u{number}", driver="d", asset=str(number), group=group)
        bench.registry.start(run, partial(work, group), lambda: None)
    await asyncio.sleep(60)
    assert ran[5:11] == ["crowd", "few", "other", "crowd", "few", "crowd"]  # The first five began at once.
    assert len(ran) == 203


async def test_an_overrun_hook_keeps_its_place_among_the_concurrent() -> None:
    bench = Bench({"d": DriverLimits(concurrency=1)})
    executor = InlineExecutor(latency=lambda _driver, _what: (100.0, 0.0))
    bench.start("hung", lambda: executor.call(PendingCall("d", lambda: None, 1.0)), asset="1")
    bench.start("next", asset="2")
    await asyncio.sleep(200)
    assert bench.ran == [("hung", 0.0), ("next", 100.0)]


# --- shutting down ----------------------------------------------------------------------------------------------


async def test_draining_waits_for_what_runs_drops_what_is_queued_and_refuses_the_rest() -> None:
    bench = Bench({"d": DriverLimits(concurrency=1)})
    bench.start("running", sleeping(5), asset="1")
    bench.start("queued", asset="2")
    bench.start("failed", failing(Unavailable("down")), asset="3", driver="e")
    await asyncio.sleep(0.1)
    assert await bench.registry.drain(30) == ()
    assert now() == 5.0
    with pytest.raises(OperationError, match="shutting down"):
        bench.start("late", asset="4")
    await asyncio.sleep(10)
    assert [name for name, _ in bench.ran] == ["running", "failed"]
    assert bench.requeued == []


async def test_draining_gives_up_after_its_time_and_names_what_still_runs() -> None:
    bench = Bench()
    executor = InlineExecutor(latency=lambda _driver, _what: (50.0, 0.0))
    cancelled: list[str] = []

    async def stubborn() -> None:
        try:
            await executor.call(PendingCall("d", lambda: None, 500.0))
        except asyncio.CancelledError:
            cancelled.append("stubborn")
            raise

    bench.start("stubborn", stubborn, asset="1")
    await asyncio.sleep(0.1)
    assert await bench.registry.drain(3) == ("stubborn-data[uid]",)
    assert cancelled == ["stubborn"]
    assert bench.holder("1") == "stubborn"
    await asyncio.sleep(60)
    assert bench.holder("1") is None


async def test_draining_waits_a_second_for_work_that_does_not_heed_its_cancelling() -> None:
    bench = Bench()

    async def deaf() -> None:
        while now() < 50:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(100)

    bench.start("deaf", deaf, asset="1")
    bench.start("ends", sleeping(1.0), asset="2")
    await asyncio.sleep(0.1)
    assert await bench.registry.drain(3) == ("deaf-data[uid]",)
    assert now() == 4.1


async def test_draining_names_a_hook_that_has_not_returned_though_its_work_is_over() -> None:
    bench = Bench()
    executor = InlineExecutor(latency=lambda _driver, _what: (50.0, 0.0))
    bench.start("overrun", lambda: executor.call(PendingCall("d", lambda: None, 1.0)), asset="1")
    await asyncio.sleep(5)
    assert await bench.registry.drain(3) == ("overrun-data[uid]",)
    assert now() == 8.0


async def test_draining_an_idle_registry_returns_at_once() -> None:
    bench = Bench()
    assert await bench.registry.drain(5) == ()
    assert now() == 0.0


# --- looking in -------------------------------------------------------------------------------------------------


async def test_the_snapshot_tells_since_when_and_when_next() -> None:
    bench = Bench()
    bench.start("failed", failing(Unavailable("down", code="E1")), asset="1")
    await asyncio.sleep(0.2)
    bench.start("running", sleeping(5), asset="2", node="n")
    await asyncio.sleep(0.1)
    failed, running = bench.registry.snapshot()
    assert (failed.verb, failed.phase, failed.next_try, failed.failures) == ("failed", Phase.WAITING, 0.5, 1)
    assert failed.error == "down (E1)"
    assert (running.verb, running.phase, running.since, running.node) == ("running", Phase.RUNNING, 0.2, "n")


async def test_nothing_is_kept_of_ten_thousand_operations_that_are_over() -> None:
    bench = Bench()
    for number in range(10_000):
        bench.start(f"p{number}", failing(Unavailable("down")), asset=str(number), requeue=lambda: None)
    await asyncio.sleep(2000)
    registry = bench.registry
    assert registry.snapshot() == ()
    assert not any((registry._operations, registry._holders, registry._pauses.by_name, registry._pauses.by_asset))


# --- logs -------------------------------------------------------------------------------------------------------


async def test_what_an_operation_logs_carries_its_name_and_driver_and_whose_it_is_though_it_had_to_wait() -> None:
    seen: dict[str, dict[str, str]] = {}

    bench = Bench({"d": DriverLimits(concurrency=1)})

    def watching(name: str) -> Work:
        async def work() -> None:
            seen[name] = dict(logs.fields())
            await asyncio.sleep(1)

        return work

    for name in ("first", "second"):
        with logs.bound(object=f"default/{name}"):
            bench.start(name, watching(name), asset=name)
    await asyncio.sleep(5)
    assert logs.fields() == {}
    assert seen == {
        name: {"object": f"default/{name}", "operation": f"{name}-data[uid]", "driver": "d"}
        for name in ("first", "second")
    }


async def test_what_is_said_of_an_overrun_hook_carries_the_operation_though_another_let_it_begin() -> None:
    bench = Bench({"d": DriverLimits(concurrency=1)})
    executor = InlineExecutor(latency=lambda _driver, _what: (50.0, 0.0))
    said: list[tuple[str, dict[str, str]]] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append((record.getMessage(), dict(logs.fields())))

    listening = Listening()
    logging.getLogger("volplane.operations").addHandler(listening)
    try:
        bench.start("first", sleeping(1), asset="1")
        with logs.bound(object="default/second"):
            bench.start("second", lambda: executor.call(PendingCall("d", lambda: None, 1.0)), asset="2")
        await asyncio.sleep(5)
    finally:
        logging.getLogger("volplane.operations").removeHandler(listening)
    fields = {"object": "default/second", "operation": "second-data[uid]", "driver": "d"}
    assert said == [("second-data[uid] keeps its asset: a hook it called has not returned", fields)]


async def test_a_failure_leaves_nothing_for_the_garbage_collector() -> None:
    errors: list[weakref.ref[Exception]] = []

    def remembered(error: Exception) -> Exception:
        errors.append(weakref.ref(error))
        return error

    async def fails() -> None:
        raise remembered(Unavailable("down"))

    bench = Bench()
    gc.disable()
    try:
        bench.start("provision-a", fails)
        await asyncio.sleep(0.1)
        bench.ended.clear()
        assert [error() for error in errors] == [None]
    finally:
        gc.enable()


async def test_only_the_first_failure_of_a_row_is_told_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        bench = Bench()

        def again() -> None:
            bench.start("provision-a", failing(Unavailable("down")), requeue=again)

        again()
        await asyncio.sleep(20)
    assert len(bench.ran) > 4
    assert [record.getMessage() for record in caplog.records] == [
        "provision-a-data[uid] failed (1 in a row), next try in 0.5 s: down"
    ]
