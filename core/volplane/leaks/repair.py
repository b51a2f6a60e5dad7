"""What the leak check does only when a person asks: orphans are deleted, assets of a former cluster taken over.

Each is an operation under the asset's key, so it excludes every other operation of the asset. A repair deletes only a
confirmed orphan: it compares the asset with the claims and volumes as they are then, reads the volume of its name once
more, and calls `delete` with the marks that were listed: a backend refuses what carries others meanwhile. An adoption,
after a restore, takes over what a volume of this cluster points at; a person names the former cluster, and what no
volume points at stays foreign.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from volplane._delays import LONG_CALL
from volplane.assets import InProgress, Ownership, VolumeSource
from volplane.controller.actions import Run
from volplane.errors import ConfigurationError, OperationError, Unavailable, Unsupported, VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.objects import Volume
from volplane.leaks.check import LeakCheck
from volplane.leaks.comparison import Comparison, Finding, Key, Verdict, assets_of, feed_live
from volplane.operations.operation import Again
from volplane.operations.registry import Dispatcher, OneShots, OneShotState, OneShotStatus
from volplane.requests import AdoptRequest, DeleteRequest, VolumeIdentity
from volplane.state.naming import asset_key

LOOK_SECONDS = 10.0
"""How long one live look at all claims and volumes serves the repairs of a driver."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Look:
    """The result of a live look at the claims and volumes for a driver's orphans."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    began: float = float("-inf")
    asked: frozenset[Key] = frozenset()
    orphans: frozenset[Key] = frozenset()


class LeakRepair:
    def __init__(self, check: LeakCheck, deps: OperationDeps, dispatcher: Dispatcher) -> None:
        self._check = check
        self._deps = deps
        self._one_shots = OneShots(dispatcher, "fix", lambda run: partial(self._delete, run, self._asked[run.name]))
        self._looks: dict[str, _Look] = {}
        self._states: dict[str, Mapping[str, Any]] = {}
        self._asked: dict[str, Finding] = {}
        """By the name of the operation."""

    def start(self, driver: str = "", handle: str = "") -> list[Finding]:
        """Start to delete every confirmed orphan (of one driver, with one handle, if named); return them."""
        seen = self._check.observations
        asked = (each for each in seen.findings() if driver in ("", each.driver) and handle in ("", each.handle))
        confirmed = [each for each in asked if each.verdict is Verdict.ORPHAN and seen.confirmed(each)]
        running = {name for name, each in self._one_shots.statuses.items() if each.state is OneShotState.RUNNING}
        self._states = {name: state for name, state in self._states.items() if name in running}
        self._asked = {name: finding for name, finding in self._asked.items() if name in running}
        runs: list[Run] = []
        for finding in confirmed:
            # An asset without marks is no orphan.
            if finding.asset is not None and (owner := finding.asset.owner) is not None:
                name = owner.volume_name
                runs.append(Run(verb="fix", key=name, uid=finding.handle, driver=finding.driver, asset=name))
                self._asked[runs[-1].name] = finding
        self._one_shots.start(runs)
        return confirmed

    def repairs(self) -> list[tuple[Finding, OneShotStatus]]:
        """Return the repairs requested last, and earlier ones that still run, with their status."""
        statuses = self._one_shots.statuses
        return [(finding, statuses[name]) for name, finding in self._asked.items() if name in statuses]

    async def _delete(self, run: Run, finding: Finding) -> str:
        cluster, asset = self._deps.cluster, finding.asset
        if asset is None or (owner := asset.owner) is None:
            raise OperationError(f"{run.name} was not started: an asset without marks is no orphan")
        driver = cluster.drivers.get(finding.driver)
        if driver is None:
            reason = cluster.drivers.broken(finding.driver) or "it is not configured any more"
            raise Unavailable(f"driver {finding.driver} cannot be used: {reason}")
        await self._refuse_wanted(finding, owner)
        context = self._deps.context(driver, owner.generation, self._states.get(run.name))
        name, handle, source = owner.volume_name, asset.handle, asset.source or VolumeSource(kind="", fields={})
        size = asset.capacity_bytes
        volume = VolumeIdentity(name=name, uid="", handle=handle, source=source, capacity_bytes=size, owner=owner)
        result = await self._deps.hooks.call(driver, DeleteRequest(context=context, volume=volume))
        if isinstance(result, InProgress):
            self._states[run.name] = dict(result.state)
            raise Again(after=LONG_CALL.delay(asked=result.retry_after))
        self._check.settled(finding)
        log.warning("deleted the orphan %s (%s)", asset.handle, finding.detail)
        return "deleted"

    async def _refuse_wanted(self, finding: Finding, owner: Ownership) -> None:
        """Raise VolplaneError unless it is an orphan now. One look serves all orphans of its driver."""
        look = self._looks.setdefault(finding.driver, _Look())
        async with look.lock:
            now = asyncio.get_running_loop().time()
            # An older look may miss a claim or a volume that has come since; a look without this asset proves nothing.
            if now - look.began > LOOK_SECONDS or finding.key not in look.asked:
                found = [finding, *self._check.observations.findings()]
                ours = (each for each in found if each.driver == finding.driver and each.verdict is Verdict.ORPHAN)
                orphans = {each.key: each for each in ours}
                comparison = Comparison(finding.driver, self._deps.cluster.cluster_id)
                for each in orphans.values():
                    if each.asset is not None:
                        comparison.add_asset(each.asset)
                await feed_live(comparison, self._deps.client)
                still = (each.key for each in comparison.findings() if each and each.verdict is Verdict.ORPHAN)
                look.began, look.asked, look.orphans = now, frozenset(orphans), frozenset(still)
        if finding.key not in look.orphans:
            raise VolplaneError("it is no orphan any more: a volume or a claim leads to it")
        # The volume of this very name may have been restored after the look.
        if (live := await self._deps.live_volume(owner.volume_name)) is not None:
            raise VolplaneError(f"it is no orphan any more: volume {live.name} leads to it")


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
    def __init__(self, check: LeakCheck, deps: OperationDeps, dispatcher: Dispatcher) -> None:
        self._check = check
        self._deps = deps
        self._cluster = deps.cluster
        self._drivers = sorted(deps.drivers.names())
        self._one_shots = OneShots(dispatcher, "adopt", lambda run: partial(self._adopt, self._asked[run.name]))
        self._asked: dict[str, Adoptable] = {}
        """By the name of the operation."""

    async def plan(self, former: str, driver: str = "") -> list[Adoptable]:
        """Return every asset that carries the marks of cluster `former`, by driver.

        Raises ConfigurationError for our own id or an unknown driver, BackendError if a driver cannot be asked.
        """
        cluster, ours = self._cluster, self._cluster.cluster_id
        # The assets of this cluster have its marks.
        if not former or former == ours:
            raise ConfigurationError(f'--from is "{former}"; it must be the id of another cluster, this one is {ours}')
        if driver and driver not in self._drivers:
            known = ", ".join(self._drivers) or "none"
            raise ConfigurationError(f'--driver: "{driver}" is not configured here; drivers are {known}')
        plan: list[Adoptable] = []
        for name in [driver] if driver else self._drivers:
            view = cluster.drivers.get(name)
            if view is None:
                raise Unavailable(f"driver {name} cannot be asked for its assets: {cluster.drivers.broken(name)}")
            if not view.supports("list_assets"):
                continue
            unsupported = "" if view.supports("adopt") else f"backend {view.backend} does not implement the hook adopt"
            comparison, found = Comparison(name, ours), []
            async for asset in assets_of(view, self._deps):
                comparison.add_asset(asset)
                if (owner := asset.owner) is not None and owner.cluster_id == former:
                    found.append((owner, asset.handle))
            self._check.compare_terms(name, comparison.terms)
            if (term := self._check.living.get((name, former))) is not None:
                unsupported = f"cluster {former} still changes assets (term {term.transitions}): stop it first"
            for owner, handle in found:
                volume = owner.volume_name
                obstacle = _obstacle(cluster.volumes.get(volume), name, handle) or unsupported
                plan.append(Adoptable(driver=name, handle=handle, volume=volume, former=owner, obstacle=obstacle))
        return plan

    async def start(self, former: str, driver: str = "") -> list[Adoptable]:
        """Start to take over the assets of the plan without an obstacle; return the plan."""
        plan = await self.plan(former, driver)
        runs: list[Run] = []
        self._asked = {}
        for each in plan:
            if not each.obstacle:
                volume = self._cluster.volumes.get(each.volume)
                asset = asset_key(volume) if volume is not None else each.volume
                runs.append(Run(verb="adopt", key=each.volume, uid=each.handle, driver=each.driver, asset=asset))
                self._asked[runs[-1].name] = each
        self._one_shots.start(runs)
        return plan

    def statuses(self) -> list[tuple[Adoptable, OneShotStatus]]:
        """Return the adoptions started last, with their status."""
        statuses = self._one_shots.statuses
        return [(each, statuses[name]) for name, each in self._asked.items() if name in statuses]

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
