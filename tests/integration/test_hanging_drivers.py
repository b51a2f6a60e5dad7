"""Hooks that never return: what they cost the driver, the other drivers, and the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.controller_process import Site, running_process
from volplane import Done, StartRequest, hookimpl
from volplane.controller.config import Configuration, DriverSettings
from volplane.drivers import loading, registry
from volplane.drivers.contract import Plugin
from volplane.errors import VolplaneError
from volplane.kube.kinds import LEASES, STORAGE_CLASSES
from volplane.process import process
from volplane.process.duties import ALL_CONTROLLERS
from volplane.process.process import ControllerProcess
from volplane_testing.memory import MemoryBackend

ALL = frozenset(ALL_CONTROLLERS)
DEAD = "dead.example.com"
pytestmark = pytest.mark.real_time


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def dead(never: threading.Event, hook: str) -> Plugin:
    """A backend, one hook of which hangs, or its constructor."""

    class Hangs(MemoryBackend):
        def __init__(self, *given: Any) -> None:
            if hook == "constructor":
                never.wait()
            super().__init__(*given)

        @hookimpl
        def describe(self, request: Any) -> Any:
            if hook == "describe":
                never.wait()
            return super().describe(request)

        @hookimpl
        def start(self, request: StartRequest) -> Done:
            if hook == "start":
                never.wait()
            return Done()

        @hookimpl
        def provision(self, request: Any) -> Any:
            never.wait()
            return super().provision(request)

    return Plugin(kind="backend", name="dead", factory=Hangs, distribution="tests")


def configured(timeout: float = 0.2) -> Configuration:
    return Configuration(drivers=(DriverSettings(name=DEAD, backend="dead", concurrency=1, timeout=timeout),))


async def leading(process: ControllerProcess) -> None:
    """Wait until the controllers are there, whatever their drivers do."""
    while process.plane is None:
        await asyncio.sleep(0.01)


async def make_dead_class(site: Site) -> None:
    await site.client.create(STORAGE_CLASSES, STORAGE_CLASSES.body(metadata={"name": "dead"}, provisioner=DEAD))


async def test_a_start_that_hangs_holds_up_only_its_own_claims_and_nobody_is_told_too_early(
    tmp_path: Path, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "START_GRACE", 3600.0)
    monkeypatch.setattr(registry, "START_TIMEOUT", 3600.0)
    monkeypatch.setattr(ControllerProcess, "wait_working", leading)
    plugin = dead(never, "start")
    async with running_process(tmp_path, ALL, configuration=configured(), plugins=[plugin]) as site:
        await site.make_class("good")
        await make_dead_class(site)
        await site.make_claim("held", "dead")
        await site.make_claim("quick", "good")
        await site.bound("quick")
        assert await site.phase("held") == "Pending"
        plane = site.process.plane
        assert plane is not None
        await site.until("it is decided", lambda: plane.reason("claims", "default/held"))
        assert plane.reason("claims", "default/held") == f'driver "{DEAD}" is starting'


@pytest.mark.parametrize("part", ["constructor", "describe"])
async def test_a_backend_that_hangs_while_it_is_made_holds_up_only_its_own_claims_until_it_is_made(
    part: str, tmp_path: Path, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE", 0.2)
    monkeypatch.setattr(registry, "START_GRACE", 0.2)
    monkeypatch.setattr(ControllerProcess, "wait_working", leading)
    async with running_process(tmp_path, ALL, configuration=configured(60.0), plugins=[dead(never, part)]) as site:
        await site.make_class("good")
        await make_dead_class(site)
        await site.make_claim("held", "dead")
        await site.make_claim("quick", "good")
        await site.bound("quick")
        await site.until("its grace is over", lambda: "not ended" in str(site.process.details()))
        _, page = await site.get("/readyz")
        assert page == f"ok\ndriver {DEAD} is starting: making the backend has not ended yet\n"
        plane = site.process.plane
        assert plane is not None
        await site.until("it says why", lambda: "has not ended yet" in plane.reason("claims", "default/held"))
        never.set()
        await site.bound("held")
        assert "dead.example.com is starting" not in (await site.get("/readyz"))[1]


async def test_a_backend_that_is_not_made_in_time_is_broken_beside_those_that_work(
    tmp_path: Path, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE", 0.2)
    within = loading.within

    def soon_for_one(seconds: float, what: str, job: Any, *given: Any) -> Any:
        return within(0.3 if given and getattr(given[0], "name", "") == DEAD else seconds, what, job, *given)

    monkeypatch.setattr(loading, "within", soon_for_one)
    plugins = [dead(never, "constructor")]
    async with running_process(tmp_path, ALL, configuration=configured(), plugins=plugins) as site:
        problem = f"driver {DEAD} is broken: making the backend did not end within 0.3 s"
        await site.until("it is broken", lambda: problem in site.process.details())
        assert (await site.get("/readyz"))[1] == f"ok\n{problem}\n"
        assert f'volplane_driver_healthy{{driver="{DEAD}"}} 0' in (await site.get("/metrics"))[1]


async def test_a_process_ends_at_once_while_a_backend_is_made(
    tmp_path: Path, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE", 0.2)
    monkeypatch.setattr(ControllerProcess, "wait_working", leading)
    loop = asyncio.get_running_loop()
    async with running_process(tmp_path, ALL, configuration=configured(), plugins=[dead(never, "describe")]):
        begun = loop.time()
    assert loop.time() - begun < 20


async def test_a_process_whose_drivers_all_hang_gives_its_lease_up_and_ends(
    tmp_path: Path, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volplane.process.control_plane.HUNG_SECONDS", 0.3)
    monkeypatch.setattr("volplane.process.control_plane.HUNG_INTERVAL", 0.05)
    monkeypatch.setattr("volplane.process.control_plane.DRAIN_SECONDS", 0.2)
    sites: list[Site] = []

    async def until_it_ends() -> None:
        plugin = dead(never, "provision")
        async with running_process(tmp_path, ALL, configuration=configured(), plugins=[plugin], hostpath=False) as site:
            sites.append(site)
            await make_dead_class(site)
            await site.make_claim("held", "dead")
            await site.until("it ended", lambda: False)

    with pytest.raises(ExceptionGroup) as raised:
        await until_it_ends()
    (error,) = raised.value.exceptions
    assert isinstance(error, VolplaneError)
    assert DEAD in str(error)
    lease = await sites[0].client.get(LEASES, "volplane-system/volplane")
    assert not lease.spec.holder_identity


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_process_that_loses_its_lease_while_a_hook_hangs_ends_for_nothing_else_ends_the_hook(
    tmp_path: Path, never: threading.Event, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    monkeypatch.setattr("volplane.process.process.RENEW_PERIOD", (0.05, 0.05))
    if hangs:
        monkeypatch.setattr("volplane.process.control_plane.DRAIN_SECONDS", 0.2)
    ended: list[str] = []
    provisions = threading.Event()

    class Hangs(MemoryBackend):
        @hookimpl
        def provision(self, request: Any) -> Any:
            provisions.set()
            never.wait()
            return super().provision(request)

    plugin = Plugin(kind="backend", name="dead", factory=Hangs, distribution="tests")
    async with running_process(tmp_path, ALL, configuration=configured(), plugins=[plugin]) as site:
        monkeypatch.setattr("volplane.process.process._exit_hard", ended.append)
        await make_dead_class(site)
        if hangs:
            await site.make_claim("held", "dead")
            await site.until("provision is called", provisions.is_set)
        lease = await site.client.get(LEASES, "volplane-system/volplane")
        await site.client.patch(
            LEASES,
            "volplane-system/volplane",
            LEASES.body(spec={"holderIdentity": "another", "leaseTransitions": lease.spec.lease_transitions + 1}),
        )
        await site.until("it works no more", lambda: site.process.plane is None)
        await site.until("it has stopped", lambda: site.process._term is None)
        assert len(ended) == int(hangs)
        assert all("provision" in why for why in ended)


async def test_a_process_is_stopped_at_once_while_a_backend_hangs_before_its_start(
    never: threading.Event, tmp_path: Path
) -> None:
    asked = threading.Event()

    class Describes(MemoryBackend):
        @hookimpl
        def describe(self, request: Any) -> Any:
            asked.set()
            never.wait()
            return super().describe(request)

    plugin = Plugin(kind="backend", name="dead", factory=Describes, distribution="tests")
    loop = asyncio.get_running_loop()
    async with running_process(
        tmp_path, ALL, configuration=configured(), plugins=[plugin], hostpath=False, leads=False
    ) as site:
        while not asked.is_set():
            await asyncio.sleep(0.01)
        assert site.process.unready() == ("starting",)
        begun = loop.time()
    assert loop.time() - begun < 20
