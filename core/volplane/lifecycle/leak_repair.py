"""Deleting orphans, when a person asks for it: only confirmed ones, each looked at again right before.

A repair is an operation under the asset's key, so it excludes every other operation of the asset. It compares the asset
with the claims and volumes as they are then, reads the volume of its name once more, and calls `delete` with the marks
that were listed: a backend refuses what carries others meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from volplane.assets import InProgress, ListedAsset, Ownership, VolumeSource
from volplane.drivers.driver import Driver
from volplane.errors import ApiNotFound, Unavailable, VolplaneError
from volplane.kube.client import Client
from volplane.kube.kinds import VOLUMES
from volplane.lifecycle.errands import Errand, Errands, ErrandState, Outcome
from volplane.lifecycle.identity import context_of
from volplane.lifecycle.leak_check import LeakCheck
from volplane.lifecycle.leaks import Comparison, Finding, Verdict
from volplane.lifecycle.listing import feed_live
from volplane.operations import Again
from volplane.requests import DeleteRequest, VolumeIdentity

__all__ = ["LeakRepair"]

LOOK_SECONDS = 10.0
"""How long one live look at all claims and volumes serves the repairs of a driver."""

log = logging.getLogger(__name__)


class LeakRepair:
    """Repairs what `check` found."""

    def __init__(self, check: LeakCheck, client: Client, errands: Errands, *, fence: Callable[[], str]) -> None:
        self._check = check
        self._client = client
        self._errands = errands
        self._fence = fence
        self._looks: dict[str, _Look] = {}
        self._states: dict[str, Mapping[str, Any]] = {}
        self._asked: dict[str, Finding] = {}

    def start(self, driver: str = "", handle: str = "") -> list[Finding]:
        """Begin to delete every confirmed orphan (of one driver, with one handle, if named); which these are."""
        confirmed = [
            finding
            for finding in self._check.observations.findings()
            if finding.verdict is Verdict.ORPHAN
            and driver in ("", finding.driver)
            and handle in ("", finding.handle)
            and self._check.observations.confirmed(finding)
        ]
        running = {key: each for key, each in self._asked.items() if self._runs(each)}
        self._states = {key: state for key, state in self._states.items() if key in running}
        self._asked = running | {_key(finding): finding for finding in confirmed}
        self._errands.start(self._errand(finding, finding.asset) for finding in confirmed if finding.asset is not None)
        return confirmed

    def repairs(self) -> list[tuple[Finding, Outcome]]:
        """What was asked for last, and what runs from before, with what became of each."""
        told = [(finding, self._errands.outcome(key)) for key, finding in self._asked.items()]
        return [(finding, outcome) for finding, outcome in told if outcome is not None]

    def _runs(self, finding: Finding) -> bool:
        outcome = self._errands.outcome(_key(finding))
        return outcome is not None and outcome.state is ErrandState.RUNNING

    def _errand(self, finding: Finding, asset: ListedAsset) -> Errand:
        owner = asset.owner
        if owner is None:
            raise TypeError("an orphan carries marks")
        return Errand(
            key=_key(finding),
            name=f"fix-{owner.volume_name}[{asset.handle}]",
            driver=finding.driver,
            asset=owner.volume_name,
            work=lambda: self._delete(finding, asset, owner),
        )

    async def _delete(self, finding: Finding, asset: ListedAsset, owner: Ownership) -> str:
        world = self._check.world
        driver = world.drivers.get(finding.driver)
        if driver is None:
            reason = world.drivers.broken(finding.driver) or "it is not configured any more"
            raise Unavailable(f"driver {finding.driver} cannot be used: {reason}")
        await self._refuse_wanted(finding, owner)
        context = context_of(
            driver,
            world.settings.cluster_id,
            generation=owner.generation,
            state=self._states.get(_key(finding)),
            fence=self._fence(),
        )
        request = DeleteRequest(context=context, volume=_identity(asset, owner))
        result = await world.drivers.call(driver, Driver.delete, request)
        if isinstance(result, InProgress):
            self._states[_key(finding)] = dict(result.state)
            raise Again(after=result.retry_after)
        self._check.settled(finding)
        log.warning("deleted the orphan %s (%s)", asset.handle, finding.detail)
        return "deleted"

    async def _refuse_wanted(self, finding: Finding, owner: Ownership) -> None:
        """Raise VolplaneError unless it is an orphan now."""
        look = self._looks.setdefault(finding.driver, _Look())
        async with look.lock:
            now = asyncio.get_running_loop().time()
            if now - look.began > LOOK_SECONDS or finding.key not in look.asked:
                await self._look(finding, look)
        if finding.key not in look.orphans:
            raise VolplaneError("it is no orphan any more: a volume or a claim leads to it")
        try:
            live = await self._client.get(VOLUMES, owner.volume_name)
        except ApiNotFound:
            return
        self._check.world.volumes.observe(live)
        raise VolplaneError(f"it is no orphan any more: volume {live.name} leads to it")

    async def _look(self, finding: Finding, look: _Look) -> None:
        """Compare the finding, and all orphans of its driver with it, with what the API server has now."""
        orphans = {finding.key: finding}
        for each in self._check.observations.findings():
            if each.driver == finding.driver and each.verdict is Verdict.ORPHAN:
                orphans[each.key] = each
        comparison = Comparison(finding.driver, self._check.world.settings.cluster_id)
        for orphan in orphans.values():
            if orphan.asset is not None:
                comparison.add_asset(orphan.asset)
        began = asyncio.get_running_loop().time()
        await feed_live(comparison, self._client)
        still = {each.key for each in comparison.findings() if each is not None and each.verdict is Verdict.ORPHAN}
        look.began, look.asked, look.orphans = began, frozenset(orphans), still


class _Look:
    """What a live look at the claims and volumes said of a driver's orphans."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.began = float("-inf")
        self.asked: frozenset[tuple[str, str, str, str]] = frozenset()
        self.orphans: set[tuple[str, str, str, str]] = set()


def _key(finding: Finding) -> str:
    return f"{finding.driver}/{finding.handle}"


def _identity(asset: ListedAsset, owner: Ownership) -> VolumeIdentity:
    return VolumeIdentity(
        name=owner.volume_name,
        uid="",
        handle=asset.handle,
        source=asset.source or VolumeSource(kind="", fields={}),
        capacity_bytes=asset.capacity_bytes,
        owner=owner,
    )
