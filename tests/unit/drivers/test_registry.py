"""Which drivers can be used: starting, healing, probing, stopping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from backends import start_all
from volplane import Asset, Attachment, Done, DriverInfo, Fenced, ProbeRequest, Unavailable, VolumeSource, hookimpl
from volplane.controller.metrics import Metrics
from volplane.drivers.driver import BrokenDriver, DriverState, LoadedDrivers, PendingDriver
from volplane.drivers.executor import HookCalls
from volplane.drivers.loading import build_driver
from volplane.drivers.registry import DriverRegistry
from volplane.errors import OutcomeUnknown
from volplane.operations.operation import Again, DriverLimits
from volplane_testing.executor import InlineExecutor


class World:
    """What backends of these tests answer."""

    def __init__(self) -> None:
        self.start_error: Exception | None = None
        self.probe_error: Exception | None = None
        self.calls: list[tuple[str, float]] = []
        self.latency: dict[str, float] = {}
        self.changed: list[str] = []
        self.over = False
        """Whether the lease is."""

    def called(self, hook: str) -> None:
        self.calls.append((hook, round(asyncio.get_running_loop().time(), 3)))


def registry(
    kit: Any,
    world: World,
    *names: str,
    broken: tuple[BrokenDriver, ...] = (),
    pending: tuple[PendingDriver, ...] = (),
    base: Any = None,
    executor: InlineExecutor | None = None,
    concurrency: int = 2,
    may_begin: Callable[[], bool] = lambda: True,
) -> DriverRegistry:
    class Backend(base or kit.Memory):  # type: ignore[misc]
        @hookimpl
        def start(self, request: Any) -> Done:
            world.called("start")
            if world.start_error:
                raise world.start_error
            return Done()

        @hookimpl
        def probe(self, request: Any) -> Done:
            world.called("probe")
            if world.probe_error:
                raise world.probe_error
            return Done()

        @hookimpl
        def stop(self, request: Any) -> Done:
            world.called("stop")
            return Done()

    drivers = tuple(build_driver(name, kit.backend(Backend), {}) for name in names or ("d",))
    limits = {d.name: DriverLimits(concurrency=concurrency, timeout=50.0) for d in drivers}
    executor = executor or InlineExecutor(latency=lambda _driver, what: (world.latency.get(what, 0.0), 0.0))
    loaded = LoadedDrivers(drivers=drivers, broken=broken, limits=limits, pending=pending)
    calls = HookCalls(loaded, executor, may_begin=may_begin)
    return DriverRegistry(loaded, calls, cluster_id="c", changed=world.changed.append)


async def keeping(drivers: DriverRegistry, seconds: float) -> None:
    """Let `keep` work for so long."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await drivers.keep()


async def test_a_driver_that_is_being_made_holds_up_owners_of_static_volumes_for_a_moment_only(kit: Any) -> None:
    world = World()
    pending = PendingDriver(name="late", backend="memory", doing="importing the backend")
    drivers = registry(kit, world, pending=(pending,))
    source = VolumeSource(kind="hostPath", fields={"path": "/elsewhere"})
    await keeping(drivers, 1.0)
    assert drivers.owner_of(source).starting == "late"
    assert drivers.starting("late")
    await keeping(drivers, 3.0)
    await drivers.identify(source)
    assert drivers.owner_of(source).reason == "driver late may own it but is starting"
    assert not drivers.starting("late")
    assert drivers.broken("late") == "driver late is starting: importing the backend has not ended yet"
    assert drivers.names() == ("d", "late")
    assert "late" in world.changed


async def test_a_driver_that_is_made_joins_those_that_run(kit: Any) -> None:
    pending = PendingDriver(name="late", backend="memory", doing="importing the backend")
    drivers = registry(kit, World(), pending=(pending,))
    pending.made.set_result(build_driver("late", kit.backend(kit.Memory), {}))
    await keeping(drivers, 1.0)
    assert [each.name for each in drivers.ready()] == ["d", "late"]
    late = drivers.get("late")
    assert late is not None
    assert await drivers.calls.call(late, kit.demand())


