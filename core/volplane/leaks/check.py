"""The leak check of a running controller: asks every driver that can list its assets, every 10 minutes.

Assets that the caches explain need no call of the API. Only if some are left unexplained are the claims and then the
volumes read live, page by page, after the listing: absence from a cache proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random

import msgspec
from sortedcontainers import SortedList

from volplane._delays import LEAK_CHECK_FAILED, LEAK_CHECK_WITHOUT_DRIVER
from volplane._messages import nearest
from volplane.assets import Absent, ListedArchive
from volplane.controller import logs
from volplane.controller.actions import warning
from volplane.drivers.driver import DriverView
from volplane.errors import ApiError, VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import segments_of, volume_identity
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, STORAGE_CLASSES, VOLUMES
from volplane.kube.objects import Volume
from volplane.leaks import comparison
from volplane.leaks.comparison import Finding, Noted, Observations, Verdict
from volplane.requests import Fence, FindRequest, ListRequest, ListSnapshotsRequest
from volplane.state.matching import reference_is

INTERVAL = 600.0
JITTER = 0.1
FEW = 2
"""Ghosts in one listing that may be all of a driver's volumes, and be believed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStatus:
    attempts: int = 0
    """How many checks have ended, complete or not."""
    can_list: bool | None = None
    """None = not known yet."""
    ended: float | None = None
    """Loop time of the last complete check."""
    error: str = ""
    """Why the last one failed."""


