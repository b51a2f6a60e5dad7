"""Many failures of one driver and class: their next tries come one by one, and at once when it works again."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from unit.operations.bench import Bench, an_operation, now
from volplane.controller.actions import Run
from volplane.errors import Unavailable
from volplane.operations.operation import Again, DriverLimits

LIMITS = {"d": DriverLimits(concurrency=1000)}


def trying_again(bench: Bench, name: str, work: Callable[[], Awaitable[None]], group: str = "gold") -> None:
    """Start it, and again whenever its object is queued, until it succeeds."""
    over = False

    async def once() -> None:
        nonlocal over
        await work()
        over = True

    def again() -> None:
        if over:
            return

        async def body() -> None:
            bench.ran.append((name, now()))
            await once()

        bench.registry.start(an_operation(name, asset=name, group=group), body, again)

    again()


def tries_per_second(bench: Bench, since: float, until: float, prefix: str = "") -> float:
    return sum(since <= at < until and name.startswith(prefix) for name, at in bench.ran) / (until - since)


async def down() -> None:
    raise Unavailable("the filer is down")


async def going_on() -> None:
    raise Again(after=20.0)


async def nothing() -> None:
    pass


async def test_however_many_fail_a_hundred_are_tried_again_at_once_and_then_ten_a_second() -> None:
    bench = Bench(LIMITS)
    for number in range(1000):
        trying_again(bench, f"p{number}", down)
    await asyncio.sleep(60)
    assert tries_per_second(bench, 0.0, 0.1) == 10_000, "first tries are not held back"
    assert 100 <= sum(0.4 < at < 0.6 for _, at in bench.ran) <= 102
    assert 9.5 <= tries_per_second(bench, 10.0, 60.0) <= 10.5


async def test_those_that_failed_least_often_come_first() -> None:
    bench = Bench(LIMITS)
    for number in range(500):
        trying_again(bench, f"p{number}", down)
    await asyncio.sleep(30)
    tries = Counter(name for name, at in bench.ran if at < 30)
    assert len(tries) == 500
    assert max(tries.values()) - min(tries.values()) <= 2, "nobody is tried often while others wait"


async def test_once_the_driver_works_again_all_are_through_within_seconds() -> None:
    bench = Bench(LIMITS)
    works = False

    async def work() -> None:
        if not works:
            raise Unavailable("the filer is down")

    for number in range(3000):
        trying_again(bench, f"p{number}", work)
    await asyncio.sleep(60)
    works = True
    await asyncio.sleep(5)
    assert bench.registry.snapshot() == ()
    assert len({name for name, at in bench.ran if at >= 60}) > 2000


async def test_another_class_of_the_driver_keeps_its_own_pace() -> None:
    bench = Bench(LIMITS)
    for number in range(1000):
        trying_again(bench, f"bad{number}", down, group="gold")
    await asyncio.sleep(20)
    flaws = [Unavailable("once"), Unavailable("twice")]

    async def flawed() -> None:
        if flaws:
            raise flaws.pop()

    trying_again(bench, "good", flawed, group="silver")
    await asyncio.sleep(5)
    assert [at for name, at in bench.ran if name == "good"] == [20.0, 20.5, 21.5]


async def test_what_waits_for_its_turn_is_told_when_that_is_about_and_can_be_forgotten() -> None:
    bench = Bench(LIMITS)
    for number in range(300):
        trying_again(bench, f"p{number:03}", down)
    await asyncio.sleep(1)
    waiting = [state for state in bench.registry.snapshot() if state.failures == 1]
    assert len(waiting) >= 190
    assert 15 < max(state.next_try or 0.0 for state in waiting) < 35
    last = max(waiting, key=lambda state: state.next_try or 0.0)
    assert 15 < bench.registry.next_delay(an_operation(last.verb), Unavailable("the filer is down")) < 35
    bench.registry.forget(last.verb, "data", "uid")
    trying_again(bench, last.verb, down)
    await asyncio.sleep(0.1)
    assert (last.verb, 1.0) in bench.ran, "its class has changed: it is tried at once"


async def test_what_is_forgotten_while_it_waits_for_its_turn_is_not_queued_and_takes_nobodys_place() -> None:
    bench = Bench(LIMITS)
    for number in range(300):
        bench.start(f"p{number:03}", down, asset=str(number))
        await asyncio.sleep(0.0001)
    await asyncio.sleep(0.6)
    queued = [name for name, _ in bench.requeued]
    assert queued == [f"p{number:03}" for number in range(len(queued))], "in the order in which they failed"
    assert 100 <= len(queued) <= 102
    for number in range(len(queued), 200):
        bench.registry.forget(f"p{number:03}", "data", "uid")
    await asyncio.sleep(1)
    assert [name for name, _ in bench.requeued[len(queued) :]] == [f"p{number}" for number in range(200, 210)]
    await asyncio.sleep(60)
    assert len(bench.requeued) == len(queued) + 100


async def test_what_goes_on_after_a_pause_is_not_held_back() -> None:
    bench = Bench(LIMITS)
    for number in range(300):
        bench.start(f"p{number}", going_on, asset=str(number))
    await asyncio.sleep(60)
    assert [at for _, at in bench.requeued] == [20.0] * 300


async def test_a_success_lets_two_more_of_its_class_be_tried_again_at_once() -> None:
    bench = Bench(LIMITS)
    for number in range(300):
        bench.start(f"p{number:03}", down, asset=str(number))
    await asyncio.sleep(0.65)
    before = len(bench.requeued)

    def succeeding(driver: str, group: str) -> None:
        run = Run(verb="good", key="data", uid="uid", driver=driver, asset=f"good-{group}", group=group)
        bench.registry.start(run, nothing, lambda: None)

    succeeding("d", "silver")
    await asyncio.sleep(0.01)
    succeeding("e", "")
    await asyncio.sleep(0.01)
    assert len(bench.requeued) == before, "classes that are well have nothing to do with it"
    succeeding("d", "")
    await asyncio.sleep(0.01)
    assert len(bench.requeued) == before + 2
    await asyncio.sleep(1.0)
    assert len(bench.requeued) == before + 12, "and then ten a second as before"


async def test_a_success_fills_no_budget_and_one_that_is_full_again_is_forgotten() -> None:
    bench = Bench(LIMITS)
    for number in range(100):
        bench.start(f"p{number:03}", down, asset=str(number))
    await asyncio.sleep(0.7)
    assert len(bench.requeued) == 100, "nothing waits any more"
    bench.start("good", nothing, asset="good")
    for number in range(100, 150):
        bench.start(f"p{number:03}", down, asset=str(number))
    await asyncio.sleep(0.55)
    assert len(bench.requeued) < 101 + 15
    await asyncio.sleep(60)
    bench.start("good", nothing, asset="good")
    await asyncio.sleep(0.1)
    assert len(bench.requeued) == 152
    assert bench.registry._pauses.budgets == {}


async def test_shutting_down_ends_the_waiting() -> None:
    bench = Bench(LIMITS)
    for number in range(300):
        trying_again(bench, f"p{number}", down)
    await asyncio.sleep(2)
    assert await bench.registry.drain(1.0) == ()
    await asyncio.sleep(100)
    assert max(at for _, at in bench.ran) <= 2.0
    assert bench.registry.snapshot() == ()
