"""What the leak check does only when a person asks: orphans are deleted, assets of a former cluster taken over.

Each is an operation under the asset's key, so it excludes every other operation of the asset. A repair deletes only a
orphan: it compares the asset with the claims and volumes as they are then, or the snapshot with
VolumeSnapshots and contents, reads the object of its name once more, and calls `delete` with the marks that were
listed: a backend refuses what carries others meanwhile. So what a person has seen and wants deleted needs no second
check: that is for those whom nobody asks. An adoption, after a restore, takes over what a volume of this
cluster points at; a person names the former cluster, and what no volume points at stays foreign.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from volplane._delays import LONG_CALL
from volplane._messages import nearest
from volplane.assets import Done, InProgress, ListedAsset, Ownership, Snapshot, SnapshotOwnership, VolumeSource
from volplane.controller.actions import Run
from volplane.drivers.driver import DriverView
from volplane.drivers.predecessor import pod_of_predecessor
from volplane.errors import ApiForbidden, ConfigurationError, OperationError, Throttled, Unavailable, VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.intents.ownership import held_by_predecessor
from volplane.intents.requests import NAME_PREFIX, volume_identity
from volplane.kube import names
from volplane.kube.kinds import VOLUMES, Kind
from volplane.kube.objects import Volume
from volplane.leaks import comparison
from volplane.leaks.check import LeakCheck
from volplane.leaks.comparison import Finding, Verdict
from volplane.operations.operation import Again
from volplane.operations.registry import OneShots
from volplane.requests import AdoptRequest, DeleteRequest, DeleteSnapshotRequest, HookRequest, VolumeIdentity
from volplane.snapshots.groups_objects import GROUP_CONTENT_PREFIX, GROUP_CONTENTS
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS
from volplane.state.naming import asset_key, attacher_finalizer, handle_in, volume_source

LOOK_SECONDS = 10.0
"""How long one live look at all claims and volumes serves the repairs of a driver."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Look:
    """The result of a live look at the objects that may lead to a driver's orphans."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    began: float = float("-inf")
    asked: frozenset[comparison.Key] = frozenset()
    orphans: frozenset[comparison.Key] = frozenset()


class LeakRepair:
    def __init__(self, check: LeakCheck, deps: OperationDeps) -> None:
        self._check = check
        self._deps = deps
        self.one_shots = OneShots(deps.registry, "fix", self._delete)
        self._looks: dict[tuple[str, str], _Look] = {}
        """By driver and kind."""
        self._states: dict[str, Mapping[str, Any]] = {}
        """By the name of the operation."""

    def start(self, driver: str = "", handle: str = "", *, agreed: str = "") -> list[Finding]:
        """Start to delete every confirmed orphan (of one driver, with one handle, if named); return them.

        agreed: the digest of those that a person was shown and wants deleted; they need not be confirmed by another
        check. Raises VolplaneError if there are others by now.
        """
        seen = self._check.observations
        named = (each for each in seen.findings() if driver in ("", each.driver) and handle in ("", each.handle))
        orphans = [each for each in named if each.verdict is Verdict.ORPHAN]
        if agreed and agreed != digest_of((each.driver, each.handle) for each in orphans):
            raise VolplaneError("the orphans are not those that were shown any more: look at them again")
        confirmed = [each for each in orphans if agreed or seen.confirmed(each)]
        self.one_shots.start(
            (Run(verb="fix", key=name, uid=each.handle, driver=each.driver, asset=name), each)
            for each in confirmed
            if (name := _object_of(each))
        )
        return confirmed

    async def _delete(self, run: Run, finding: Finding) -> str:
        cluster = self._deps.cluster
        driver = cluster.drivers.get(finding.driver)
        if driver is None:
            reason = cluster.drivers.broken(finding.driver) or "it is not configured any more"
            raise Unavailable(f"driver {finding.driver} cannot be used: {reason}")
        if (finding.driver, cluster.cluster_id) in self._check.living:
            raise VolplaneError("another cluster with the id of this one changes assets of the driver")
        await self._refuse_wanted(finding)
        request = self._deletion(finding, driver, self._states.get(run.name))
        result = await self._deps.hooks.call(driver, request)
        if isinstance(result, InProgress):
            self._states[run.name] = dict(result.state)
            raise Again(after=LONG_CALL.delay(asked=result.retry_after))
        self._states.pop(run.name, None)
        self._check.settled(finding)
        log.warning("deleted the orphan %s (%s)", finding.handle, finding.detail)
        return "deleted"

    def _deletion(
        self, finding: Finding, driver: DriverView, state: Mapping[str, Any] | None
    ) -> HookRequest[Done | InProgress]:
        """Return the call with the marks that were listed: a backend refuses what carries others meanwhile."""
        match finding.listed:
            case Snapshot(owner=SnapshotOwnership() as marks, handle=handle):
                return DeleteSnapshotRequest(
                    context=self._deps.context(driver, state=state), handle=handle, owner=marks
                )
            case ListedAsset(owner=Ownership() as owner) as asset:
                volume = VolumeIdentity(
                    name=owner.volume_name,
                    uid="",
                    handle=asset.handle,
                    source=asset.source or VolumeSource(kind="", fields={}),
                    capacity_bytes=asset.capacity_bytes,
                    owner=owner,
                )
                context = self._deps.context(driver, owner.generation, state)
                return DeleteRequest(context=context, volume=volume)
        raise OperationError(f"{finding.handle} carries no marks, so it is no orphan")

    async def _refuse_wanted(self, finding: Finding) -> None:
        """Raise VolplaneError unless it is an orphan now. One look serves all orphans of its driver and kind."""
        look = self._looks.setdefault((finding.driver, finding.kind), _Look())
        async with look.lock:
            now = asyncio.get_running_loop().time()
            # An older look may miss what has come since; a look without this orphan proves nothing.
            if now - look.began > LOOK_SECONDS or finding.key not in look.asked:
                found = [finding, *self._check.observations.findings()]
                of_driver = [each for each in found if (each.driver, each.kind) == (finding.driver, finding.kind)]
                orphans = {each.key: each for each in of_driver if each.verdict is Verdict.ORPHAN}
                compare = comparison.SnapshotComparison if finding.kind == "snapshot" else comparison.Comparison
                compared = compare(finding.driver, self._deps.cluster.cluster_id)
                add: Callable[[Any], None] = compared.add_listed
                for each in orphans.values():
                    add(each.listed)
                await comparison.feed_live(compared.kinds, self._deps.client)
                still = (each.key for each in compared.findings() if each and each.verdict is Verdict.ORPHAN)
                look.began, look.asked, look.orphans = now, frozenset(orphans), frozenset(still)
        if finding.key not in look.orphans:
            raise VolplaneError("it is no orphan any more: an object of the cluster leads to it")
        # The object of this very name may have been restored after the look.
        name = _object_of(finding)
        grouped = finding.kind == "snapshot" and name.startswith(GROUP_CONTENT_PREFIX)
        single: Kind[Any] = VOLUME_SNAPSHOT_CONTENTS if finding.kind == "snapshot" else VOLUMES
        kind: Kind[Any] = GROUP_CONTENTS if grouped else single
        if (live := await self._deps.client.find(kind, name)) is not None:
            raise VolplaneError(f"it is no orphan any more: {kind.kind} {live.name} leads to it")


def digest_of(assets: Iterable[tuple[str, str]]) -> str:
    """Return what stands for these assets, by driver and handle."""
    return sha256(repr(sorted(assets)).encode()).hexdigest()


def _object_of(finding: Finding) -> str:
    """Return the name of the volume or content in the marks; "" without any."""
    owner = finding.listed.owner if finding.listed is not None else None
    return "" if owner is None else owner.volume_name if isinstance(owner, Ownership) else owner.content_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoptable:
    """An asset of the former cluster, or of the controller that had the driver's name before."""

    driver: str
    handle: str
    volume: str
    former: Ownership
    """Its marks, or those that it had until an adoption failed after it had written them."""
    cluster: str
    """Whose marks it gets."""
    obstacle: str = ""
    """Why it is not taken over; "" if it is."""


