"""What the volume of a claim is made of: the data source in its spec, and what holds that until the volume is there.

The checks, their order and their texts are those of the external provisioner. A source is a VolumeSnapshot or another
claim; one of any other kind is a populator's, and is left to that.

The claim's intent names the snapshot or the asset by its handle: whatever becomes of the source, each try of this and
of another process asks for the same. The source itself is held by a finalizer. That on a VolumeSnapshot goes with the
end of the intent, that on a claim when the claim is deleted and nothing is made of it any more.

The decisions are pure; `find_source` is the operation that asks the driver about a snapshot.
Source: prepareProvision, getSnapshotSource and getPVCSource of external-provisioner, clone_controller.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from volplane import errors
from volplane._delays import SOURCE_AWAITED
from volplane.assets import Segment, Snapshot
from volplane.controller.actions import Action, EventRecord, LiveReads, Patch, Read, Run, Wait
from volplane.controller.controller import Work
from volplane.drivers.driver import DriverView
from volplane.intents import record
from volplane.intents.operation import OperationDeps
from volplane.intents.ownership import driver_of
from volplane.intents.requests import allowed_segments, segments_of
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES, Kind
from volplane.kube.objects import Claim, KubeObject, StorageClass, TypedReference, Volume
from volplane.kube.quantity import parse
from volplane.requests import FindSnapshotRequest
from volplane.snapshots.grants import REFERENCE_GRANTS, ReferenceGrants
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshot, VolumeSnapshotContent
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import (
    NANOS,
    capacity_of,
    class_of_claim,
    mode_of,
    refers_to,
    request_of,
    source_of,
    whole_bytes,
)
from volplane.state.naming import handle_of, volume_name_of
from volplane.state.progress import Discarded, FoundSource
from volplane.state.records import SourceRecord

GROUP: Final = "snapshot.storage.k8s.io"
SNAPSHOT, CLAIM = VOLUME_SNAPSHOTS.kind, CLAIMS.kind
_INVALID = "claim in dataSource not bound or invalid"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Of objects. The API server does not check the name in a source, which tenants write and which leads to a path."""
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class Wanted(NamedTuple):
    """A claim, what its volume is to be made of, and who is to make it."""

    claim: Claim
    source: TypedReference
    storage_class: StorageClass
    driver: DriverView

    @property
    def key(self) -> str:
        """Key of the source."""
        return self.source.key_from(self.claim.namespace)


class Source(NamedTuple):
    """A source that passed every check."""

    record: SourceRecord
    places: tuple[Segment, ...] = ()
    """Where a volume can be made of it; empty = everywhere."""


def is_name(text: str) -> bool:
    """Return whether an object can have this name."""
    return _NAME.fullmatch(text) is not None


# --- whose it is --------------------------------------------------------------------------------------------------


def is_populated(source: TypedReference) -> bool:
    """Return whether a populator has to fill the volume. It makes it as the volume of a claim of its own, and writes
    this claim into its claimRef.
    """
    return source.kind != SNAPSHOT and (source.kind, source.api_group or "") != (CLAIM, "")


def left_to_populator(claim: Claim, source: TypedReference) -> Wait:
    """Wait for the populator of this kind of source, whatever it may be."""
    what = f"{source.kind}.{source.api_group}" if source.api_group else source.kind
    message = "Assuming an external populator will provision the volume"
    event = EventRecord(CLAIMS, claim, "Normal", "Provisioning", message)
    return Wait(reason=f'a populator has to make its volume of {what} "{source.name}"', events=(event,))


def refused_on_nodes(claim: Claim, source: TypedReference, driver: str) -> Wait:
    """Wait: the processes of nodes make empty volumes only, and no node is chosen in vain."""
    if is_populated(source):
        return left_to_populator(claim, source)
    why = (
        f'driver "{driver}" is served by the processes of nodes, which make empty volumes only; remove spec.dataSource'
    )
    return record.not_provisioned(claim, why)