async def test_a_driver_can_be_used_once_it_has_started(kit: Any) -> None:
    world = World()
    drivers = registry(kit, world)
    assert drivers.get("d") is None
    assert drivers.broken("d") == "driver d is starting"
    await start_all(drivers)
    driver = drivers.get("d")
    assert driver is not None
    assert drivers.ready() == (driver,)
    assert drivers.broken("d") == ""
    assert drivers.get("unknown") is None
    assert drivers.broken("unknown") == ""
    assert world.changed == ["d"]


async def test_a_driver_that_does_not_start_is_tried_again_until_it_does(kit: Any) -> None:
    world = World()
    drivers = registry(kit, world)
    world.start_error = Unavailable("the disk is not mounted; mount it")
    await start_all(drivers)
    assert drivers.get("d") is None
    assert drivers.broken("d") == "driver d is unavailable: start failed: the disk is not mounted; mount it"
    await keeping(drivers, 100)
    assert [at for _, at in world.calls] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0]
    world.start_error = None
    await keeping(drivers, 2)
    assert drivers.get("d") is not None
    assert world.changed == ["d", "d"]


async def test_drivers_start_beside_each_other(kit: Any) -> None:
    world = World()
    drivers = registry(kit, world, "a", "b", "c")
    world.latency["start"] = 10.0
    await start_all(drivers)
    assert asyncio.get_running_loop().time() == 10.0
    assert [d.name for d in drivers.ready()] == ["a", "b", "c"]


async def test_a_start_that_hangs_is_not_called_a_second_time_meanwhile(kit: Any) -> None:
    world = World()
    drivers = registry(kit, world)
    world.latency["start"] = 300.0
    await start_all(drivers)
    assert "did not return within 30 s" in drivers.broken("d")
    world.latency["start"] = 0.0
    await keeping(drivers, 250)
    assert world.calls == []
    await keeping(drivers, 60)
    assert world.calls[0] == ("start", 300.0)
    assert drivers.get("d") is not None


async def test_a_failed_probe_makes_a_driver_unhealthy_but_leaves_it_in_use(kit: Any) -> None:
    world = World()
    drivers = registry(kit, world)
    await start_all(drivers)
    world.probe_error = Unavailable("no answer")
    await keeping(drivers, 31)
    (status,) = drivers.status()
    assert (status.state, status.healthy, status.error) == (DriverState.READY, False, "probe failed: no answer")
    assert drivers.get("d") is not None
    world.probe_error = None
    await keeping(drivers, 31)
    assert drivers.status()[0].healthy
    assert drivers.status()[0].error == ""
    assert [call for call, _ in world.calls] == ["start", "probe", "probe"]


async def test_a_driver_can_be_probed_at_once(kit: Any) -> None:
    world = World()
    drivers = registry(kit, world)
    await start_all(drivers)
    assert await drivers.probe("d") == ""
    world.probe_error = Unavailable("no answer")
    assert await drivers.probe("d") == "probe failed: no answer"


async def test_only_what_was_started_is_stopped(kit: Any) -> None:
    world = World()
    drivers = registry(kit, world)
    await start_all(drivers)
    await drivers.stop_all()
    await drivers.stop_all()
    assert drivers.get("d") is None
    assert drivers.broken("d") == "driver d is stopped"
    assert [call for call, _ in world.calls] == ["start", "stop"]


async def test_a_broken_driver_is_known_with_its_reason(kit: Any) -> None:
    broken = BrokenDriver(name="b", backend="nfs", error="backend nfs: cannot be made")

    drivers = registry(kit, World(), broken=(broken,))
    await start_all(drivers)
    assert drivers.names() == ("b", "d")
    assert drivers.get("b") is None
    assert drivers.broken("b") == "backend nfs: cannot be made"
    status = drivers.status()[0]
    assert (status.name, status.state, status.healthy) == ("b", DriverState.BROKEN, False)


