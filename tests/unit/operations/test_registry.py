"""Exclusion, back-off, limits and shutdown of operations, in virtual time."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from volplane.controller import logs
from volplane.errors import BackoffError, InvalidArgument, OperationError, OperationInProgress, Throttled, Unavailable
from volplane.operations import Again, DriverLimits, Ended, InlineExecutor, OperationRegistry, Phase
from volplane.testing.clock import run

Run = Callable[[], Awaitable[None]]


class Bench:
    """A registry whose objects, when queued again, write down when that was."""

    def __init__(self, limits: dict[str, DriverLimits] | None = None) -> None:
        self.ended: list[Ended] = []
        self.registry = OperationRegistry(limits, observe=self.ended.append)
        self.requeued: list[tuple[str, float]] = []
        self.ran: list[tuple[str, float]] = []

    def start(
        self,
        name: str,
        work: Run | None = None,
        *,
        asset: str = "a",
        driver: str = "d",
        node: str | None = None,
        requeue: Callable[[], None] | None = None,
    ) -> None:
        async def body() -> None:
            self.ran.append((name, now()))
            if work is not None:
                await work()

        self.registry.start(
            name,
            driver=driver,
            asset=asset,
            run=body,
            requeue=requeue or (lambda: self.requeued.append((name, now()))),
            node=node,
        )

    def phases(self) -> dict[str, Phase]:
        return {state.name: state.phase for state in self.registry.snapshot()}


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


def during(main: Callable[[Bench], Coroutine[Any, Any, None]], limits: dict[str, DriverLimits] | None = None) -> Bench:
    bench: list[Bench] = []

    async def outer() -> None:
        bench.append(Bench(limits))
        await main(bench[0])

    run(outer())
    return bench[0]


def failing(error: Exception) -> Run:
    async def work() -> None:
        raise error

    return work


def sleeping(seconds: float) -> Run:
    async def work() -> None:
        await asyncio.sleep(seconds)

    return work


# --- exclusion --------------------------------------------------------------------------------------------------


def test_a_success_queues_the_object_again_at_once_and_leaves_nothing() -> None:
    async def main(bench: Bench) -> None:
        bench.start("delete", sleeping(3))
        await asyncio.sleep(10)
        assert bench.registry.snapshot() == ()

    bench = during(main)
    assert bench.requeued == [("delete", 3.0)]
    assert [(e.name, e.seconds, e.error, e.next_try) for e in bench.ended] == [("delete", 3.0, None, None)]


def test_a_second_operation_on_a_busy_asset_is_refused_and_queued_when_the_first_ends() -> None:
    async def main(bench: Bench) -> None:
        bench.start("attach", sleeping(5))
        with pytest.raises(OperationInProgress, match="detach waits for attach"):
            bench.start("detach")
        await asyncio.sleep(6)
        bench.start("detach")
        await asyncio.sleep(1)

    bench = during(main)
    assert bench.requeued == [("attach", 5.0), ("detach", 5.0), ("detach", 6.0)]
    assert bench.ran == [("attach", 0.0), ("detach", 6.0)]


def test_the_object_that_waits_is_queued_when_the_holder_fails_too() -> None:
    async def main(bench: Bench) -> None:
        bench.start("recycle", failing(Unavailable("down")))
        with pytest.raises(OperationInProgress):
            bench.start("delete")
        await asyncio.sleep(0.1)

    assert during(main).requeued == [("delete", 0.0)]


def test_many_refusals_of_one_name_queue_it_once() -> None:
    async def main(bench: Bench) -> None:
        bench.start("recycle", sleeping(1))
        for _ in range(5):
            with pytest.raises(OperationInProgress):
                bench.start("delete")
        await asyncio.sleep(2)

    assert during(main).requeued.count(("delete", 1.0)) == 1


def test_the_same_name_is_refused_while_it_runs_whatever_the_asset() -> None:
    async def main(bench: Bench) -> None:
        bench.start("delete", sleeping(1))
        with pytest.raises(OperationInProgress, match="delete is running already"):
            bench.start("delete", asset="other")
        await asyncio.sleep(2)

    assert during(main).requeued == [("delete", 1.0)]


def test_the_same_asset_name_of_another_driver_is_another_asset() -> None:
    async def main(bench: Bench) -> None:
        bench.start("one", sleeping(1), driver="d")
        bench.start("two", sleeping(1), driver="e")
        await asyncio.sleep(0.5)
        assert bench.phases() == {"one": Phase.RUNNING, "two": Phase.RUNNING}

    during(main)


def test_operations_on_different_nodes_overlap_but_not_with_one_of_the_whole_asset() -> None:
    async def main(bench: Bench) -> None:
        bench.start("attach-1", sleeping(1), node="n1")
        bench.start("attach-2", sleeping(3), node="n2")
        with pytest.raises(OperationInProgress):
            bench.start("detach-1", node="n1")
        with pytest.raises(OperationInProgress):
            bench.start("delete")
        assert bench.registry.holder("d", "a", "n3") is None
        assert bench.registry.holder("d", "a") == "attach-1"
        await asyncio.sleep(2)
        with pytest.raises(OperationInProgress, match="attach-2"):
            bench.start("delete")
        await asyncio.sleep(2)
        bench.start("delete", sleeping(1))
        with pytest.raises(OperationInProgress):
            bench.start("attach-3", node="n3")
        await asyncio.sleep(2)

    assert [name for name, _ in during(main).ran] == ["attach-1", "attach-2", "delete"]


def test_an_asset_stays_taken_until_the_overrun_hook_returns() -> None:
    async def main(bench: Bench) -> None:
        executor = InlineExecutor(latency=lambda _driver, _what: (40.0, 0.0))
        effects: list[float] = []
        bench.start("provision", lambda: executor.call("d", lambda: effects.append(now()), 10.0, what="provision"))
        await asyncio.sleep(20)
        state = bench.registry.snapshot()[0]
        assert state.phase is Phase.OVERRUN
        assert "did not return within 10 s" in str(state.error)
        with pytest.raises(OperationInProgress, match="overrun"):
            bench.start("delete")
        await asyncio.sleep(20.1)
        assert effects == [40.0]
        with pytest.raises(BackoffError):
            bench.start("provision")
        bench.start("delete")
        await asyncio.sleep(1)

    bench = during(main)
    assert ("delete", 40.0) in bench.requeued
    assert bench.ended[0].seconds == pytest.approx(40.0)


def test_an_overrun_that_the_run_swallows_still_holds_the_asset() -> None:
    async def main(bench: Bench) -> None:
        executor = InlineExecutor(latency=lambda _driver, _what: (30.0, 0.0))

        async def work() -> None:
            with pytest.raises(Exception, match="did not return"):
                await executor.call("d", lambda: None, 1.0)

        bench.start("provision", work)
        await asyncio.sleep(5)
        assert bench.phases() == {"provision": Phase.OVERRUN}
        await asyncio.sleep(30)
        assert bench.phases() == {}

    assert during(main).requeued == [("provision", 30.0)]


# --- back-off ---------------------------------------------------------------------------------------------------


def test_a_failure_refuses_the_name_until_its_back_off_ends_and_then_queues_the_object() -> None:
    async def main(bench: Bench) -> None:
        bench.start("provision", failing(Unavailable("the filer is down")))
        await asyncio.sleep(0.2)
        with pytest.raises(BackoffError, match="the filer is down") as refused:
            bench.start("provision")
        assert refused.value.until == 0.5
        await asyncio.sleep(1)

    bench = during(main)
    assert bench.requeued == [("provision", 0.5)]
    assert len(bench.ran) == 1


def test_failures_in_a_row_double_the_back_off_and_a_success_ends_that() -> None:
    async def main(bench: Bench) -> None:
        tries = 0

        def again() -> None:
            bench.requeued.append(("p", now()))
            bench.start("p", work, requeue=again)

        async def work() -> None:
            nonlocal tries
            tries += 1
            if tries < 4 or tries == 5:
                raise Unavailable("down")
            if tries == 6:
                await asyncio.sleep(1000)

        bench.start("p", work, requeue=again)
        await asyncio.sleep(100)

    bench = during(main)
    assert [at for _, at in bench.requeued] == [0.5, 1.5, 3.5, 3.5, 4.0]


def test_another_operation_on_the_asset_does_not_inherit_the_back_off_and_ends_it() -> None:
    async def main(bench: Bench) -> None:
        bench.start("provision", failing(InvalidArgument("bad class")))
        await asyncio.sleep(1)
        bench.start("delete", sleeping(1))
        await asyncio.sleep(2)
        bench.start("provision")
        await asyncio.sleep(1)

    bench = during(main)
    assert bench.requeued == [("delete", 2.0), ("provision", 2.0), ("provision", 3.0)]


def test_another_operation_does_not_cut_short_what_is_in_progress() -> None:
    async def main(bench: Bench) -> None:
        bench.start("provision", failing(Again(after=60)))
        await asyncio.sleep(1)
        bench.start("check", sleeping(1))
        await asyncio.sleep(100)

    assert during(main).requeued == [("check", 2.0), ("provision", 60.0)]


def test_a_failure_on_one_node_does_not_touch_another_nodes() -> None:
    async def main(bench: Bench) -> None:
        bench.start("attach-1", failing(InvalidArgument("no")), node="n1")
        await asyncio.sleep(1)
        bench.start("attach-2", sleeping(1), node="n2")
        await asyncio.sleep(5)
        with pytest.raises(BackoffError):
            bench.start("attach-1", node="n1")

    during(main)


def test_again_is_no_failure_releases_the_asset_and_queues_the_object_later() -> None:
    async def main(bench: Bench) -> None:
        bench.start("provision", failing(Unavailable("down")))
        await asyncio.sleep(0.6)
        bench.start("provision", failing(Again(after=30)))
        await asyncio.sleep(1)
        with pytest.raises(BackoffError, match="in progress") as refused:
            bench.start("provision")
        assert refused.value.until == pytest.approx(30.6)
        assert bench.registry.holder("d", "a") is None
        await asyncio.sleep(30)
        bench.start("provision", failing(Unavailable("down")))
        await asyncio.sleep(0.6)

    bench = during(main)
    assert [at for _, at in bench.requeued] == [0.5, 30.6, 32.1]
    assert [type(e.error) for e in bench.ended] == [Unavailable, type(None), Unavailable]


def test_what_is_queued_at_the_end_of_a_pause_may_start_even_if_the_timer_rang_a_tick_early() -> None:
    async def main(bench: Bench) -> None:
        bench.start("provision", failing(Again(after=30)), requeue=lambda: bench.start("provision"))
        await asyncio.sleep(1)
        # asyncio runs what is due within its clock's resolution together with what is due now.
        asyncio.get_running_loop().call_at(30 - 5e-7, lambda: None)
        await asyncio.sleep(60)

    assert [at for _, at in during(main).ran] == [0.0, 30.0]


def test_errors_that_ask_for_a_time_get_it() -> None:
    async def main(bench: Bench) -> None:
        bench.start("one", failing(Throttled("slow", retry_after=7)), asset="1")
        bench.start("two", failing(InvalidArgument("never")), asset="2")
        await asyncio.sleep(400)

    assert during(main).requeued == [("one", 7.0), ("two", 300.0)]


def test_forgetting_lets_a_name_run_at_once_with_a_fresh_count() -> None:
    async def main(bench: Bench) -> None:
        bench.start("provision", failing(InvalidArgument("bad class")))
        await asyncio.sleep(1)
        bench.registry.forget("provision")
        bench.registry.forget("unknown")
        bench.start("provision", failing(Unavailable("down")))
        await asyncio.sleep(1)

    assert during(main).requeued == [("provision", 1.5)]


def test_forgetting_what_runs_makes_its_failure_the_first() -> None:
    async def main(bench: Bench) -> None:
        for _ in range(4):
            bench.start("p", failing(Unavailable("down")))
            await asyncio.sleep(10)

        async def work() -> None:
            bench.registry.forget("p")
            raise Unavailable("down")

        bench.start("p", work)
        await asyncio.sleep(10)

    assert during(main).requeued[-1] == ("p", 40.5)


def test_failures_that_nobody_follows_up_are_forgotten() -> None:
    async def main(bench: Bench) -> None:
        for _ in range(3):
            bench.start("p", failing(Unavailable("down")))
            await asyncio.sleep(10)
        assert bench.registry.next_delay("p", Unavailable("down")) == 4.0
        await asyncio.sleep(700)
        assert bench.registry.next_delay("p", Unavailable("down")) == 0.5
        assert bench.registry.snapshot() == ()

    during(main)


def test_an_event_can_name_the_next_try_while_the_operation_still_runs() -> None:
    async def main(bench: Bench) -> None:
        delays = []

        async def work() -> None:
            error = Unavailable("down")
            delays.append(bench.registry.next_delay("p", error))
            raise error

        for _ in range(3):
            bench.start("p", work)
            await asyncio.sleep(5)
        assert delays == [0.5, 1.0, 2.0]

    during(main)


def test_a_bug_in_a_run_is_a_failure_like_others() -> None:
    async def main(bench: Bench) -> None:
        bench.start("p", failing(ZeroDivisionError("division by zero")))
        await asyncio.sleep(0.1)
        assert bench.registry.snapshot()[0].error == "division by zero"
        await asyncio.sleep(1)

    assert during(main).requeued == [("p", 0.5)]


def test_a_cancelled_operation_releases_its_asset_and_backs_off() -> None:
    async def main(bench: Bench) -> None:
        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)

        bench.start("p", work)
        await asyncio.sleep(0.1)
        assert bench.registry.holder("d", "a") is None
        await asyncio.sleep(1)

    assert during(main).requeued == [("p", 0.5)]


# --- limits of a driver -----------------------------------------------------------------------------------------


def test_no_more_than_the_drivers_concurrency_run_at_once_in_order() -> None:
    async def main(bench: Bench) -> None:
        for number in range(6):
            bench.start(f"p{number}", sleeping(10), asset=str(number))
        await asyncio.sleep(1)
        assert list(bench.phases().values()).count(Phase.QUEUED) == 4
        await asyncio.sleep(60)

    bench = during(main, {"d": DriverLimits(concurrency=2)})
    assert bench.ran == [(f"p{n}", 10.0 * (n // 2)) for n in range(6)]


def test_a_hung_driver_does_not_hold_up_another() -> None:
    async def main(bench: Bench) -> None:
        for number in range(50):
            bench.start(f"dead{number}", sleeping(10_000), asset=str(number), driver="dead")
        bench.start("alive", asset="x", driver="alive")
        await asyncio.sleep(0.001)
        assert "alive" not in bench.phases()

    during(main, {"dead": DriverLimits(concurrency=3)})


def test_a_queued_operation_holds_its_asset_already() -> None:
    async def main(bench: Bench) -> None:
        bench.start("first", sleeping(10), asset="1")
        bench.start("second", asset="2")
        with pytest.raises(OperationInProgress, match="second, which is queued"):
            bench.start("third", asset="2")
        await asyncio.sleep(20)

    during(main, {"d": DriverLimits(concurrency=1)})


def test_the_rate_spreads_starts_after_a_burst_of_one_second() -> None:
    async def main(bench: Bench) -> None:
        for number in range(6):
            bench.start(f"p{number}", asset=str(number))
        await asyncio.sleep(10)

    bench = during(main, {"d": DriverLimits(rate=2.0)})
    assert [at for _, at in bench.ran] == [0.0, 0.0, 0.5, 1.0, 1.5, 2.0]


def test_an_overrun_hook_keeps_its_place_among_the_concurrent() -> None:
    async def main(bench: Bench) -> None:
        executor = InlineExecutor(latency=lambda _driver, _what: (100.0, 0.0))
        bench.start("hung", lambda: executor.call("d", lambda: None, 1.0), asset="1")
        bench.start("next", asset="2")
        await asyncio.sleep(200)

    bench = during(main, {"d": DriverLimits(concurrency=1)})
    assert bench.ran == [("hung", 0.0), ("next", 100.0)]


# --- shutting down ----------------------------------------------------------------------------------------------


def test_draining_waits_for_what_runs_drops_what_is_queued_and_refuses_the_rest() -> None:
    async def main(bench: Bench) -> None:
        bench.start("running", sleeping(5), asset="1")
        bench.start("queued", asset="2")
        bench.start("failed", failing(Unavailable("down")), asset="3", driver="e")
        await asyncio.sleep(0.1)
        assert await bench.registry.drain(30) == ()
        assert now() == 5.0
        with pytest.raises(OperationError, match="shutting down"):
            bench.start("late", asset="4")
        await asyncio.sleep(10)

    bench = during(main, {"d": DriverLimits(concurrency=1)})
    assert [name for name, _ in bench.ran] == ["running", "failed"]
    assert bench.requeued == []


def test_draining_gives_up_after_its_time_and_names_what_still_runs() -> None:
    async def main(bench: Bench) -> None:
        executor = InlineExecutor(latency=lambda _driver, _what: (50.0, 0.0))
        cancelled: list[str] = []

        async def stubborn() -> None:
            try:
                await executor.call("d", lambda: None, 500.0)
            except asyncio.CancelledError:
                cancelled.append("stubborn")
                raise

        bench.start("stubborn", stubborn, asset="1")
        await asyncio.sleep(0.1)
        assert await bench.registry.drain(3) == ("stubborn",)
        assert cancelled == ["stubborn"]
        assert bench.registry.holder("d", "1") == "stubborn"
        await asyncio.sleep(60)
        assert bench.registry.holder("d", "1") is None

    during(main)


def test_one_driver_can_be_drained_and_resumed_while_others_go_on() -> None:
    async def main(bench: Bench) -> None:
        bench.start("mine", sleeping(2), asset="1", driver="d")
        bench.start("other", sleeping(20), asset="1", driver="e")
        assert await bench.registry.drain(10, "d") == ()
        assert now() == 2.0
        with pytest.raises(OperationError):
            bench.start("mine", asset="1", driver="d")
        assert bench.phases() == {"other": Phase.RUNNING}
        bench.registry.resume("d")
        bench.start("mine", asset="1", driver="d")
        await asyncio.sleep(30)

    assert [name for name, _ in during(main).ran] == ["mine", "other", "mine"]


def test_draining_an_idle_registry_returns_at_once() -> None:
    async def main(bench: Bench) -> None:
        assert await bench.registry.drain(5) == ()
        assert now() == 0.0

    during(main)


# --- looking in -------------------------------------------------------------------------------------------------


def test_the_snapshot_tells_since_when_and_when_next() -> None:
    async def main(bench: Bench) -> None:
        bench.start("failed", failing(Unavailable("down", code="E1")), asset="1")
        await asyncio.sleep(0.2)
        bench.start("running", sleeping(5), asset="2", node="n")
        await asyncio.sleep(0.1)
        failed, running = bench.registry.snapshot()
        assert (failed.name, failed.phase, failed.next_try, failed.failures) == ("failed", Phase.WAITING, 0.5, 1)
        assert failed.error == "down (E1)"
        assert (running.name, running.phase, running.since, running.node) == ("running", Phase.RUNNING, 0.2, "n")

    during(main)


def test_nothing_is_kept_of_ten_thousand_operations_that_are_over() -> None:
    async def main(bench: Bench) -> None:
        for number in range(10_000):
            bench.start(f"p{number}", failing(Unavailable("down")), asset=str(number), requeue=lambda: None)
        await asyncio.sleep(2000)
        registry = bench.registry
        assert registry.snapshot() == ()
        assert not any((registry._operations, registry._holders, registry._pauses, registry._paused))

    during(main)


# --- logs -------------------------------------------------------------------------------------------------------


def test_what_an_operation_logs_carries_its_name_and_driver_and_whose_it_is_though_it_had_to_wait() -> None:
    seen: dict[str, dict[str, str]] = {}

    async def main(bench: Bench) -> None:
        def watching(name: str) -> Run:
            async def work() -> None:
                seen[name] = dict(logs.fields())
                await asyncio.sleep(1)

            return work

        for name in ("first", "second"):
            with logs.bound(object=f"default/{name}"):
                bench.start(name, watching(name), asset=name)
        await asyncio.sleep(5)
        assert logs.fields() == {}

    during(main, {"d": DriverLimits(concurrency=1)})
    assert seen == {
        name: {"object": f"default/{name}", "operation": name, "driver": "d"} for name in ("first", "second")
    }


def test_a_failure_leaves_nothing_for_the_garbage_collector() -> None:
    errors: list[weakref.ref[Exception]] = []

    def remembered(error: Exception) -> Exception:
        errors.append(weakref.ref(error))
        return error

    async def fails() -> None:
        raise remembered(Unavailable("down"))

    async def main(bench: Bench) -> None:
        gc.disable()
        try:
            bench.start("provision-a", fails)
            await asyncio.sleep(0.1)
            bench.ended.clear()
            assert [error() for error in errors] == [None]
        finally:
            gc.enable()

    during(main)


def test_only_the_first_failure_of_a_row_is_told_aloud(caplog: pytest.LogCaptureFixture) -> None:
    async def main(bench: Bench) -> None:
        def again() -> None:
            bench.start("provision-a", failing(Unavailable("down")), requeue=again)

        again()
        await asyncio.sleep(20)

    with caplog.at_level(logging.INFO):
        bench = during(main)
    assert len(bench.ran) > 4
    assert [record.getMessage() for record in caplog.records] == [
        "provision-a failed (1 in a row), next try in 0.5 s: down"
    ]