def obstacle_of(claim: Claim, source: TypedReference, driver: DriverView) -> str:
    """Return why the driver can make nothing of a source of this kind or name; or ""."""
    if not is_name(source.name):
        return f'"{source.name}" is the name of no {source.kind}: names have lower case letters, digits, "-" and "."'
    if not is_name(source.namespace or claim.namespace):
        return f'"{source.namespace}" is the name of no namespace'
    if source.kind == SNAPSHOT:
        if source.api_group != GROUP:
            belongs = "the PVC source does not belong to the right APIGroup"
            return f"{belongs}. Expected {GROUP}, Got {source.api_group or 'none'}"
        able, does = (
            driver.supports("create_snapshot") and driver.supports("find_snapshot"),
            "make volumes of snapshots",
        )
    else:
        able, does = bool(driver.info.clones), "copy volumes"
    why = f": {driver.info.why_no_sources}" if driver.info.why_no_sources else ""
    return "" if able else f'driver "{driver.name}" does not {does}{why}; remove spec.dataSource'


# --- the checks ---------------------------------------------------------------------------------------------------


def resolve(wanted: Wanted, cluster: ClusterState, reads: LiveReads) -> Source | Action:
    """Return the source as it is now, or what comes first: a live read, a question to the driver, a wait."""
    if (first := ungranted(wanted.claim, wanted.source, cluster, reads)) is not None:
        return first
    if wanted.source.kind == CLAIM:
        return _resolve_claim(wanted, cluster, reads)
    claim, driver = wanted.claim, wanted.driver
    if (read := _read(reads, VOLUME_SNAPSHOTS, wanted.key, "is the VolumeSnapshot ready to be restored?")) is not None:
        return read
    snapshot = _seen(reads, VOLUME_SNAPSHOTS, wanted.key)
    bound = snapshot.status.bound_volume_snapshot_content_name if isinstance(snapshot, VolumeSnapshot) else ""
    if bound and (read := _read(reads, VOLUME_SNAPSHOT_CONTENTS, bound, "of which snapshot is it?")) is not None:
        return read
    for kind in (VOLUME_SNAPSHOTS, VOLUME_SNAPSHOT_CONTENTS):
        if not reads.serves(kind):
            missing = f"the API server does not serve {kind.plural}.{GROUP}: its CRD is not installed"
            return _awaited(wanted, missing, cluster)
    content = _seen(reads, VOLUME_SNAPSHOT_CONTENTS, bound)
    if why := snapshot_refusal(wanted, snapshot, content):
        return _awaited(wanted, why, cluster)
    handle = content.status.snapshot_handle if isinstance(content, VolumeSnapshotContent) else ""
    found = cluster.progress.claims.get(claim.uid).source
    if found is None or found.handle != handle:
        asset, group = volume_name_of(claim), f"provision {wanted.storage_class.name}"
        return Run(verb="find-source", key=claim.key, uid=claim.uid, driver=driver.name, asset=asset, group=group)
    return Source(SourceRecord(snapshot=handle), found.places)


def _read(reads: LiveReads, kind: Kind[Any], key: str, why: str) -> Read | None:
    """Return the read of an object that this pass has not read yet."""
    return None if reads.has(kind, key) or not reads.serves(kind) else Read(kind, key, why=why)


def _seen(reads: LiveReads, kind: Kind[Any], key: str) -> KubeObject | None:
    return reads.get(kind, key) if reads.has(kind, key) else None


def _awaited(wanted: Wanted, why: str, cluster: ClusterState) -> Wait:
    what = f"error getting handle for DataSource Type {wanted.source.kind} by Name {wanted.source.name}"
    return _refused(wanted.claim, f"{what}: {why}", cluster)


def _refused(claim: Claim, why: str, cluster: ClusterState) -> Wait:
    """Wait until the source may have changed: nothing tells of that. The older the claim, the longer."""
    failed = f'Failed to provision volume with StorageClass "{class_of_claim(claim) or ""}": {why}'
    looks = (int(cluster.seconds_since(claim.metadata.creation_timestamp)) + 1).bit_length()
    events = (record.provisioning_failed(claim, failed),)
    return Wait(reason=why, events=events, seconds=SOURCE_AWAITED.delay(looks))