async def test_the_status_tells_version_hooks_and_hung_threads(kit: Any) -> None:
    world = World()
    drivers = registry(kit, world)
    await start_all(drivers)
    (status,) = drivers.status()
    assert (status.backend, status.distribution) == ("memory", "volplane-memory 1.0")
    assert status.hooks == ("delete", "describe", "owns", "probe", "provision", "start", "stop")
    world.latency["provision"] = 1000.0
    driver = drivers.get("d")
    assert driver is not None
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await drivers.calls.call(driver, kit.demand(), timeout=1.0)
    (status,) = drivers.status()
    assert (status.hung, status.healthy) == (True, False)
    assert status.error == "all 2 hooks that may run at once hang"
    await asyncio.sleep(1000)
    assert drivers.status()[0].healthy


async def test_a_call_tells_the_backend_its_deadline_and_when_nobody_waits_any_more(kit: Any) -> None:
    seen: list[tuple[float, bool]] = []

    class Backend(kit.Memory):  # type: ignore[misc, name-defined]
        @hookimpl
        def provision(self, request: Any) -> Any:
            seen.append((request.context.timeout, request.context.cancelled()))
            return super().provision(request)

    world = World()
    drivers = registry(kit, world, base=Backend)
    await start_all(drivers)
    driver = drivers.get("d")
    assert driver is not None
    await drivers.calls.call(driver, kit.demand())
    world.latency["provision"] = 20.0
    with pytest.raises(OutcomeUnknown):
        await drivers.calls.call(driver, kit.demand(), timeout=5.0)
    await asyncio.sleep(30)
    assert seen == [(50.0, False), (5.0, True)]


async def test_a_start_that_hangs_is_told_after_a_moment_and_delays_no_other_driver(kit: Any) -> None:
    world = World()
    executor = InlineExecutor(latency=lambda driver, what: (20.0 if (driver, what) == ("a", "start") else 0.0, 0.0))
    drivers = registry(kit, world, "a", "b", executor=executor)
    keeping = asyncio.ensure_future(drivers.keep())
    await asyncio.sleep(1.0)
    assert [driver.name for driver in drivers.ready()] == ["b"]
    assert (drivers.starting("a"), drivers.starting("b")) == (True, False)
    await asyncio.sleep(2.0)
    assert not drivers.starting("a")
    assert drivers.broken("a") == "driver a is unavailable: start has not returned within 2 s"
    assert world.changed == ["b", "a"], "what waits for it is decided anew, and told"
    await asyncio.sleep(20.0)
    assert [driver.name for driver in drivers.ready()] == ["a", "b"]
    assert world.changed == ["b", "a", "a"]
    keeping.cancel()


async def test_nobody_is_told_who_owns_a_source_while_a_driver_starts(kit: Any) -> None:
    world = World()
    world.latency["start"] = 1.0
    drivers = registry(kit, world)
    keeping = asyncio.ensure_future(drivers.keep())
    await asyncio.sleep(0.5)
    owner = drivers.owner_of(VolumeSource(kind="hostPath", fields={"path": "/x"}))
    assert (owner.known, owner.starting, owner.reason) == (False, "d", "")
    keeping.cancel()


# --- without the lease --------------------------------------------------------------------------------------------


async def test_a_hook_that_changes_storage_is_not_called_once_the_lease_is_over(kit: Any) -> None:
    world = World()
    drivers = registry(kit, world, may_begin=lambda: not world.over)
    await start_all(drivers)
    driver = drivers.get("d")
    assert driver is not None
    asset = await drivers.calls.call(driver, kit.demand())
    world.over = True
    with pytest.raises(Again):
        await drivers.calls.call(driver, kit.demand())
    assert isinstance(asset, Asset)
    assert await drivers.probe("d") == "", "what only looks may run"


async def test_a_hook_that_waited_for_its_thread_looks_at_the_lease_when_it_gets_it(kit: Any) -> None:
    world = World()
    world.latency["provision"] = 10.0
    drivers = registry(kit, world, may_begin=lambda: not world.over)
    await start_all(drivers)
    driver = drivers.get("d")
    assert driver is not None
    call = asyncio.ensure_future(drivers.calls.call(driver, kit.demand()))
    await asyncio.sleep(5.0)
    world.over = True
    with pytest.raises(Again):
        await call


