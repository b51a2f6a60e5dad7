"""The keyed work queue."""

import asyncio
from collections.abc import Callable

import pytest

from volplane import _delays as backoff
from volplane.controller.workqueue import AdaptiveConcurrency, ControllerMetrics, QueueCounters, WorkQueue


async def _take(queue: WorkQueue) -> str:
    key = await queue.get()
    assert key is not None
    queue.done(key)
    return key


async def test_a_key_waits_only_once_and_keys_come_in_the_order_they_were_added() -> None:
    queue = WorkQueue("claims")
    for key in ("b", "a", "b", "c", "a"):
        queue.add(key)
    assert len(queue) == 3
    assert [await _take(queue) for _ in range(3)] == ["b", "a", "c"]


async def test_flows_take_turns_so_that_a_crowd_delays_nobody_else() -> None:
    queue = WorkQueue("claims", flow=lambda key: key[0])
    for key in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        queue.add(key)
    taken = [await _take(queue) for _ in range(4)]
    queue.add("d1")
    queue.add("a5")
    assert [*taken, *[await _take(queue) for _ in range(len(queue))]] == [
        "a1",
        "b1",
        "c1",
        "a2",
        "b2",
        "a3",
        "d1",
        "a4",
        "a5",
    ]


async def test_a_flow_has_no_more_keys_in_work_than_it_may_and_the_next_one_follows_the_first_that_ends() -> None:
    queue = WorkQueue("claims", flow=lambda key: key[0], concurrency=AdaptiveConcurrency(maximum=2, minimum=1))
    for key in ("a1", "a2", "a3", "a4", "b1"):
        queue.add(key)
    assert [await queue.get() for _ in range(3)] == ["a1", "b1", "a2"]
    third = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    assert not third.done()
    queue.done("b1")
    await asyncio.sleep(1)
    assert not third.done(), "another flow's worker says nothing about this one"
    queue.done("a2")
    assert await third == "a3"
    queue.done("a1")
    assert await queue.get() == "a4"


async def test_the_worker_that_was_idle_last_takes_the_next_key() -> None:
    queue = WorkQueue("claims")
    first, last = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    queue.add("a")
    assert await last == "a"
    queue.add("b")
    assert await first == "b"


async def test_a_worker_that_is_cancelled_when_its_key_comes_leaves_it_to_another() -> None:
    queue = WorkQueue("claims")
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    queue.add("a")
    second.cancel()
    assert await first == "a"


async def test_a_key_in_work_is_worked_again_afterwards_and_never_twice_at_once() -> None:
    queue = WorkQueue("claims")
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert len(queue) == 1
    assert list(queue.working) == ["a"]
    queue.done("a")
    assert [await _take(queue), await _take(queue)] == ["b", "a"]
    assert queue.idle


async def test_what_the_worker_has_seen_needs_no_further_work() -> None:
    queue = WorkQueue("claims")
    queue.add("a")
    queue.seen("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.seen("a")
    queue.seen("unknown")
    queue.done("a")
    assert queue.idle
    queue.add("a")
    assert await _take(queue) == "a"


async def test_of_several_delays_the_earliest_counts() -> None:
    queue = WorkQueue("claims")
    for seconds in (30, 10, 20):
        queue.add_after("a", seconds)
    assert queue.next_due == 10
    await _take(queue)
    taken = [asyncio.get_running_loop().time()]
    queue.add_after("a", 5)
    assert queue.next_due == 15
    await _take(queue)
    assert [*taken, asyncio.get_running_loop().time()] == pytest.approx([10, 15])


async def test_a_delay_in_the_past_is_now() -> None:
    queue = WorkQueue("claims")
    queue.add_after("a", 0)
    queue.add_after("b", -1)
    assert len(queue) == 2


async def test_delays_that_end_together_come_in_the_order_they_were_set() -> None:
    queue = WorkQueue("claims")
    for key in ("c", "a", "b"):
        queue.add_after(key, 1)
    assert [await _take(queue) for _ in range(3)] == ["c", "a", "b"]


async def test_failures_double_the_pause_up_to_its_bound_until_they_are_forgotten() -> None:
    queue = WorkQueue("claims")
    pauses = [queue.retry("a", backoff.RECONCILE_FAILED) for _ in range(25)]
    assert pauses[:4] == pytest.approx([0.005, 0.01, 0.02, 0.04])
    assert pauses[-1] == 1000
    assert queue.failures["a"] == 25
    assert queue.retry("a", backoff.API_UNAVAILABLE) == 30
    assert queue.retry("b", backoff.API_REFUSED) == 0.1
    queue.forget("a")
    assert queue.retry("a", backoff.RECONCILE_FAILED) == pytest.approx(0.005)


async def test_idle_means_nothing_queued_nothing_worked_and_nothing_due() -> None:
    queue = WorkQueue("claims")
    assert queue.idle
    queue.add_after("a", 60)
    assert queue.idle
    await asyncio.sleep(60)
    assert not queue.idle
    assert await queue.get() == "a"
    assert not queue.idle
    queue.done("a")
    assert queue.idle


async def test_closing_ends_the_workers_and_takes_nothing_more() -> None:
    queue = WorkQueue("claims")
    queue.add("a")
    queue.add_after("b", 1)
    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.close()
    queue.add("c")
    await asyncio.sleep(5)
    assert [worker.result() for worker in workers] == ["a", None, None]


class _Counts(ControllerMetrics):
    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.depth: Callable[[], int] = lambda: -1

    def queue_made(self, queue: str, depth: Callable[[], int]) -> QueueCounters:
        def seen(what: str) -> Callable[..., None]:
            return lambda *seconds: self.seen.append((what, queue, *seconds))

        self.depth = depth
        return QueueCounters(added=seen("added"), retried=seen("retried"), waited=seen("waited"), worked=seen("worked"))


async def test_depth_waiting_work_and_retries_are_counted() -> None:
    counts = _Counts()
    queue = WorkQueue("claims", metrics=counts)
    queue.add("a")
    assert counts.depth() == 1
    await asyncio.sleep(2)
    await queue.get()
    assert counts.depth() == 0
    await asyncio.sleep(3)
    queue.retry("a", backoff.RECONCILE_FAILED)
    queue.done("a")
    assert counts.seen == [
        ("added", "claims"),
        ("waited", "claims", 2.0),
        ("retried", "claims"),
        ("worked", "claims", 3.0),
    ]