def ungranted(claim: Claim, source: TypedReference, cluster: ClusterState, reads: LiveReads) -> Read | Wait | None:
    """Return what comes before a source of another namespace may be looked at, or refuses it; None: it may be used.

    The grants are read live in each pass that writes for it: one that was withdrawn does not count any more. Nothing
    is said of the source itself before. Source: IsGranted of external-provisioner.
    """
    namespace = source.namespace or claim.namespace
    if namespace == claim.namespace:
        return None
    if (read := _read(reads, REFERENCE_GRANTS, f"{namespace}/", "may the claim use a source there?")) is not None:
        return read
    grants = _seen(reads, REFERENCE_GRANTS, f"{namespace}/")
    if isinstance(grants, ReferenceGrants) and grants.allow(claim, source):
        return None
    where = f"{namespace}/{source.name} of {source.kind} dataSource"
    served = "" if isinstance(grants, ReferenceGrants) else ", and the API server serves no ReferenceGrants"
    advice = f"a ReferenceGrant in namespace {namespace} has to allow it{served}"
    return _refused(claim, f"accessing {where} from {claim.key} isn't allowed; {advice}", cluster)


def snapshot_refusal(wanted: Wanted, snapshot: KubeObject | None, content: KubeObject | None) -> str:
    """Return why the claim cannot be made of this VolumeSnapshot, by the first check that fails; "": it can."""
    name, driver = wanted.source.name, wanted.driver
    if not isinstance(snapshot, VolumeSnapshot):
        return f'error getting snapshot {name} from api server: {VOLUME_SNAPSHOTS.plural}.{GROUP} "{name}" not found'
    # With the finalizer a try had begun before the deletion, and goes on.
    if snapshot.terminating and not snapshot.has_finalizer(names.RESTORED_SNAPSHOT):
        return f"snapshot {name} is currently being deleted"
    failed = f": {snapshot.status.error.message}" if snapshot.status.error and snapshot.status.error.message else ""
    if not (bound := snapshot.status.bound_volume_snapshot_content_name):
        return f"snapshot {name} not bound{failed}"
    if not _NAME.fullmatch(bound):
        return f"snapshot {name} not bound: what its status names can be no content"
    about = f"snapshotcontent {bound} for snapshot {snapshot.key}"
    if not isinstance(content, VolumeSnapshotContent):
        return f'error getting {about} from api server: {VOLUME_SNAPSHOT_CONTENTS.plural}.{GROUP} "{bound}" not found'
    reference = content.spec.volume_snapshot_ref
    if (reference.uid, reference.key) != (snapshot.uid, snapshot.key):
        return f"{about} is bound to a different snapshot"
    if content.spec.driver not in (driver.name, driver.info.csi_driver_name):
        different = f"a different CSI driver than requested by StorageClass {wanted.storage_class.name}"
        return f'{about} is handled by {different}: by "{content.spec.driver}", not by "{driver.name}"'
    if not snapshot.status.ready_to_use:
        return f"snapshot {name} is not Ready{failed}"
    if not content.status.snapshot_handle:
        return f"snapshot handle {name} is not available"
    return _too_small(wanted, restore_size_of(snapshot)) or _other_mode(wanted.claim, content)


def restore_size_of(snapshot: VolumeSnapshot) -> int:
    """Return the least size of a volume that is made of it, in nanos of a byte; 0 = unknown, or not readable."""
    try:
        return parse(str(snapshot.status.restore_size or 0)).nanos
    except ValueError:
        return 0


def _too_small(wanted: Wanted, nanos: int) -> str:
    if (asked := request_of(wanted.claim)) >= nanos:
        return ""
    needed = f"the size {whole_bytes(nanos)} for the source snapshot {wanted.source.name}"
    return f"requested volume size {asked // NANOS} is less than {needed}"


def _other_mode(claim: Claim, content: VolumeSnapshotContent) -> str:
    cut, wanted = content.spec.source_volume_mode, claim.spec.volume_mode
    if not cut or not wanted or cut == wanted:
        return ""
    key, allowed = names.ALLOW_VOLUME_MODE_CHANGE, content.annotation(names.ALLOW_VOLUME_MODE_CHANGE)
    if allowed in _TRUE:
        return ""
    if allowed is None:
        why = f"{key} annotation is not present on snapshotcontent {content.name}"
    elif allowed in _FALSE:
        why = f"{key} is set to false on snapshotcontent {content.name}"
    else:
        why = f'failed to convert {key} annotation value "{allowed}" to boolean'
    modes = f"from {cut} to {wanted}"
    return (
        f"requested volume {claim.key} modifies the mode of the source volume but does not have permission to do so "
        f"({modes}). {why}"
    )