# --- drivers that hang --------------------------------------------------------------------------------------------


async def test_all_drivers_hang_only_when_none_can_work(kit: Any) -> None:
    world = World()
    hangs = {("a", "provision"), ("b", "start")}
    executor = InlineExecutor(latency=lambda driver, what: (3600.0 if (driver, what) in hangs else 0.0, 0.0))
    drivers = registry(kit, world, "a", "b", executor=executor, concurrency=1)
    keeping = asyncio.ensure_future(drivers.keep())
    await asyncio.sleep(60.0)
    driver = drivers.get("a")
    assert driver is not None
    assert not drivers.all_hang, "a can work, though b does not start"
    with pytest.raises(OutcomeUnknown):
        await drivers.calls.call(driver, kit.demand(), timeout=5.0)
    assert drivers.all_hang
    await asyncio.sleep(3600.0)
    assert not drivers.all_hang, "the hooks have returned"
    keeping.cancel()


def test_a_call_that_a_storage_refuses_because_of_a_later_term_is_told(kit: Any) -> None:
    terms: list[str] = []

    def refuse(_driver: Any, _request: Any) -> Any:
        raise Fenced("a later leader has it", fence="7/b/lease")

    calls = HookCalls(LoadedDrivers(), InlineExecutor(), call_hook=refuse, fenced=terms.append)
    with pytest.raises(Fenced):
        calls._call_in_thread(None, ProbeRequest(context=kit.context))  # type: ignore[arg-type]
    assert terms == ["7/b/lease"]


async def test_the_attachers_of_a_csi_driver_are_the_drivers_of_its_name_that_attach(kit: Any) -> None:
    def of(csi_driver: str, name: str) -> Any:
        class Backend(kit.Memory):  # type: ignore[misc]
            @hookimpl
            def describe(self, request: Any) -> DriverInfo:
                return DriverInfo(version="1", csi_driver_name=csi_driver, attach_required=True)

            @hookimpl
            def attach(self, request: Any) -> Attachment:
                return Attachment()

            @hookimpl
            def detach(self, request: Any) -> Done:
                return Done()

        return build_driver(name, kit.backend(Backend), {})

    drivers = (of("a.example.com", "second"), of("b.example.com", "other"), of("a.example.com", "first"))
    plain = build_driver("plain", kit.backend(kit.Memory), {})
    loaded = LoadedDrivers(drivers=(*drivers, plain))
    found = DriverRegistry(loaded, HookCalls(loaded, InlineExecutor()), cluster_id="c")
    assert found.attachers("a.example.com") == ("first", "second")
    assert found.attachers("c.example.com") == ()


async def test_what_a_hook_raises_is_counted_by_its_class(kit: Any) -> None:
    class Refuses(kit.Memory):  # type: ignore[misc]
        @hookimpl
        def provision(self, request: Any) -> Asset:
            raise Unavailable("not now")

    driver = build_driver("d", kit.backend(Refuses), {})
    loaded, metrics = LoadedDrivers(drivers=(driver,)), Metrics()
    with pytest.raises(Unavailable):
        await HookCalls(loaded, InlineExecutor(), metrics=metrics).call(driver.view, kit.demand())
    counted = [line for line in metrics.exposition().decode().splitlines() if 'hook="provision"' in line]
    assert any('"Unavailable"' in line and line.endswith(" 1.0") for line in counted)


async def test_the_drivers_have_started_once_the_last_one_has(kit: Any) -> None:
    def slow(driver: str, what: str) -> tuple[float, float]:
        return (5.0 if (driver, what) == ("b", "start") else 0.0), 0.0

    drivers = registry(kit, World(), "a", "b", executor=InlineExecutor(latency=slow))
    await keeping(drivers, 1.0)
    assert [each.name for each in drivers.ready()] == ["a"]
    assert not drivers.started.is_set()
    drivers = registry(kit, World(), "a", "b", executor=InlineExecutor(latency=slow))
    await keeping(drivers, 6.0)
    assert drivers.started.is_set()
