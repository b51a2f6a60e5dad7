"""Hooks in worker threads, with deadlines; and in the loop, in virtual time."""

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import pytest

from unit.operations.bench import an_operation
from volplane.controller import logs
from volplane.drivers.driver import LoadedDrivers
from volplane.drivers.executor import HookCalls, PendingCall, ThreadExecutor
from volplane.errors import OutcomeUnknown, Throttled, Unavailable
from volplane.operations.operation import DriverLimits, Phase
from volplane.operations.registry import OperationRegistry
from volplane_testing.executor import InlineExecutor

ONE = {"d": DriverLimits(concurrency=1)}
SOON = 0.02
LONG = 30.0


async def until(condition: Callable[[], bool]) -> None:
    """Let threads and callbacks go on until it is so."""
    while not condition():
        await asyncio.sleep(0)


@pytest.mark.real_time
async def test_a_hook_runs_in_a_thread_of_its_driver_and_its_result_comes_back() -> None:
    executor = ThreadExecutor()
    name = await executor.call(PendingCall("nfs.example.com", lambda: threading.current_thread().name, LONG))
    assert name.startswith("volplane-nfs.example.com")
    assert executor.running() == ()
    executor.close()


@pytest.mark.real_time
@pytest.mark.parametrize("error", [Throttled("slow"), StopIteration(3), SystemExit(2), KeyError("k")])
async def test_whatever_a_hook_raises_reaches_the_caller(error: BaseException) -> None:
    def hook() -> None:
        raise error

    executor = ThreadExecutor()
    caught: BaseException | None = None
    try:
        await executor.call(PendingCall("d", hook, LONG))
    except BaseException as raised:  # noqa: BLE001
        caught = raised
    assert caught is error or (caught is not None and caught.__cause__ is error)
    executor.close()


@pytest.mark.real_time
async def test_an_overrun_is_an_unknown_outcome_and_is_not_forgotten() -> None:
    executor = ThreadExecutor(ONE)
    release, abandoned = threading.Event(), threading.Event()
    with pytest.raises(OutcomeUnknown, match=r"provision of driver d did not return within 0.02 s"):
        await executor.call(PendingCall("d", lambda: release.wait(LONG), SOON, what="provision", abandoned=abandoned))
    assert abandoned.is_set()
    (call,) = executor.running("d")
    assert (call.what, call.abandoned.is_set()) == ("provision", True)
    assert HookCalls(LoadedDrivers(limits=ONE), executor).hung("d")
    assert not HookCalls(LoadedDrivers(limits=ONE), executor).hung("other")
    release.set()
    await until(lambda: not executor.running())
    assert not HookCalls(LoadedDrivers(limits=ONE), executor).hung("d")
    executor.close()


@pytest.mark.real_time
async def test_an_operation_whose_thread_hangs_keeps_its_asset_until_the_thread_returns() -> None:
    executor, registry = ThreadExecutor(), OperationRegistry()
    release, queued = threading.Event(), asyncio.Event()

    async def work() -> None:
        await executor.call(PendingCall("d", lambda: release.wait(LONG), SOON, what="delete"))

    async def nothing() -> None:
        pass

    registry.start(an_operation("delete"), work, lambda: None)
    await until(lambda: registry.snapshot()[0].phase is Phase.OVERRUN)
    with pytest.raises(Exception, match="overrun"):
        registry.start(an_operation("attach"), nothing, queued.set)
    release.set()
    await queued.wait()
    assert [state.phase for state in registry.snapshot()] == [Phase.WAITING]
    executor.close()


