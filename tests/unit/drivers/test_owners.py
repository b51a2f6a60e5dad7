"""Whose a static volume's source is: who is asked, in which thread, how long others wait, and what is remembered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from backends import start_all
from volplane import Done, ListRequest, Unavailable, VolumeSource, hookimpl
from volplane.drivers import owners
from volplane.drivers.driver import BrokenDriver, LoadedDrivers
from volplane.drivers.executor import HookCalls, ThreadExecutor
from volplane.drivers.loading import build_driver
from volplane.drivers.owners import SourceOwner
from volplane.drivers.registry import DriverRegistry
from volplane.errors import OutcomeUnknown, PluginError
from volplane_testing.executor import InlineExecutor

NEVER = 1e9


def source(path: str) -> VolumeSource:
    return VolumeSource(kind="hostPath", fields={"path": path})


class Site:
    """Drivers that own what lies below a directory of their name, and the calls that they get."""

    def __init__(self, kit: Any, *names: str, executor: ThreadExecutor | None = None, broken: str = "") -> None:
        self.asked: list[tuple[str, str]] = []
        self.answer: dict[str, Callable[[VolumeSource], Any]] = {}
        self.start_error: Exception | None = None
        self.latency: dict[tuple[str, str], float] = {}
        drivers = tuple(build_driver(name, kit.backend(self._backend(kit, name)), {}) for name in names)
        reasons = (BrokenDriver(name=broken, backend="nfs", error="cannot be made"),) if broken else ()
        self.executor = executor or InlineExecutor(latency=lambda *call: (self.latency.get(call, 0.0), 0.0))
        loaded = LoadedDrivers(drivers=drivers, broken=reasons)
        self.registry = DriverRegistry(loaded, HookCalls(loaded, self.executor), cluster_id="c")

    def _backend(self, kit: Any, name: str) -> Any:
        site = self

        class Backend(kit.Memory):  # type: ignore[misc, name-defined]
            @hookimpl
            def start(self, request: Any) -> Any:
                if site.start_error is not None:
                    raise site.start_error
                return Done()

            @hookimpl
            def owns(self, request: Any) -> Any:
                path = str(request.source.fields["path"])
                site.asked.append((name, path))
                assert request.context.driver == name
                return site.answer.get(name, lambda _source: path.startswith(f"/{name}/"))(request.source)

            @hookimpl
            def list_assets(self, request: Any) -> Any:
                raise AssertionError(request)

        return Backend

    def owner(self, path: str) -> SourceOwner:
        return self.registry.owner_of(source(path))

    async def identified(self, path: str) -> SourceOwner:
        await self.registry.identify(source(path))
        return self.owner(path)

    def view(self, name: str) -> Any:
        return self.registry.get(name)


async def test_nothing_is_known_before_the_drivers_are_asked_and_no_lookup_asks(kit: Any) -> None:
    site = Site(kit, "a", "b")
    await start_all(site.registry)
    assert site.owner("/a/x") == SourceOwner(known=False)
    assert site.asked == []


async def test_a_source_belongs_to_the_one_driver_that_owns_it(kit: Any) -> None:
    site = Site(kit, "a", "b")
    await start_all(site.registry)
    assert await site.identified("/a/x") == SourceOwner(driver=site.view("a"))
    assert await site.identified("/b/x") == SourceOwner(driver=site.view("b"))
    assert await site.identified("/elsewhere") == SourceOwner()


async def test_a_source_that_several_drivers_own_belongs_to_none(kit: Any) -> None:
    site = Site(kit, "a", "b")
    site.answer = {"a": lambda _source: True, "b": lambda _source: True}
    await start_all(site.registry)
    assert await site.identified("/x") == SourceOwner(reason="several drivers say it is theirs: a, b")


async def test_a_driver_that_cannot_be_asked_is_named_among_the_reasons(kit: Any) -> None:
    site = Site(kit, "d", broken="b")
    site.start_error = Unavailable("down")
    await start_all(site.registry)
    reason = "driver b may own it but is broken: cannot be made; driver d may own it but is unavailable"
    assert site.owner("/d/x") == SourceOwner(reason=reason)
    await site.registry.identify(source("/d/x"))
    assert site.asked == []


async def test_a_driver_whose_owns_fails_is_named_and_asked_again(kit: Any) -> None:
    site = Site(kit, "a", "d")
    site.answer["d"] = lambda asked: asked.fields["no such key"]
    await start_all(site.registry)
    with pytest.raises(PluginError, match="hook owns of backend memory raised KeyError"):
        await site.registry.identify(source("/x"))
    failed = site.owner("/x")
    assert (failed.driver, failed.known) == (None, False)
    assert failed.reason.startswith(
        "driver d cannot tell whether it owns it: hook owns of backend memory raised KeyError"
    )
    assert await site.identified("/a/x") == SourceOwner(driver=site.view("a")), "one yes is enough"
    site.answer["d"] = lambda _source: True
    assert await site.identified("/x") == SourceOwner(driver=site.view("d"))
    assert site.asked.count(("a", "/x")) == 1


# --- what is remembered -----------------------------------------------------------------------------------------


async def test_each_driver_is_asked_once_about_a_source(kit: Any) -> None:
    site = Site(kit, "a", "b")
    await start_all(site.registry)
    for _ in range(3):
        await site.identified("/a/x")
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(site.identified("/a/y"))
    assert sorted(site.asked) == [("a", "/a/x"), ("a", "/a/y"), ("b", "/a/x"), ("b", "/a/y")]


async def test_a_source_is_forgotten_with_its_volume(kit: Any) -> None:
    site = Site(kit, "a")
    await start_all(site.registry)
    await site.identified("/a/x")
    site.registry.forget_source(source("/a/x"))
    assert site.owner("/a/x") == SourceOwner(known=False)


async def test_what_a_driver_answered_is_forgotten_when_it_starts_anew(kit: Any) -> None:
    site = Site(kit, "a", "b")
    await start_all(site.registry)
    await site.identified("/a/x")
    await site.registry._start(site.registry._entries["a"])
    assert site.owner("/a/x") == SourceOwner(known=False)
    await site.identified("/a/x")
    assert site.asked == [("a", "/a/x"), ("b", "/a/x"), ("a", "/a/x")]


async def test_who_waits_for_a_driver_that_starts_anew_waits_no_longer(kit: Any) -> None:
    site = Site(kit, "a")
    site.latency["a", "owns"] = 5.0
    await start_all(site.registry)
    waiting = asyncio.ensure_future(site.registry.identify(source("/a/x")))
    await asyncio.sleep(1)
    await site.registry._start(site.registry._entries["a"])
    await waiting
    await asyncio.sleep(10)
    assert site.owner("/a/x") == SourceOwner(known=False), "the answer came from the time before"


async def test_only_so_many_sources_are_remembered(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "MOST_SOURCES", 3)
    site = Site(kit, "a")
    await start_all(site.registry)
    for number in range(5):
        await site.identified(f"/a/{number}")
    assert [site.owner(f"/a/{number}").known for number in range(5)] == [False, False, True, True, True]


# --- drivers that are slow, or hang ------------------------------------------------------------------------------


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_slow_driver_delays_only_what_no_other_driver_owns(kit: Any) -> None:
    site = Site(kit, "quick", "slow")
    site.latency["slow", "owns"] = 5.0
    await start_all(site.registry)
    began = now()
    own = asyncio.ensure_future(site.identified("/slow/x"))
    await asyncio.sleep(2)
    for number in range(100):
        assert await site.identified(f"/quick/{number}") == SourceOwner(driver=site.view("quick"))
    assert now() - began == 2, "it is known to be slow, and not waited for"
    assert await own == SourceOwner(driver=site.view("slow"))
    assert now() - began == 5


async def test_the_first_call_that_is_slow_is_waited_for_a_second(kit: Any) -> None:
    site = Site(kit, "quick", "slow")
    site.latency["slow", "owns"] = 5.0
    await start_all(site.registry)
    began = now()
    await site.identified("/quick/x")
    assert now() - began == owners.GRACE


async def test_a_driver_that_answers_in_time_again_is_waited_for_again(kit: Any) -> None:
    site = Site(kit, "a", "b")
    site.latency["b", "owns"] = 5.0
    await start_all(site.registry)
    await site.identified("/a/1")
    await asyncio.sleep(10)
    site.latency["b", "owns"] = 0.5
    await site.identified("/b/1")
    site.answer["b"] = lambda _source: True
    assert await site.identified("/a/2") == SourceOwner(reason="several drivers say it is theirs: a, b")


async def test_a_driver_that_hangs_costs_one_thread_and_is_not_asked_again_until_it_returns(kit: Any) -> None:
    site = Site(kit, "a", "b")
    site.latency["b", "owns"] = NEVER
    await start_all(site.registry)
    with pytest.raises(OutcomeUnknown, match="owns of driver b did not return within 30 s"):
        await site.registry.identify(source("/b/x"))
    for number in range(20):
        with pytest.raises(Unavailable, match="an earlier call of owns of driver b has not returned"):
            await site.registry.identify(source(f"/b/{number}"))
        began = now()
        assert (await site.identified(f"/a/{number}")).driver == site.view("a")
        assert now() == began
    assert [call.what for call in site.executor.running("b")] == ["owns"]


async def test_a_listing_that_hangs_costs_one_thread(kit: Any) -> None:
    site = Site(kit, "a")
    site.latency["a", "list_assets"] = NEVER
    await start_all(site.registry)
    request = ListRequest(context=kit.context)
    with pytest.raises(OutcomeUnknown):
        await site.registry.calls.call(site.view("a"), request)
    for _ in range(3):
        with pytest.raises(Unavailable, match="an earlier call of list_assets of driver a has not returned"):
            await site.registry.calls.call(site.view("a"), request)
    assert len(site.executor.running("a")) == 1


@pytest.mark.real_time(seconds=30)
async def test_owns_runs_in_a_thread_of_its_driver_while_the_event_loop_goes_on(kit: Any) -> None:
    site = Site(kit, "quick", "slow", executor=ThreadExecutor())
    entered, free = threading.Event(), threading.Event()
    threads: list[str] = []

    def owns(asked: VolumeSource) -> bool:
        threads.append(threading.current_thread().name)
        entered.set()
        return free.wait(20) and asked.fields["path"] == "/slow/x"

    site.answer["slow"] = owns
    await start_all(site.registry)
    own = asyncio.ensure_future(site.identified("/slow/x"))
    while not entered.is_set():
        await asyncio.sleep(0)
    assert (await site.identified("/quick/x")).driver == site.view("quick")
    demand = kit.demand()
    assert (await site.registry.calls.call(site.view("slow"), demand)).handle == demand.name
    assert not own.done()
    free.set()
    assert (await own).driver == site.view("slow")
    assert {name.rpartition("-")[0] for name in threads} == {"volplane-slow"}
    site.executor.close()


async def test_an_operation_that_gives_up_takes_its_question_back(kit: Any) -> None:
    site = Site(kit, "a")
    site.latency["a", "owns"] = 5.0
    await start_all(site.registry)
    tasks = [asyncio.ensure_future(site.registry.identify(source(f"/a/{number}"))) for number in range(3)]
    await asyncio.sleep(1)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(60)
    assert site.asked == [("a", "/a/0")]