class LeakCheck:
    def __init__(self, deps: OperationDeps, random: Random) -> None:
        self.observations = Observations()
        self._notes: MutableMapping[str, str] = {}
        self._cluster = deps.cluster
        self._deps = deps
        self._random = random
        self._metrics = deps.metrics
        self.status = {name: CheckStatus() for name in sorted(deps.drivers.names())}
        """By driver, in order of names."""
        self._wanted = {name: asyncio.Event() for name in self.status}
        """Set: a check of this driver is requested."""
        self._running: set[str] = set()
        self._warned: set[comparison.Key] = set()
        self.living: dict[tuple[str, str], Fence] = {}
        """By driver and cluster id, a term in which a cluster has changed an asset while this process listed them."""
        self._terms: dict[str, Mapping[tuple[str, str], Fence]] = {}
        """By driver, those of its last listing."""

    def follow(self, noted: str, notes: MutableMapping[str, str]) -> None:
        """Go on from what the last leader has noted of its findings; put into notes what the next one should know."""
        self._notes = notes
        with suppress(msgspec.DecodeError):
            told = msgspec.json.decode(noted, type=Noted)
            self.observations.noted = {driver: told[driver] for driver in told.keys() & self.status}

    def request(self, driver: str = "") -> Mapping[str, int]:
        """Check this driver, or all of them, at once instead of at the next turn.

        Returns driver -> the attempts after which a check that began later than now has ended, for all drivers that can
        be checked. Raises VolplaneError for a driver that there is not.
        """
        if driver and driver not in self.status:
            raise VolplaneError(f"there is no driver {driver!r}{nearest(driver, self.status)}")
        targets: dict[str, int] = {}
        for name, status in self.status.items():
            view = self._cluster.drivers.get(name)
            if driver in ("", name) and view is not None and lists(view):
                self._wanted[name].set()
                targets[name] = status.attempts + (2 if name in self._running else 1)
        return targets

    async def run(self) -> None:
        """Check every driver now and then, until cancelled. Starts once the caches are synced."""
        for cache in (self._cluster.claims, self._cluster.volumes, self._cluster.nodes):
            await cache.listed.wait()
        async with asyncio.TaskGroup() as group:
            for name in self.status:
                group.create_task(self._keep_checking(name), name=f"leak check {name}")

    async def _keep_checking(self, name: str) -> None:
        with logs.bound(driver=name):
            while True:
                driver = self._cluster.drivers.get(name)
                if driver is None:
                    pause = LEAK_CHECK_WITHOUT_DRIVER.delay()
                elif not lists(driver):
                    self.status[name] = CheckStatus(can_list=False)
                    return
                elif await self.check(driver):
                    pause = INTERVAL * self._random.uniform(1.0, 1.0 + JITTER)
                else:
                    pause = LEAK_CHECK_FAILED.delay(random=self._random)
                # Until the next turn, or a request to check now.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wanted[name].wait()

    async def check(self, driver: DriverView) -> bool:
        """Check once; return whether it was complete. An incomplete check changes no finding."""
        name = driver.name
        self._wanted[name].clear()
        self._running.add(name)
        why: str | None = None
        try:
            await self._check(driver)
        except VolplaneError as error:
            why = str(error)
            log.warning("the leak check failed: %s", error)
        except Exception as error:
            why = f"an internal error: {type(error).__name__}: {error}"
            log.exception("the leak check failed")
        finally:
            self._running.discard(name)
        before, complete = self.status[name], why is None
        attempts, ended = before.attempts + 1, asyncio.get_running_loop().time() if complete else before.ended
        self.status[name] = CheckStatus(attempts=attempts, can_list=True, ended=ended, error=why or "")
        if self._metrics is not None:
            self._metrics.leak_checked(name, self._cluster.now().timestamp() if complete else None)
        return complete

    async def _check(self, driver: DriverView) -> None:
        clock, name, cluster_id = asyncio.get_running_loop().time, driver.name, self._cluster.cluster_id
        # Only volumes that existed before the listing began can be ghosts.
        known = await self._volumes_of(driver)
        began, count = clock(), len(known)
        assets = comparison.Comparison(name, cluster_id, known, self._in_reach, self._cluster.volumes.get)
        snapshots = comparison.SnapshotComparison(name, cluster_id)
        if lists_marks(driver):
            async for asset in comparison.assets_of(driver, self._deps):
                assets.add_listed(asset)
        if driver.supports("list_snapshots"):
            async for page in comparison.pages_of(driver, self._deps, ListSnapshotsRequest):
                for snapshot in page.snapshots:
                    snapshots.add_listed(snapshot)
        ended = clock()
        self.compare_terms(name, assets.terms)
        async for claim in comparison.paced(list(self._cluster.claims.values())):
            assets.add_claim(claim)
        async for volume in comparison.paced(list(self._cluster.volumes.values())):
            assets.add_volume(volume)
        findings = await self._proven(assets) + await self._proven(snapshots)
        fresh = self.observations.add(name, findings, began=began, ended=ended, epoch=self._cluster.epoch())
        self._notes[names.FINDINGS] = msgspec.json.encode(self.observations.noted).decode()
        for finding in fresh:
            if finding.verdict is not Verdict.FOREIGN:
                log.info("%s: %s (it counts if the next check finds it too)", _describe(finding), finding.detail)
        self._log(name, findings)
        await self._report_ghosts(driver, findings, count)
        self._count(name)
        log.debug("checked, %d findings", len(findings))

    async def _volumes_of(self, driver: DriverView) -> SortedList[str]:
        known: SortedList[str] = SortedList()
        async for each in comparison.paced(list(self._cluster.volumes.values()) if lists_marks(driver) else ()):
            if each.annotation(names.PROVISIONED_BY) == driver.name:
                known.add(each.uid)
        return known

    async def archives(self) -> tuple[list[tuple[str, ListedArchive]], dict[str, str]]:
        """Return what drivers keep of deleted volumes, and why some cannot tell. Nothing of that is remembered."""
        found: list[tuple[str, ListedArchive]] = []
        untold: dict[str, str] = {}
        for name in self.status:
            view = self._cluster.drivers.get(name)
            try:
                if view is None:
                    untold[name] = self._cluster.drivers.broken(name) or "it has not started yet"
                elif view.info.archives:
                    async for page in comparison.pages_of(view, self._deps, partial(ListRequest, archives=True)):
                        found += [(name, each) for each in page.archives]
            except VolplaneError as error:
                untold[name] = str(error)
        return found, untold

    async def _proven(self, compared: comparison.Comparison | comparison.SnapshotComparison) -> list[Finding]:
        """Return the findings. Absence from a cache proves nothing: what is left unexplained is compared with live
        objects.
        """
        findings = [finding async for finding in comparison.paced(compared.findings()) if finding is not None]
        if all(finding.verdict is Verdict.FOREIGN for finding in findings):
            return findings
        compared.forget_objects()
        try:
            await comparison.feed_live(compared.kinds, self._deps.client)
        except ApiError as error:
            if not isinstance(compared, comparison.SnapshotComparison) or error.status not in (403, 404):
                raise
            # Where the kinds are not served, or not shown to this process, nothing tells what leads to snapshots.
            return [finding for finding in findings if finding.verdict is Verdict.FOREIGN]
        return [finding async for finding in comparison.paced(compared.findings()) if finding is not None]

    def compare_terms(self, name: str, terms: Mapping[tuple[str, str], Fence]) -> None:
        """Note which clusters have changed assets of a driver since its last listing; report one that has our id.

        A copy of this cluster, as for a drill of a restore, has its id and its Lease. While this process leads, terms
        that are later than its own, or of another Lease, are of another cluster. terms: by cluster and Lease.
        """
        ours, own, before = self._cluster.cluster_id, Fence.parse(self._cluster.fence()), self._terms.get(name)
        self._terms[name] = terms
        for (cluster, lease), term in terms.items():
            mine = cluster == ours and own is not None and lease == own.lease and not term.outdates(own)
            known = before.get((cluster, lease)) if before is not None else term
            if not mine and (known is None or term.outdates(known)):
                self.living[name, cluster] = term
        if (rival := self.living.get((name, ours))) is not None:
            text = (
                f"another cluster with the id {ours} changes assets of driver {name} in term {rival.transitions} of "
                f"the Lease with uid {rival.lease}: each deletes what is the other's; stop the copy of this cluster, "
                "or give it storage of its own"
            )
            self._tell_classes(name, "ClusterIdUsedTwice", text)

    def _tell_classes(self, driver: str, reason: str, text: str) -> None:
        log.warning("%s", text)
        for each in self._cluster.classes.values():
            if each.provisioner == driver:
                self._deps.recorder.record(warning(STORAGE_CLASSES, each, reason, text))

    def _in_reach(self, volume: Volume) -> bool:
        """Return whether this process can see the volume's asset: it has no place, or lies on the process's node."""
        places = segments_of(volume)
        if not self._cluster.node_name or not places:
            return True
        node = self._cluster.own_node
        labels = (node.metadata.labels or {}) if node is not None else {}
        return any(place.items() <= labels.items() for place in places)

    def _log(self, name: str, findings: Sequence[Finding]) -> None:
        """Log each confirmed finding once, as long as it lasts."""
        ours = (finding for finding in findings if finding.verdict is not Verdict.FOREIGN)
        confirmed = {finding.key: finding for finding in ours if self.observations.confirmed(finding)}
        for key in confirmed.keys() - self._warned:
            log.warning("%s: %s", _describe(confirmed[key]), confirmed[key].detail)
        self._warned = {key for key in self._warned if key[1] != name} | confirmed.keys()

    async def _report_ghosts(self, driver: DriverView, findings: Sequence[Finding], known: int) -> None:
        """Record events on ghosts and their claims; on the classes if there are too many of `known` volumes."""
        ghosts = [each for each in findings if each.verdict is Verdict.GHOST]
        if len(ghosts) > FEW and len(ghosts) > known / 2:
            lacks = f"list_assets of driver {driver.name} lacks the assets of {len(ghosts)} of its {known} volumes"
            advice = "find out whether its storage is there, and whether its listing is complete"
            self._tell_classes(driver.name, "ListingIncomplete", f"{lacks}: {advice}")
            return
        for ghost in filter(self.observations.confirmed, ghosts):
            volume = self._cluster.volumes.get(ghost.volume)
            if volume is None or not await self._is_absent(ghost, volume, driver):
                continue
            what = f"asset {ghost.handle}" if ghost.handle else "the asset"
            where = f"not on the backend of driver {ghost.driver}: its data cannot be reached"
            text = f"{what} of volume {volume.name} is {where}; restore the asset, or delete the claim"
            # Its reason is that of external-health-monitor of CSI.
            self._deps.recorder.record(warning(VOLUMES, volume, "VolumeConditionAbnormal", text))
            reference = volume.spec.claim_ref
            claim = self._cluster.claims.get(reference.key) if reference is not None else None
            if claim is not None and reference_is(reference, claim):
                self._deps.recorder.record(warning(CLAIMS, claim, "VolumeConditionAbnormal", text))

    async def _is_absent(self, ghost: Finding, volume: Volume, driver: DriverView) -> bool:
        """Return whether `find` proves that the asset is gone: two listings only raise a suspicion."""
        identity = volume_identity(volume, self._cluster.cluster_id)
        if not driver.supports("find") or identity.owner is None:
            return False
        context = self._deps.context(driver, identity.owner.generation)
        place = next(iter(identity.node_affinity), None)
        question = FindRequest(context=context, name=volume.name, owner=identity.owner, segment=place, only_look=True)
        with suppress(VolplaneError):
            answer = await self._deps.hooks.call(driver, question)
            if isinstance(answer, Absent):
                return True
            log.warning("%s: list_assets does not show what find finds", _describe(ghost))
            self.observations.settled(ghost)
        return False

    def settled(self, finding: Finding) -> None:
        self.observations.settled(finding)
        self._warned.discard(finding.key)
        self._count(finding.driver)

    def _count(self, name: str) -> None:
        if self._metrics is not None:
            for verdict in Verdict:
                self._metrics.findings[name, verdict].set(self.observations.count(name, verdict))

    def forget(self) -> None:
        """Reset findings and their metrics: another process checks from now on."""
        self.observations = Observations()
        for name in self.status:
            self._count(name)


def lists(driver: DriverView) -> bool:
    return lists_marks(driver) or driver.supports("list_snapshots")


def lists_marks(driver: DriverView) -> bool:
    return driver.supports("list_assets") and driver.info.marks


def _describe(finding: Finding) -> str:
    what = finding.handle or finding.volume
    kind = "snapshot " if finding.kind == "snapshot" else ""
    return f"{finding.verdict} {kind}{what}" + (
        f" of volume {finding.volume}" if finding.volume not in ("", what) else ""
    )
