"""After a failure: when the next try comes, and what shortens the wait."""

import asyncio
from contextlib import suppress

import pytest

from unit.operations.bench import Bench, an_operation, failing, now, sleeping
from volplane.errors import BackoffError, InvalidArgument, OperationInProgress, Throttled, Unavailable
from volplane.operations.operation import Again

# --- back-off ---------------------------------------------------------------------------------------------------


async def test_a_failure_refuses_the_name_until_its_back_off_ends_and_then_queues_the_object() -> None:
    bench = Bench()
    bench.start("provision", failing(Unavailable("the filer is down")))
    await asyncio.sleep(0.2)
    with pytest.raises(BackoffError, match="the filer is down") as refused:
        bench.start("provision")
    assert refused.value.until == 0.5
    await asyncio.sleep(1)
    assert bench.requeued == [("provision", 0.5)]
    assert len(bench.ran) == 1


async def test_failures_in_a_row_double_the_back_off_and_a_success_ends_that() -> None:
    bench = Bench()
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
    assert [at for _, at in bench.requeued] == [0.5, 1.5, 3.5, 3.5, 4.0]


async def test_another_operation_on_the_asset_does_not_inherit_the_back_off_and_ends_it() -> None:
    bench = Bench()
    bench.start("provision", failing(InvalidArgument("bad class")))
    await asyncio.sleep(1)
    bench.start("delete", sleeping(1))
    await asyncio.sleep(2)
    bench.start("provision")
    await asyncio.sleep(1)
    assert bench.requeued == [("delete", 2.0), ("provision", 2.0), ("provision", 3.0)]


async def test_another_operation_does_not_cut_short_what_is_in_progress() -> None:
    bench = Bench()
    bench.start("provision", failing(Again(after=60)))
    await asyncio.sleep(1)
    bench.start("check", sleeping(1))
    await asyncio.sleep(100)
    assert bench.requeued == [("check", 2.0), ("provision", 60.0)]


async def test_a_failure_on_one_node_does_not_touch_another_nodes() -> None:
    bench = Bench()
    bench.start("attach-1", failing(InvalidArgument("no")), node="n1")
    await asyncio.sleep(1)
    bench.start("attach-2", sleeping(1), node="n2")
    await asyncio.sleep(5)
    with pytest.raises(BackoffError):
        bench.start("attach-1", node="n1")


@pytest.mark.parametrize(("failed", "succeeds"), [("n", "n"), ("n", ""), ("", "n"), ("", "")])
async def test_what_failed_on_a_node_or_the_whole_asset_is_tried_again_after_another_on_it(
    failed: str, succeeds: str
) -> None:
    bench = Bench()
    bench.start("attach", failing(InvalidArgument("no")), node=failed)
    await asyncio.sleep(1)
    bench.start("detach", node=succeeds)
    await asyncio.sleep(1)
    assert ("attach", 1.0) in bench.requeued
    bench.start("attach", node=failed)
    await asyncio.sleep(1)
    assert ("attach", 2.0) in bench.ran


async def test_two_operations_on_an_asset_that_both_fail_do_not_wake_each_other() -> None:
    bench = Bench()
    refused = failing(Unavailable("no"))

    def go_on(verb: str) -> None:
        if len(bench.ran) < 1000:
            with suppress(OperationInProgress, BackoffError):
                bench.start(verb, refused, requeue=lambda: go_on(verb))

    go_on("attach-1")
    await asyncio.sleep(0.1)
    go_on("attach-2")
    await asyncio.sleep(60)
    assert 10 < len(bench.ran) < 20


async def test_whoever_asked_last_is_told_when_a_delay_is_over() -> None:
    bench = Bench()
    bench.start("provision", failing(Unavailable("down")))
    await asyncio.sleep(0.2)
    with pytest.raises(BackoffError):
        bench.start("provision", requeue=lambda: bench.requeued.append(("later", now())))
    await asyncio.sleep(10)
    assert bench.requeued == [("later", 0.5)]


async def test_work_may_ask_to_go_on_soon_and_what_it_asks_for_the_past_goes_on_at_once() -> None:
    bench = Bench()
    bench.start("soon", failing(Again(after=0.2)), asset="1")
    bench.start("at-once", failing(Again(after=-5.0)), asset="2")
    await asyncio.sleep(10)
    assert bench.requeued == [("at-once", 0.0), ("soon", 0.2)]


async def test_an_operation_whose_delay_is_over_waits_for_nothing() -> None:
    bench = Bench()
    bench.start("provision", failing(Unavailable("down")))
    await asyncio.sleep(0.5)
    assert bench.registry.snapshot() == ()
    assert bench.registry.counts() == {}


