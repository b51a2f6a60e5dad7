"""At most one operation for an asset: what excludes what."""

import asyncio

import pytest

from unit.operations.bench import Bench, failing, now, sleeping
from volplane.drivers.executor import PendingCall
from volplane.errors import BackoffError, OperationInProgress, Unavailable
from volplane.operations.operation import Phase, hold_until
from volplane_testing.executor import InlineExecutor

# --- exclusion --------------------------------------------------------------------------------------------------


async def test_a_success_queues_the_object_again_at_once_and_leaves_nothing() -> None:
    bench = Bench()
    bench.start("delete", sleeping(3))
    await asyncio.sleep(10)
    assert bench.registry.snapshot() == ()
    assert bench.requeued == [("delete", 3.0)]
    assert [(e.run.verb, e.seconds, e.error) for e in bench.ended] == [("delete", 3.0, None)]


async def test_a_second_operation_on_a_busy_asset_is_refused_and_queued_when_the_first_ends() -> None:
    bench = Bench()
    bench.start("attach", sleeping(5))
    with pytest.raises(OperationInProgress, match=r"detach-data\[uid\] waits for attach-data\[uid\]"):
        bench.start("detach")
    await asyncio.sleep(6)
    bench.start("detach")
    await asyncio.sleep(1)
    assert bench.requeued == [("attach", 5.0), ("detach", 5.0), ("detach", 6.0)]
    assert bench.ran == [("attach", 0.0), ("detach", 6.0)]


async def test_the_object_that_waits_is_queued_when_the_holder_fails_too() -> None:
    bench = Bench()
    bench.start("recycle", failing(Unavailable("down")))
    with pytest.raises(OperationInProgress):
        bench.start("delete")
    await asyncio.sleep(0.1)
    assert bench.requeued == [("delete", 0.0)]


async def test_many_refusals_of_one_name_queue_it_once() -> None:
    bench = Bench()
    bench.start("recycle", sleeping(1))
    for _ in range(5):
        with pytest.raises(OperationInProgress):
            bench.start("delete")
    await asyncio.sleep(2)
    assert bench.requeued.count(("delete", 1.0)) == 1


async def test_the_same_name_is_refused_while_it_runs_whatever_the_asset() -> None:
    bench = Bench()
    bench.start("delete", sleeping(1))
    with pytest.raises(OperationInProgress, match=r"delete-data\[uid\] is running already"):
        bench.start("delete", asset="other")
    await asyncio.sleep(2)
    assert bench.requeued == [("delete", 1.0)]


async def test_whoever_asked_last_for_what_runs_is_told_when_it_ends() -> None:
    bench = Bench()
    bench.start("delete", sleeping(1))
    with pytest.raises(OperationInProgress):
        bench.start("delete", requeue=lambda: bench.requeued.append(("later", now())))
    await asyncio.sleep(2)
    assert bench.requeued == [("later", 1.0)]


async def test_the_same_asset_name_of_another_driver_is_another_asset() -> None:
    bench = Bench()
    bench.start("one", sleeping(1), driver="d")
    bench.start("two", sleeping(1), driver="e")
    await asyncio.sleep(0.5)
    assert bench.phases() == {"one": Phase.RUNNING, "two": Phase.RUNNING}


async def test_operations_on_different_nodes_overlap_but_not_with_one_of_the_whole_asset() -> None:
    bench = Bench()
    bench.start("attach-1", sleeping(1), node="n1")
    bench.start("attach-2", sleeping(3), node="n2")
    with pytest.raises(OperationInProgress):
        bench.start("detach-1", node="n1")
    with pytest.raises(OperationInProgress):
        bench.start("delete")
    assert bench.holder("a", "n3") is None
    assert bench.holder("a") == "attach-1"
    await asyncio.sleep(2)
    with pytest.raises(OperationInProgress, match="attach-2"):
        bench.start("delete")
    await asyncio.sleep(2)
    bench.start("delete", sleeping(1))
    with pytest.raises(OperationInProgress):
        bench.start("attach-3", node="n3")
    await asyncio.sleep(2)
    assert [name for name, _ in bench.ran] == ["attach-1", "attach-2", "delete"]


async def test_an_asset_stays_taken_until_the_overrun_hook_returns() -> None:
    bench = Bench()
    executor = InlineExecutor(latency=lambda _driver, _what: (40.0, 0.0))
    effects: list[float] = []
    bench.start(
        "provision", lambda: executor.call(PendingCall("d", lambda: effects.append(now()), 10.0, what="provision"))
    )
    await asyncio.sleep(20)
    state = bench.registry.snapshot()[0]
    assert state.phase is Phase.OVERRUN
    assert "did not return within 10 s" in str(state.error)
    with pytest.raises(OperationInProgress, match=r"which is overrun$"):
        bench.start("delete")
    await asyncio.sleep(20.1)
    assert effects == [40.0]
    with pytest.raises(BackoffError):
        bench.start("provision")
    bench.start("delete")
    await asyncio.sleep(1)
    assert ("delete", 40.0) in bench.requeued
    assert bench.ended[0].seconds == pytest.approx(40.0)


async def test_an_asset_stays_taken_until_the_last_of_several_hooks_returns() -> None:
    bench = Bench()
    hooks = [asyncio.get_running_loop().create_future() for _ in range(2)]

    async def work() -> None:
        for hook in hooks:
            hold_until(hook)

    bench.start("provision", work)
    await asyncio.sleep(1)
    hooks[0].set_result(None)
    await asyncio.sleep(1)
    assert bench.phases() == {"provision": Phase.OVERRUN}
    hooks[1].set_result(None)
    await asyncio.sleep(1)
    assert bench.phases() == {}
    assert bench.requeued == [("provision", 2.0)]


async def test_an_overrun_that_the_run_swallows_still_holds_the_asset() -> None:
    bench = Bench()
    executor = InlineExecutor(latency=lambda _driver, _what: (30.0, 0.0))

    async def work() -> None:
        with pytest.raises(Exception, match="did not return"):
            await executor.call(PendingCall("d", lambda: None, 1.0))

    bench.start("provision", work)
    await asyncio.sleep(5)
    assert bench.phases() == {"provision": Phase.OVERRUN}
    await asyncio.sleep(30)
    assert bench.phases() == {}
    assert bench.requeued == [("provision", 30.0)]