def _resolve_claim(wanted: Wanted, cluster: ClusterState, reads: LiveReads) -> Source | Action:
    driver = wanted.driver
    if (read := _read(reads, CLAIMS, wanted.key, "is the claim bound of which a copy is wanted?")) is not None:
        return read
    copied = reads.get(CLAIMS, wanted.key)
    why = _claim_refusal(wanted.claim, wanted.source.name, copied)
    if why or not isinstance(copied, Claim):
        return _awaited(wanted, why, cluster)
    name = copied.spec.volume_name
    if (read := _read(reads, VOLUMES, name, "is it the volume of which a copy is wanted?")) is not None:
        return read
    volume = reads.get(VOLUMES, name)
    if not isinstance(volume, Volume):
        return _awaited(wanted, f'{_INVALID}: volume "{name}" does not exist', cluster)
    lookup = driver_of(volume, cluster)
    if lookup.next is not None:
        return lookup.next
    if lookup.driver is None or lookup.driver.name != driver.name:
        maker = f'"{lookup.driver.name}"' if lookup.driver is not None else "none that works here"
        of_class = f'that of StorageClass {wanted.storage_class.name} is "{driver.name}"'
        return _awaited(wanted, f'{_INVALID}: the driver of volume "{name}" is {maker}, {of_class}', cluster)
    if why := _volume_refusal(wanted.claim, copied, volume):
        return _awaited(wanted, why, cluster)
    handle = handle_of(volume)
    places = segments_of(volume) if driver.info.clones == "in place" else ()
    return Source(SourceRecord(volume=handle, of=name), places)


def _claim_refusal(claim: Claim, name: str, copied: KubeObject | None) -> str:
    if not isinstance(copied, Claim):
        where = f'PVC {name} (namespace "{claim.namespace}")'
        return f'error getting {where} from api server: persistentvolumeclaims "{name}" not found'
    if copied.status.phase != "Bound":
        return f"the PVC DataSource {name} must have a status of Bound.  Got {copied.status.phase or 'none'}"
    if copied.terminating:
        return f"the PVC DataSource {name} is currently being deleted"
    if class_of_claim(copied) is None:
        return f"the source PVC ({name}) storageclass cannot be empty"
    if request_of(claim) < request_of(copied):
        return _less_than(request_of(claim), request_of(copied))
    return "" if copied.spec.volume_name else f"volume name is empty in source PVC {name}"


def _less_than(asked: int, source: int) -> str:
    demand = "new PVC request must be greater than or equal in size to the specified PVC data source"
    return f"error, {demand}, requested {asked // NANOS} but source is {whole_bytes(source)}"


def _volume_refusal(claim: Claim, copied: Claim, volume: Volume) -> str:
    """Return why no copy can be made of the volume of this bound claim."""
    reference = volume.spec.claim_ref
    if reference is None or reference.key != copied.key or not refers_to(volume, copied):
        return f'{_INVALID}: volume "{volume.name}" is bound to {reference.key if reference is not None else "nothing"}'
    if volume.status.phase != "Bound":
        return f'{_INVALID}: volume "{volume.name}" is {volume.status.phase or "in no phase"}, not Bound'
    if mode_of(volume) != mode_of(claim):
        modes = f"Source is {mode_of(volume)}, but new PVC requested {mode_of(claim)}"
        return f"the source PVC and destination PVCs must have the same volume mode for cloning.  {modes}"
    # What is asked for may be less than what was made, or it has grown.
    return _less_than(request_of(claim), capacity_of(volume)) if request_of(claim) < capacity_of(volume) else ""


# --- the place ----------------------------------------------------------------------------------------------------


def narrowed(wanted: Wanted, places: Sequence[Segment], cluster: ClusterState) -> tuple[Segment, ...] | Patch | Wait:
    """Return the places of the source that the class allows; or what to do where there are none, or the selected node
    is at none of them: another one is asked for, once. After that the volume is made where it can be, and binds the
    scheduler, which may choose without end otherwise.
    """
    claim, source, allowed = wanted.claim, wanted.source, allowed_segments(wanted.storage_class)
    both = ({**segment, **place} for place in places for segment in allowed or ({},))
    within = tuple(each for each in both if not allowed or _is_at(allowed, each))
    of_source = f'{source.kind} "{source.name}" can only be used at {_shown(places)}'
    if not within:
        of_class = f'class "{wanted.storage_class.name}" allows {_shown(allowed)}'
        return record.not_provisioned(claim, f"{of_source}, and {of_class}")
    name = claim.annotation(names.SELECTED_NODE)
    node = cluster.nodes.get(name) if name else None
    labels = (node.metadata.labels if node is not None else None) or {}
    if node is None or _is_at(within, labels) or cluster.progress.claims.get(claim.uid).given_back:
        return within
    keys = sorted({key for place in within for key in place})
    here = _shown([{key: labels.get(key, "") for key in keys}])
    return record.give_back(claim, f'selected node "{name}" is at {here}, and {of_source}; another node is asked for')