class Adoption:
    def __init__(self, check: LeakCheck, deps: OperationDeps) -> None:
        self._check = check
        self._deps = deps
        self._cluster = deps.cluster
        self._drivers = sorted(deps.drivers.names())
        self.one_shots = OneShots(deps.registry, "adopt", self._adopt)

    async def plan(
        self, former: str, driver: str = "", *, back: bool = False, stopped: bool = False
    ) -> list[Adoptable]:
        """Return every asset that carries the marks of cluster `former`, by driver.

        former: also the name of a driver, for what its predecessor made; `back` gives such a one the assets that have
        our marks. stopped: a person says that the predecessor does not run.
        Raises ConfigurationError for our own id, an unknown id or driver, BackendError if a driver cannot be asked.
        """
        ours = self._cluster.cluster_id
        # The assets of this cluster have its marks.
        if not former or former == ours:
            raise ConfigurationError(f'--from is "{former}"; it must be the id of another cluster, this one is {ours}')
        if driver and driver not in self._drivers:
            known = ", ".join(self._drivers) or "none"
            raise ConfigurationError(f'--driver: "{driver}" is not configured here; drivers are {known}')
        if back and former not in self._drivers:
            raise ConfigurationError(f'--back: --from is "{former}", which is no driver here that had a predecessor')
        plan: list[Adoptable] = []
        asked = [driver or former] if driver or former in self._drivers else self._drivers
        for name in asked:
            view = self._cluster.drivers.get(name)
            if view is None:
                raise Unavailable(f"driver {name} cannot be asked for its assets: {self._cluster.drivers.broken(name)}")
            if view.supports("list_assets") and (view.info.marks or former == name):
                plan += await self._plan_of(view, former, back=back, stopped=stopped)
        if not plan and former not in self._drivers:
            of = f"driver{'s' if len(asked) > 1 else ''} {', '.join(asked)}"
            listed = (each.listed for each in self._check.observations.findings())
            others = {each.owner.cluster_id for each in listed if each is not None and each.owner is not None} - {ours}
            hint = f"{nearest(former, others)}; `volplane leaks` shows the assets of others"
            raise ConfigurationError(f'--from is "{former}", and no asset of {of} has marks of that cluster{hint}')
        return plan

    async def _plan_of(self, view: DriverView, former: str, *, back: bool, stopped: bool) -> list[Adoptable]:
        name, ours, taken = view.name, self._cluster.cluster_id, former == view.name
        if former == view.info.csi_driver_name and not taken:
            raise ConfigurationError(f"driver {name} must have the name {former} to take volumes of {former} over")
        giver, taker = (ours, former) if back else (former, ours)
        unsupported = "" if view.supports("adopt") else f"backend {view.backend} does not implement the hook adopt"
        terms: comparison.Terms = {}
        found = []
        pointed_at = comparison.paced(() if view.info.marks else self._pointed_at(view, giver, back=back))
        async for asset in comparison.assets_of(view, self._deps) if view.info.marks else pointed_at:
            comparison.note_term(terms, asset)
            if (owner := asset.owner) is None:
                continue
            volume, unfinished = self._cluster.volumes.get(owner.volume_name), False
            if taken and volume is not None and owner.cluster_id == taker:
                # An adoption failed between its writes, or the predecessor was started by mistake.
                unfinished = held_by_predecessor(volume, view) is not back
            if owner.cluster_id == giver or unfinished:
                found.append((replace(owner, cluster_id=giver), volume, asset.handle))
        self._check.compare_terms(name, terms)
        if taken:
            unsupported = unsupported or await self._still_runs(view, stopped=stopped)
        elif (term := self._check.living.get((name, former))) is not None:
            unsupported = f"cluster {former} still changes assets (term {term.transitions}): stop it first"
        plan: list[Adoptable] = []
        for owner, volume, handle in found:
            why, title = _obstacle(volume, name, handle, taken=taken, back=back) or unsupported, owner.volume_name
            plan.append(Adoptable(driver=name, handle=handle, volume=title, former=owner, cluster=taker, obstacle=why))
        return plan

    def _pointed_at(self, view: DriverView, giver: str, *, back: bool) -> Iterator[ListedAsset]:
        """Yield the assets of volumes that change hands: on a storage without marks they alone say what is whose."""
        for volume in list(self._cluster.volumes.values()):
            if volume.annotation(names.PROVISIONED_BY) == view.name and held_by_predecessor(volume, view) is not back:
                owner = Ownership(cluster_id=giver, claim_uid=volume.uid, volume_name=volume.name)
                handle = handle_in(volume_source(volume))
                yield ListedAsset(handle=handle, name=volume.name, capacity_bytes=0, owner=owner)

    async def _still_runs(self, driver: DriverView, *, stopped: bool) -> str:
        """Return why the predecessor of the driver may still run; "" if it does not. Raises ApiError.

        Its Leases say nothing: the sidecars of CSI elect a leader only if they are told to.
        """
        predecessor = driver.info.predecessor
        if predecessor is None:
            return f"backend {driver.backend} names no predecessor of {driver.name}"
        why = f"the controller of {driver.name} may run {predecessor.unseen}" if predecessor.unseen else ""
        try:
            if pod := await pod_of_predecessor(self._deps.client, predecessor, driver.name):
                return f"the controller of {driver.name} runs in pod {pod}: stop it first"
        except ApiForbidden as error:
            why = f"whether the controller of {driver.name} runs cannot be seen: {error}"
        return f"{why}; stop it, and say so by --stopped" if why and not stopped else ""

    async def start(self, former: str, driver: str = "", **flags: bool) -> list[Adoptable]:
        plan = await self.plan(former, driver, **flags)
        asked: list[tuple[Run, Adoptable]] = []
        for each in plan:
            if not each.obstacle:
                volume = self._cluster.volumes.get(each.volume)
                asset = asset_key(volume) if volume is not None else each.volume
                run = Run(verb="adopt", key=each.volume, uid=each.handle, driver=each.driver, asset=asset)
                asked.append((run, each))
        self.one_shots.start(asked)
        return plan

    async def _adopt(self, run: Run, adoptable: Adoptable) -> str:
        driver = self._cluster.drivers.get(adoptable.driver)
        if driver is None:
            raise Unavailable(f"driver {adoptable.driver}: {self._cluster.drivers.broken(adoptable.driver)}")
        # The volume may have changed since the plan: only a live read shows that it still justifies the adoption.
        live = await self._deps.live_volume(adoptable.volume)
        if live is None:
            raise VolplaneError(f"volume {adoptable.volume} is gone")
        taken = adoptable.driver in (adoptable.cluster, adoptable.former.cluster_id)
        back = adoptable.cluster == adoptable.driver
        if obstacle := _obstacle(live, adoptable.driver, adoptable.handle, taken=taken, back=back):
            raise VolplaneError(obstacle)
        identity = volume_identity(live, self._cluster.cluster_id)
        if identity.owner is None:
            raise VolplaneError(f"volume {live.name} was made by a person, not by driver {driver.name}")
        context = self._deps.context(driver, identity.owner.generation)
        if taken:
            # Before the marks: what is left between the two writes is in the next plan, and a hook refuses it.
            attached = bool(self._cluster.attachments_of(live))
            metadata = {
                "finalizers": _finalizers(live, back=back, attached=attached) or None,
                "annotations": {names.HANDLE: None if back else adoptable.handle},
                "resourceVersion": live.metadata.resource_version,
            }
            await self._deps.client.patch(VOLUMES, live.key, {"metadata": metadata})
        owner = replace(identity.owner, cluster_id=adoptable.cluster)
        request = AdoptRequest(context=context, volume=replace(identity, owner=owner), former=adoptable.former)
        try:
            await self._deps.hooks.call(driver, request)
        except Throttled as busy:
            raise Again(after=LONG_CALL.delay(asked=busy.retry_after)) from None
        log.info("gave %s from cluster %s to %s", adoptable.handle, adoptable.former.cluster_id, adoptable.cluster)
        return f"carries the marks of cluster {adoptable.cluster}"