@pytest.mark.real_time
async def test_a_call_that_finds_no_free_thread_in_time_never_begins() -> None:
    executor = ThreadExecutor(ONE)
    release = threading.Event()
    ran: list[int] = []
    busy = [asyncio.ensure_future(executor.call(PendingCall("d", lambda: release.wait(LONG), LONG))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="had no free thread"):
        await executor.call(PendingCall("d", lambda: ran.append(1), SOON))
    release.set()
    await asyncio.wait(busy)
    await executor.call(PendingCall("d", lambda: ran.append(2), LONG))
    assert ran == [2]
    executor.close()


@pytest.mark.real_time
async def test_calls_beyond_the_threads_wait_their_turn() -> None:
    executor = ThreadExecutor(ONE)
    most, now_running, lock = 0, 0, threading.Lock()

    def hook() -> None:
        nonlocal most, now_running
        with lock:
            now_running += 1
            most = max(most, now_running)
        with lock:
            now_running -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(executor.call(PendingCall("d", hook, LONG)))
    assert 1 <= most <= 3
    executor.close()


@pytest.mark.real_time
async def test_calls_that_end_soon_share_a_thread_instead_of_waking_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volplane.drivers.executor.SLOW_AFTER", LONG)
    executor = ThreadExecutor({"d": DriverLimits(concurrency=10)})
    calls = (executor.call(PendingCall("d", lambda: threading.current_thread().name, LONG)) for _ in range(10))
    assert set(await asyncio.gather(*calls)) == {"volplane-d-1"}
    executor.close()


@pytest.mark.real_time
async def test_a_thread_goes_on_with_the_next_call_while_the_loop_is_busy() -> None:
    executor = ThreadExecutor({"d": DriverLimits(concurrency=10)})
    gate, ran = threading.Event(), threading.Event()
    calls = [asyncio.ensure_future(executor.call(PendingCall("d", hook, LONG))) for hook in (gate.wait, ran.set)]
    await asyncio.sleep(0)
    gate.set()
    assert ran.wait(LONG), "the loop has not turned since"
    await asyncio.gather(*calls)
    executor.close()


@pytest.mark.real_time
async def test_a_call_that_a_thread_has_taken_is_not_withdrawn_by_a_caller_that_gives_up() -> None:
    executor = ThreadExecutor({"d": DriverLimits(concurrency=10)})
    gate, begun, release = threading.Event(), threading.Event(), threading.Event()

    def hook() -> None:
        begun.set()
        release.wait(LONG)

    first = asyncio.ensure_future(executor.call(PendingCall("d", gate.wait, LONG)))
    second = asyncio.ensure_future(executor.call(PendingCall("d", hook, LONG, what="provision")))
    await asyncio.sleep(0)
    gate.set()
    assert begun.wait(LONG)
    second.cancel()
    await asyncio.wait([second])
    assert [(call.what, call.abandoned.is_set()) for call in executor.running("d") if not call.performed] == [
        ("provision", True)
    ]
    release.set()
    await first
    await until(lambda: not executor.running())
    executor.close()


@pytest.mark.real_time
async def test_calls_that_wait_for_something_delay_no_other_for_long() -> None:
    executor = ThreadExecutor({"d": DriverLimits(concurrency=10)})
    meeting = threading.Barrier(10, timeout=LONG)
    calls = (executor.call(PendingCall("d", meeting.wait, LONG)) for _ in range(10))
    assert sorted(await asyncio.gather(*calls)) == list(range(10)), "all are in their hooks at once"
    executor.close()


@pytest.mark.real_time
async def test_what_waits_when_the_executor_is_closed_is_called_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volplane.drivers.executor.SLOW_AFTER", LONG)
    executor = ThreadExecutor({"d": DriverLimits(concurrency=2)})
    meeting = threading.Barrier(2, timeout=LONG)
    calls = [asyncio.ensure_future(executor.call(PendingCall("d", meeting.wait, LONG))) for _ in range(2)]
    await asyncio.sleep(0)
    executor.close()
    assert sorted(await asyncio.gather(*calls)) == [0, 1]


@pytest.mark.real_time
async def test_without_time_left_nothing_is_started() -> None:
    executor = ThreadExecutor()
    with pytest.raises(Unavailable, match="no time is left"):
        await executor.call(PendingCall("d", lambda: pytest.fail("it ran"), 0.0))


@pytest.mark.real_time
async def test_a_cancelled_caller_leaves_the_hook_running_and_tells_it() -> None:
    executor = ThreadExecutor(ONE)
    begun, release, abandoned = threading.Event(), threading.Event(), threading.Event()

    def hook() -> None:
        begun.set()
        release.wait(LONG)

    task = asyncio.ensure_future(executor.call(PendingCall("d", hook, LONG, abandoned=abandoned)))
    await until(begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert abandoned.is_set()
    assert len(executor.running("d")) == 1
    release.set()
    await until(lambda: not executor.running())
    executor.close()


def test_a_hung_hook_does_not_keep_the_process_from_exiting() -> None:
    program = """
        import asyncio, threading
        from volplane.errors import OutcomeUnknown
        from volplane.drivers.executor import PendingCall, ThreadExecutor

        async def main():
            try:
                await ThreadExecutor().call(PendingCall("d", threading.Event().wait, 0.01))
            except OutcomeUnknown:
                print("unknown")

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert (done.returncode, done.stdout) == (0, "unknown\n")


# --- in the loop ------------------------------------------------------------------------------------------------


async def test_inline_hooks_run_in_the_loop_in_virtual_time() -> None:
    loop = asyncio.get_running_loop()
    executor = InlineExecutor(latency=lambda _driver, what: (3.0, 4.0) if what == "slow" else (0.0, 0.0))
    assert await executor.call(PendingCall("d", loop.time, 10.0, what="slow")) == 3.0
    assert loop.time() == 7.0
    assert await executor.call(PendingCall("d", loop.time, 10.0)) == 7.0
    assert loop.time() == 7.0


async def test_an_inline_hook_that_is_too_slow_takes_effect_after_its_deadline() -> None:
    loop = asyncio.get_running_loop()
    executor = InlineExecutor(latency=lambda _driver, _what: (20.0, 0.0))
    effects: list[float] = []
    with pytest.raises(OutcomeUnknown):
        await executor.call(PendingCall("d", lambda: effects.append(loop.time()), 5.0))
    assert HookCalls(LoadedDrivers(limits=ONE), executor).hung("d")
    assert effects == []
    await asyncio.sleep(20)
    assert effects == [20.0]
    assert not HookCalls(LoadedDrivers(limits=ONE), executor).hung("d")


async def test_closing_an_inline_executor_cuts_off_what_had_no_effect_yet() -> None:
    executor = InlineExecutor(latency=lambda _driver, _what: (20.0, 0.0))
    call = asyncio.ensure_future(executor.call(PendingCall("d", lambda: pytest.fail("it ran"), 50.0)))
    await asyncio.sleep(1)
    executor.close()
    with pytest.raises(OutcomeUnknown, match="cut off"):
        await call
    assert executor.running() == ()


async def test_inline_hooks_raise_to_their_caller() -> None:
    def hook() -> None:
        raise Throttled("slow")

    with pytest.raises(Throttled):
        await InlineExecutor().call(PendingCall("d", hook, 1.0))


@pytest.mark.real_time
async def test_what_a_hook_logs_in_its_thread_carries_the_fields_of_the_call() -> None:
    executor = ThreadExecutor()
    with logs.bound(operation="provision-a"):
        assert await executor.call(PendingCall("d", lambda: dict(logs.fields()), 5.0)) == {"operation": "provision-a"}
    assert await executor.call(PendingCall("d", lambda: dict(logs.fields()), 5.0)) == {}
    executor.close()