def _is_at(places: Sequence[Segment], labels: Segment) -> bool:
    return any(place.items() <= labels.items() for place in places)


def _shown(places: Iterable[Segment]) -> str:
    return " or ".join(", ".join(f"{key}={value}" for key, value in sorted(place.items())) for place in places)


# --- what holds it ------------------------------------------------------------------------------------------------


def hold(claim: Claim, source: TypedReference, cluster: ClusterState, reads: LiveReads) -> Read | Patch | Wait | None:
    """Return what puts the finalizer on the source, or None: it is there, or the source is going already."""
    if (first := ungranted(claim, source, cluster, reads)) is not None:
        return first
    kind: Kind[Any] = VOLUME_SNAPSHOTS if source.kind == SNAPSHOT else CLAIMS
    finalizer = names.RESTORED_SNAPSHOT if source.kind == SNAPSHOT else names.CLONED_CLAIM
    key = source.key_from(claim.namespace)
    if (read := _read(reads, kind, key, "is the source held while the volume is made?")) is not None:
        return read
    item = _seen(reads, kind, key)
    if item is None or item.terminating or item.has_finalizer(finalizer):
        return None
    body = {"metadata": {"finalizers": item.finalizers_with(finalizer)}}
    return Patch(kind=kind, target=item, body=body, why=f"claim {claim.key} is made of it")


def release(claim: Claim, cluster: ClusterState, reads: LiveReads) -> Read | Patch | None:
    """Return what takes our finalizers away that are not needed any more; None if there are none.

    That of a VolumeSnapshot goes when the volume is made, or none will be; that on a claim which is deleted, when no
    claim of the namespace that is not bound names it as its source.
    """
    if (step := _released_claim(claim, cluster)) is not None:
        return step
    source = source_of(claim)
    if source is None or source.kind != SNAPSHOT or not _names_snapshot(claim, cluster):
        return None
    if not _is_over(claim, cluster):
        return None
    key = source.key_from(claim.namespace)
    others = (each for each in _made_of(VOLUME_SNAPSHOTS, key, cluster) if each.uid != claim.uid)
    if any(_names_snapshot(other, cluster) and not _is_over(other, cluster) for other in others):
        return None
    if (read := _read(reads, VOLUME_SNAPSHOTS, key, "does its finalizer still hold it?")) is not None:
        return read
    snapshot = _seen(reads, VOLUME_SNAPSHOTS, key)
    if snapshot is None or not snapshot.has_finalizer(names.RESTORED_SNAPSHOT):
        return None
    return _without(VOLUME_SNAPSHOTS, snapshot, names.RESTORED_SNAPSHOT)


def swept(snapshot: VolumeSnapshot, cluster: ClusterState) -> Patch | None:
    """Return what takes our finalizer from a VolumeSnapshot that no unbound claim names: the record of the claim for
    which it was put there was lost. For those who follow VolumeSnapshots, of drivers that work here.
    """
    if not snapshot.has_finalizer(names.RESTORED_SNAPSHOT) or any(unbound_of(VOLUME_SNAPSHOTS, snapshot.key, cluster)):
        return None
    return _without(VOLUME_SNAPSHOTS, snapshot, names.RESTORED_SNAPSHOT)


def _released_claim(claim: Claim, cluster: ClusterState) -> Patch | None:
    if not claim.terminating or not claim.has_finalizer(names.CLONED_CLAIM):
        return None
    # The provisioners of other drivers have a finalizer of the same name.
    volume = cluster.volumes.get(claim.spec.volume_name)
    maker = volume.annotation(names.PROVISIONED_BY) if volume is not None else record.driver_of_class(claim, cluster)
    if maker is not None and not cluster.has_driver(maker):
        return None
    return None if any(unbound_of(CLAIMS, claim.key, cluster)) else _without(CLAIMS, claim, names.CLONED_CLAIM)