def _obstacle(volume: Volume | None, driver: str, handle: str, *, taken: bool, back: bool) -> str:
    """Return why a volume of ours does not justify taking the asset over; "" if it does."""
    if volume is None:
        return "no volume of this cluster has its name"
    maker = volume.annotation(names.PROVISIONED_BY)
    if maker != driver:
        return f"volume {volume.name} was made by {maker or 'a person'}"
    pointer = volume.annotation(names.HANDLE) or (volume.spec.csi or {}).get("volumeHandle")
    if pointer is not None and pointer != handle:
        return f"volume {volume.name} points at {pointer}"
    # Ours alone would wait for ever: its asset is deleted only with our marks.
    if taken and volume.terminating and (back or not volume.has_finalizer(names.RECLAIM_FINALIZER)):
        return f"volume {volume.name} is being deleted: let who began it finish"
    if taken and not volume.name.startswith(NAME_PREFIX):
        return f"only volumes whose names begin with {NAME_PREFIX} can carry marks"
    return ""


def _finalizers(volume: Volume, *, back: bool, attached: bool) -> list[str]:
    """Return those that give a volume to the driver whose name made it, or back to the controller before it.

    Source: kubernetes-csi/external-provisioner and external-attacher, which hold volumes by these.
    """
    attacher = attacher_finalizer((volume.spec.csi or {}).get("driver", ""))
    theirs = (names.EXTERNAL_PROVISIONER_FINALIZER, names.RECLAIM_FINALIZER, attacher)
    wanted = volume.finalizers_without(*theirs) or []
    if volume.spec.persistent_volume_reclaim_policy == "Delete":
        wanted.append(names.EXTERNAL_PROVISIONER_FINALIZER if back else names.RECLAIM_FINALIZER)
    return [*wanted, attacher] if back and attached else wanted
