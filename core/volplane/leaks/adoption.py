"""Takes over, after a restore, assets with another cluster's marks that a volume of this cluster points at.

A person names the former cluster. An asset that no volume points at stays foreign.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from volplane.assets import Ownership
from volplane.controller.actions import Run
from volplane.errors import ConfigurationError, Unavailable, Unsupported, VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.objects import Volume
from volplane.leaks.comparison import assets_of
from volplane.operations import Dispatcher, OneShots, OneShotStatus, Work
from volplane.requests import AdoptRequest
from volplane.state.naming import asset_key

__all__ = ["Adoptable", "Adoption"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoptable:
    """An asset of the former cluster."""

    driver: str
    handle: str
    volume: str
    former: Ownership
    """Its marks."""
    obstacle: str = ""
    """Why it is not taken over; "" if it is."""


class Adoption:
    """Takes assets over, with the running drivers."""

    def __init__(self, deps: OperationDeps, drivers: Sequence[str], dispatcher: Dispatcher) -> None:
        self._deps = deps
        self._cluster = deps.cluster
        self._drivers = sorted(drivers)
        self._one_shots = OneShots(dispatcher, "adopt", self._handle)
        self._asked: dict[str, tuple[Run, Adoptable]] = {}
        """By the name of the operation."""

    async def plan(self, former: str, driver: str = "") -> list[Adoptable]:
        """Return every asset that carries the marks of cluster `former`, by driver.

        Raises ConfigurationError for our own id or an unknown driver, BackendError if a driver cannot be asked.
        """
        ours = self._cluster.cluster_id
        if not former or former == ours:
            raise ConfigurationError(f'--from is "{former}"; it must be the id of another cluster, this one is {ours}')
        if driver and driver not in self._drivers:
            known = ", ".join(self._drivers) or "none"
            raise ConfigurationError(f'--driver: "{driver}" is not configured here; drivers are {known}')
        plan: list[Adoptable] = []
        for name in [driver] if driver else self._drivers:
            plan += await self._of_driver(name, former)
        return plan

    async def _of_driver(self, name: str, former: str) -> list[Adoptable]:
        driver = self._cluster.drivers.get(name)
        if driver is None:
            reason = self._cluster.drivers.broken(name)
            raise Unavailable(f"driver {name} cannot be asked for its assets: {reason}")
        if not driver.supports("list_assets"):
            return []
        unsupported = "" if driver.supports("adopt") else f"backend {driver.backend} does not implement the hook adopt"
        return [
            Adoptable(
                driver=name,
                handle=asset.handle,
                volume=owner.volume_name,
                former=owner,
                obstacle=_obstacle(self._cluster.volumes.get(owner.volume_name), name, asset.handle) or unsupported,
            )
            async for asset in assets_of(driver, self._deps)
            if (owner := asset.owner) is not None and owner.cluster_id == former
        ]

    async def start(self, former: str, driver: str = "") -> list[Adoptable]:
        """Start to take over the assets of the plan without an obstacle; return the plan."""
        plan = await self.plan(former, driver)
        runs = [(self._run(each), each) for each in plan if not each.obstacle]
        self._asked = {run.name: (run, each) for run, each in runs}
        self._one_shots.start(run for run, _ in runs)
        return plan

    def statuses(self) -> list[tuple[Adoptable, OneShotStatus]]:
        """Return the adoptions started last, with their status."""
        known = [(each, self._one_shots.statuses.get(run.name)) for run, each in self._asked.values()]
        return [(each, status) for each, status in known if status is not None]

    def _run(self, adoptable: Adoptable) -> Run:
        volume = self._cluster.volumes.get(adoptable.volume)
        return Run(
            verb="adopt",
            key=adoptable.volume,
            uid=adoptable.handle,
            driver=adoptable.driver,
            asset=asset_key(volume) if volume is not None else adoptable.volume,
        )

    def _handle(self, run: Run) -> Work:
        _, adoptable = self._asked[run.name]
        return lambda: self._adopt(adoptable)

    async def _adopt(self, adoptable: Adoptable) -> str:
        driver = self._cluster.drivers.get(adoptable.driver)
        if driver is None:
            raise Unavailable(f"driver {adoptable.driver}: {self._cluster.drivers.broken(adoptable.driver)}")
        # The volume may have changed since the plan: only a live read shows that it still justifies the adoption.
        live = await self._deps.live_volume(adoptable.volume)
        if live is None:
            raise VolplaneError(f"volume {adoptable.volume} is gone")
        if obstacle := _obstacle(live, adoptable.driver, adoptable.handle):
            raise VolplaneError(obstacle)
        identity = volume_identity(live, self._cluster.cluster_id)
        if identity.owner is None:
            raise Unsupported(f"volume {live.name} was made by a person, not by driver {driver.name}")
        context = self._deps.context(driver, identity.owner.generation)
        request = AdoptRequest(context=context, volume=identity, former=adoptable.former)
        await self._deps.hooks.call(driver, request)
        log.info("took %s over from cluster %s", adoptable.handle, adoptable.former.cluster_id)
        return f"carries the marks of cluster {self._cluster.cluster_id}"


def _obstacle(volume: Volume | None, driver: str, handle: str) -> str:
    """Return why a volume of ours does not justify taking the asset over; "" if it does."""
    if volume is None:
        return "no volume of this cluster has its name"
    maker = volume.annotation(names.PROVISIONED_BY)
    if maker != driver:
        return f"volume {volume.name} was made by {maker or 'a person'}"
    pointer = volume.annotation(names.HANDLE)
    if pointer is not None and pointer != handle:
        return f"volume {volume.name} points at {pointer}"
    return ""