def unbound_of(kind: Kind[Any], key: str, cluster: ClusterState) -> Iterator[Claim]:
    """Yield the claims that are not bound yet and name this object as their source."""
    return (each for each in _made_of(kind, key, cluster) if each.status.phase in ("", "Pending"))


def _made_of(kind: Kind[Any], key: str, cluster: ClusterState) -> Iterable[Claim]:
    """Return the claims that name this object as their source; of other namespaces those that were granted it."""
    made, namespace = cluster.claims.by_index("source", f"{kind.kind} {key}"), key.partition("/")[0]
    return (each for each in made if each.namespace == namespace or _is_recorded(each, cluster))


def _is_recorded(claim: Claim, cluster: ClusterState) -> bool:
    intent = cluster.intent_of(claim)
    return intent is not None and intent.source is not None


def _names_snapshot(claim: Claim, cluster: ClusterState) -> bool:
    intent = cluster.intent_of(claim)
    return intent is not None and intent.source is not None and bool(intent.source.snapshot)


def _is_over(claim: Claim, cluster: ClusterState) -> bool:
    """Return whether nothing is made for the claim any more: its volume exists, or no asset of its intent does."""
    made, intent = cluster.volumes.get(volume_name_of(claim)), cluster.intent_of(claim)
    if made is not None and intent is not None and record.holds_asset(made, claim, intent.driver):
        return True
    unwanted = claim.terminating or claim.bound or bool(claim.spec.volume_name)
    return unwanted and isinstance(cluster.progress.claims.get(claim.uid).step, Discarded)


def _without(kind: Kind[Any], item: KubeObject, finalizer: str) -> Patch:
    body = {"metadata": {"finalizers": item.finalizers_without(finalizer)}}
    return Patch(kind=kind, target=item, body=body, why="nothing is made of it")


# --- what the driver says of a snapshot ---------------------------------------------------------------------------


def find_source(run: Run, deps: OperationDeps) -> Work:
    """Handle the verb `find-source`: look at the snapshot before anything is made of it, and keep where it can be
    used.
    """
    claim, driver = deps.claim(run), deps.driver(run)
    wanted = Wanted(claim, source_of(claim) or TypedReference(), deps.storage_class(run), driver)
    progress = deps.cluster.progress.claims.track(run.uid)

    async def find() -> None:
        snapshot = await deps.client.find(VOLUME_SNAPSHOTS, wanted.key)
        bound = snapshot.status.bound_volume_snapshot_content_name if snapshot is not None else ""
        content = await deps.client.find(VOLUME_SNAPSHOT_CONTENTS, bound) if bound else None
        if content is None or snapshot_refusal(wanted, snapshot, content):
            raise deps.not_justified()
        handle = content.status.snapshot_handle
        try:
            found = await deps.hooks.call(driver, FindSnapshotRequest(context=deps.context(driver), handle=handle))
            if not isinstance(found, Snapshot):
                raise errors.NotFound(f'snapshot "{handle}" does not exist on the storage', nothing_done=True)
            if found.failed:
                raise errors.InvalidArgument(f'snapshot "{handle}" can never be used: {found.failed}')
            if why := _too_small(wanted, found.size_bytes * NANOS):
                raise errors.InvalidArgument(why)
            if not found.ready:
                state = f" ({found.state})" if found.state else ""
                text = f'the storage says that snapshot "{handle}" is not ready{state}'
                raise errors.Unavailable(text, retry_after=found.retry_after, nothing_done=True)
        except errors.BackendError as error:
            what = f"error getting handle for DataSource Type {SNAPSHOT} by Name {wanted.source.name}: {error}"
            failure = f'Failed to provision volume with StorageClass "{wanted.storage_class.name}": {what}'
            message = f"{failure}; next attempt in {deps.registry.next_delay(run, error):.3g} s"
            deps.recorder.record(record.provisioning_failed(claim, message, same_as=failure))
            raise
        progress.source = FoundSource(handle, found.node_affinity)

    return find


def restored_by(snapshot: VolumeSnapshot, cluster: ClusterState) -> str | None:
    """Return what is being made of it, in words; None if nothing is."""
    claim = next(unbound_of(VOLUME_SNAPSHOTS, snapshot.key, cluster), None)
    if claim is not None:
        return f"claim {claim.name}"
    held = snapshot.has_finalizer(names.RESTORED_SNAPSHOT)
    return f"a claim (finalizer {names.RESTORED_SNAPSHOT})" if held else None