async def test_again_is_no_failure_releases_the_asset_and_queues_the_object_later() -> None:
    bench = Bench()
    bench.start("provision", failing(Unavailable("down")))
    await asyncio.sleep(0.6)
    bench.start("provision", failing(Again(after=30)))
    await asyncio.sleep(1)
    with pytest.raises(BackoffError, match="in progress") as refused:
        bench.start("provision")
    assert refused.value.until == pytest.approx(30.6)
    assert bench.holder("a") is None
    await asyncio.sleep(30)
    bench.start("provision", failing(Unavailable("down")))
    await asyncio.sleep(0.6)
    assert [at for _, at in bench.requeued] == [0.5, 30.6, 32.1]
    assert [type(e.error) for e in bench.ended] == [Unavailable, type(None), Unavailable]


async def test_what_is_queued_at_the_end_of_a_pause_may_start_even_if_the_timer_rang_a_tick_early() -> None:
    bench = Bench()
    bench.start("provision", failing(Again(after=30)), requeue=lambda: bench.start("provision"))
    await asyncio.sleep(1)
    # asyncio runs what is due within its clock's resolution together with what is due now.
    asyncio.get_running_loop().call_at(30 - 5e-7, lambda: None)
    await asyncio.sleep(60)
    assert [at for _, at in bench.ran] == [0.0, 30.0]


async def test_errors_that_ask_for_a_time_get_it() -> None:
    bench = Bench()
    bench.start("one", failing(Throttled("slow", retry_after=7)), asset="1")
    bench.start("two", failing(InvalidArgument("never")), asset="2")
    await asyncio.sleep(400)
    assert bench.requeued == [("one", 7.0), ("two", 300.0)]


async def test_forgetting_lets_a_name_run_at_once_with_a_fresh_count() -> None:
    bench = Bench()
    bench.start("provision", failing(InvalidArgument("bad class")))
    await asyncio.sleep(1)
    bench.registry.forget("provision", "data", "uid")
    bench.registry.forget("unknown", "data", "uid")
    bench.start("provision", failing(Unavailable("down")))
    await asyncio.sleep(400)
    assert bench.requeued == [("provision", 1.5)], "the end of the delay that was dropped queues nothing"


async def test_forgetting_what_runs_makes_its_failure_the_first() -> None:
    bench = Bench()
    for _ in range(4):
        bench.start("p", failing(Unavailable("down")))
        await asyncio.sleep(10)

    async def work() -> None:
        bench.registry.forget("p", "data", "uid")
        raise Unavailable("down")

    bench.start("p", work)
    await asyncio.sleep(10)
    assert bench.requeued[-1] == ("p", 40.5)


async def test_failures_that_nobody_follows_up_are_forgotten() -> None:
    bench = Bench()
    for _ in range(3):
        bench.start("p", failing(Unavailable("down")))
        await asyncio.sleep(10)
    assert bench.registry.next_delay(an_operation("p"), Unavailable("down")) == 4.0
    await asyncio.sleep(700)
    assert bench.registry.next_delay(an_operation("p"), Unavailable("down")) == 0.5
    assert bench.registry.snapshot() == ()


async def test_an_event_can_name_the_next_try_while_the_operation_still_runs() -> None:
    bench = Bench()
    delays = []

    async def work() -> None:
        error = Unavailable("down")
        delays.append(bench.registry.next_delay(an_operation("p"), error))
        raise error

    for _ in range(3):
        bench.start("p", work)
        await asyncio.sleep(5)
    assert delays == [0.5, 1.0, 2.0]


async def test_a_bug_in_a_run_is_a_failure_like_others() -> None:
    bench = Bench()
    bench.start("p", failing(ZeroDivisionError("division by zero")))
    await asyncio.sleep(0.1)
    assert bench.registry.snapshot()[0].error == "division by zero"
    await asyncio.sleep(1)
    assert bench.requeued == [("p", 0.5)]


async def test_a_cancelled_operation_releases_its_asset_and_backs_off() -> None:
    bench = Bench()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    bench.start("p", work)
    await asyncio.sleep(0.1)
    assert bench.holder("a") is None
    assert [state.error for state in bench.registry.snapshot()] == ["cancelled"]
    await asyncio.sleep(1)
    assert bench.requeued == [("p", 0.5)]


async def test_a_failure_without_words_is_called_by_its_class() -> None:
    bench = Bench()
    bench.start("p", failing(TimeoutError()))
    await asyncio.sleep(0.1)
    assert [state.error for state in bench.registry.snapshot()] == ["TimeoutError"]
