"""Who outgrows one process: several, each with its own drivers and Lease, one of them with the binder.

docs/how-to/use-several-processes.md is this story.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from integration.controller_process import Site, running_process
from volplane.controller.config import Configuration, DriverSettings
from volplane.drivers.contract import Plugin
from volplane.errors import ApiError
from volplane.intents.bootstrap import SEAL_SECRET
from volplane.kube.kinds import CLAIMS, LEASES, NAMESPACES, SECRETS, VOLUMES
from volplane.kube.leases import drivers_of
from volplane.process.duties import ALL_CONTROLLERS, DEFAULT_CONTROLLERS
from volplane_hostpath import HostPathBackend

BESIDE = frozenset(DEFAULT_CONTROLLERS.split(","))
PLUGIN = Plugin(kind="backend", name="hostpath", factory=HostPathBackend, distribution="tests")
PLACES = {"volplane-one": ("a", "b"), "volplane-two": ("c", "d"), "volplane-three": ("e",)}


class Several:
    """Processes by their namespaces, on one server; each may be stopped and started with other drivers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, AsyncExitStack] = {}
        self.sites: dict[str, Site] = {}

    def root(self, driver: str) -> Path:
        return self._directory / "storage" / driver

    async def start(self, namespace: str, *drivers: str) -> Site:
        options = {"create_root": True, "shared": True}
        settings = [
            DriverSettings(
                name=f"{each}.example.com", backend="hostpath", options={**options, "root": str(self.root(each))}
            )
            for each in drivers
        ]
        stack = self._running[namespace] = AsyncExitStack()
        first = next(iter(self.sites.values()), None)
        site = await stack.enter_async_context(
            running_process(
                self._directory / namespace,
                frozenset(ALL_CONTROLLERS) if first is None or namespace == next(iter(PLACES)) else BESIDE,
                configuration=Configuration(drivers=tuple(settings)),
                plugins=[PLUGIN],
                hostpath=False,
                server=first.server if first is not None else None,
                namespace=namespace,
            )
        )
        self.sites[namespace] = site
        return site

    async def stop(self, namespace: str) -> None:
        await self._running.pop(namespace).aclose()

    async def served(self, namespace: str) -> set[str]:
        """The drivers that the Lease of a namespace names: no process works there with others."""
        lease = await self.sites[namespace].client.find(LEASES, f"{namespace}/volplane")
        return {name.partition(".")[0] for name in drivers_of(lease)}


async def copy_key(site: Site, namespace: str) -> None:
    """Let the processes of another namespace seal with the key of the first one: they go on with its records."""
    key = await site.client.get(SECRETS, f"{next(iter(PLACES))}/{SEAL_SECRET}")
    await site.client.create(NAMESPACES, NAMESPACES.body(metadata={"name": namespace}))
    body = SECRETS.body(
        metadata={"name": SEAL_SECRET, "namespace": namespace}, type="Opaque", data=dict(key.data or {})
    )
    await site.client.create(SECRETS, body)


class Churn:
    """People who create claims of every driver without a pause, and delete those that are bound."""

    def __init__(self, site: Site, drivers: list[str]) -> None:
        self.site, self.drivers = site, drivers
        self.made = 0
        self.ending = False

    async def run(self, driver: str) -> None:
        number = 0
        while not self.ending:
            name = f"{driver}-{number}"
            await self.site.make_claim(name, driver)
            self.made += 1
            if number >= 3:
                gone = f"{driver}-{number - 3}"
                await self.site.bound(gone)
                await self.site.client.delete(CLAIMS, f"default/{gone}")
            number += 1
            await asyncio.sleep(0.02)
        for left in range(max(0, number - 3), number):
            await self.site.bound(f"{driver}-{left}")
            await self.site.client.delete(CLAIMS, f"default/{driver}-{left}")


@pytest.mark.soak
@pytest.mark.real_time(seconds=240)
async def test_drivers_move_from_one_process_to_another_under_churn_and_nothing_is_lost(tmp_path: Path) -> None:
    several = Several(tmp_path)
    one = await several.start("volplane-one", *PLACES["volplane-one"])
    for namespace in ("volplane-two", "volplane-three"):
        await copy_key(one, namespace)
        await several.start(namespace, *PLACES[namespace])
    drivers = [driver for each in PLACES.values() for driver in each]
    for driver in drivers:
        await one.make_class(driver, driver=f"{driver}.example.com")
    churn = Churn(one, drivers)
    async with asyncio.TaskGroup() as group:
        for driver in drivers:
            group.create_task(churn.run(driver))
        await asyncio.sleep(2.0)
        assert all(list(several.root(driver).glob("pvc-*")) for driver in drivers)
        for source, left, target, taken in (
            ("volplane-two", ("c",), "volplane-three", ("e", "d")),
            ("volplane-one", ("a",), "volplane-two", ("c", "b")),
            ("volplane-three", ("e",), "volplane-one", ("a", "d")),
        ):
            # The former one is started anew without the driver: its Lease then proves that it has stopped.
            await several.stop(source)
            await several.start(source, *left)
            assert await several.served(source) == set(left)
            assert several.sites[target].process.plane is not None
            await several.stop(target)
            await several.start(target, *taken)
            await asyncio.sleep(1.5)
        churn.ending = True
    assert churn.made > 100

    async def all_gone() -> bool:
        try:
            return not (await one.client.list(VOLUMES)).items
        except ApiError:
            return False

    await one.until("every volume is gone", all_gone)
    for driver in drivers:
        assert not list(several.root(driver).glob("pvc-*")), driver
    for namespace in list(PLACES):
        await several.stop(namespace)
