"""Deletes orphans when a person asks for it: only confirmed ones, after one more look at each.

A repair is an operation under the asset's key, so it excludes every other operation of the asset. It compares the asset
with the claims and volumes as they are then, reads the volume of its name once more, and calls `delete` with the marks
that were listed: a backend refuses what carries others meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from volplane.assets import InProgress, ListedAsset, Ownership, VolumeSource
from volplane.controller.actions import Run
from volplane.errors import OperationError, Unavailable, VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.leaks.check import LeakCheck
from volplane.leaks.comparison import Comparison, Finding, Verdict, feed_live
from volplane.operations import Again, Dispatcher, OneShots, OneShotState, OneShotStatus, Work
from volplane.requests import DeleteRequest, VolumeIdentity

__all__ = ["LeakRepair"]

LOOK_SECONDS = 10.0
"""How long one live look at all claims and volumes serves the repairs of a driver."""

log = logging.getLogger(__name__)


class LeakRepair:
    """Repairs what `check` found."""

    def __init__(self, check: LeakCheck, deps: OperationDeps, dispatcher: Dispatcher) -> None:
        self._check = check
        self._deps = deps
        self._one_shots = OneShots(dispatcher, "fix", self._handle)
        self._looks: dict[str, _Look] = {}
        self._states: dict[str, Mapping[str, Any]] = {}
        self._asked: dict[str, tuple[Run, Finding]] = {}
        """By the name of the operation."""

    def start(self, driver: str = "", handle: str = "") -> list[Finding]:
        """Start to delete every confirmed orphan (of one driver, with one handle, if named); return them."""
        confirmed = [
            finding
            for finding in self._check.observations.findings()
            if finding.verdict is Verdict.ORPHAN
            and driver in ("", finding.driver)
            and handle in ("", finding.handle)
            and self._check.observations.confirmed(finding)
        ]
        running = {
            name: (run, finding)
            for name, (run, finding) in self._asked.items()
            if (status := self._one_shots.statuses.get(run.name)) is not None and status.state is OneShotState.RUNNING
        }
        self._states = {name: state for name, state in self._states.items() if name in running}
        started = {run.name: (run, finding) for finding in confirmed if (run := _run(finding)) is not None}
        self._asked = running | started
        self._one_shots.start(run for run, _ in started.values())
        return confirmed

    def repairs(self) -> list[tuple[Finding, OneShotStatus]]:
        """Return the repairs requested last, and earlier ones that still run, with their status."""
        known = [(finding, self._one_shots.statuses.get(run.name)) for run, finding in self._asked.values()]
        return [(finding, status) for finding, status in known if status is not None]

    def _handle(self, run: Run) -> Work:
        _, finding = self._asked[run.name]
        asset = finding.asset
        owner = asset.owner if asset is not None else None
        if asset is None or owner is None:
            raise OperationError(f"{run.name} was not started: an asset without marks is no orphan")
        return lambda: self._delete(run, finding, asset, owner)

    async def _delete(self, run: Run, finding: Finding, asset: ListedAsset, owner: Ownership) -> str:
        cluster = self._deps.cluster
        driver = cluster.drivers.get(finding.driver)
        if driver is None:
            reason = cluster.drivers.broken(finding.driver) or "it is not configured any more"
            raise Unavailable(f"driver {finding.driver} cannot be used: {reason}")
        await self._refuse_wanted(finding, owner)
        context = self._deps.context(driver, owner.generation, self._states.get(run.name))
        volume = VolumeIdentity(
            name=owner.volume_name,
            uid="",
            handle=asset.handle,
            source=asset.source or VolumeSource(kind="", fields={}),
            capacity_bytes=asset.capacity_bytes,
            owner=owner,
        )
        request = DeleteRequest(context=context, volume=volume)
        result = await self._deps.hooks.call(driver, request)
        if isinstance(result, InProgress):
            self._states[run.name] = dict(result.state)
            raise Again(after=result.retry_after)
        self._check.settled(finding)
        log.warning("deleted the orphan %s (%s)", asset.handle, finding.detail)
        return "deleted"

    async def _refuse_wanted(self, finding: Finding, owner: Ownership) -> None:
        """Raise VolplaneError unless it is an orphan now."""
        look = self._looks.setdefault(finding.driver, _Look())
        async with look.lock:
            now = asyncio.get_running_loop().time()
            # An older look may miss a claim or a volume that has come since; a look without this asset proves nothing.
            if now - look.began > LOOK_SECONDS or finding.key not in look.asked:
                await self._look(finding, look)
        if finding.key not in look.orphans:
            raise VolplaneError("it is no orphan any more: a volume or a claim leads to it")
        # The volume of this very name may have been restored after the look.
        if (live := await self._deps.live_volume(owner.volume_name)) is not None:
            raise VolplaneError(f"it is no orphan any more: volume {live.name} leads to it")

    async def _look(self, finding: Finding, look: _Look) -> None:
        """Compare the finding, and all orphans of its driver with it, with what the API server has now."""
        orphans = {finding.key: finding}
        for each in self._check.observations.findings():
            if each.driver == finding.driver and each.verdict is Verdict.ORPHAN:
                orphans[each.key] = each
        comparison = Comparison(finding.driver, self._deps.cluster.cluster_id)
        for orphan in orphans.values():
            if orphan.asset is not None:
                comparison.add_asset(orphan.asset)
        began = asyncio.get_running_loop().time()
        await feed_live(comparison, self._deps.client)
        still = {each.key for each in comparison.findings() if each is not None and each.verdict is Verdict.ORPHAN}
        look.began, look.asked, look.orphans = began, frozenset(orphans), still


class _Look:
    """The result of a live look at the claims and volumes for a driver's orphans."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.began = float("-inf")
        self.asked: frozenset[tuple[str, str, str, str]] = frozenset()
        self.orphans: set[tuple[str, str, str, str]] = set()


def _run(finding: Finding) -> Run | None:
    """Return the deletion of an orphan; None for an asset without marks."""
    owner = finding.asset.owner if finding.asset is not None else None
    if owner is None:
        return None
    return Run(verb="fix", key=owner.volume_name, uid=finding.handle, driver=finding.driver, asset=owner.volume_name)
