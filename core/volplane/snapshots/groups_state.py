"""What decisions about groups of snapshots see, beside the objects: records, and what belongs together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from volplane.assets import SnapshotOwnership
from volplane.kube import names
from volplane.kube.objects import Volume
from volplane.snapshots.groups_objects import (
    GROUP_CONTENT_PREFIX,
    VolumeGroupSnapshot,
    VolumeGroupSnapshotContent,
    group_content_name_of,
)
from volplane.snapshots.state import (
    GroupIntent,
    GroupMember,
    SnapshotState,
    claim_uid_of,
    handle_in_source,
    state_of_error,
)
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import mode_of
from volplane.state.naming import handle_of
from volplane.state.records import INTENT_VERSION, read_intent


def new_group_intent(
    group_uid: str, volumes: dict[str, Volume], parameters: dict[str, str], cluster: ClusterState
) -> GroupIntent:
    """Return the record of a group. volumes: by the handle by which the content names each."""
    members = tuple(_member(handle, volume) for handle, volume in volumes.items())
    return GroupIntent(
        v=INTENT_VERSION,
        cluster=cluster.cluster_id,
        group=group_uid,
        members=members,
        parameters=parameters,
        fence=cluster.fence(),
    )


def _member(handle: str, volume: Volume) -> GroupMember:
    claim = volume.spec.claim_ref
    name = claim.name if claim is not None else ""
    return GroupMember(handle, handle_of(volume), volume.name, claim_uid_of(volume), name, mode_of(volume))


def member_of(content: VolumeGroupSnapshotContent, handle: str, state: SnapshotState) -> GroupMember:
    """Return what is known of a member, by the handle of its volume; of an older record the volume tells the rest."""
    intent = group_intent_of(content)
    found = (each for each in intent.members if each.handle == handle) if intent is not None else iter(())
    known = next(found, GroupMember(handle, "", "", ""))
    volume = state.cluster.volumes.get(known.volume)
    return known if known.mode or volume is None else _member(handle, volume)


def group_intent_of(content: VolumeGroupSnapshotContent) -> GroupIntent | None:
    return read_intent(GroupIntent, content.annotation(names.INTENT))


def group_of_content(content: VolumeGroupSnapshotContent, state: SnapshotState) -> VolumeGroupSnapshot | None:
    """Return the group that the content names, if it is this very one."""
    reference = content.spec.volume_group_snapshot_ref
    group = state.groups.get(reference.key)
    return group if group is not None and group.uid == reference.uid else None


def sources_of(content: VolumeGroupSnapshotContent, state: SnapshotState) -> dict[str, Volume] | str:
    """Return the volumes that are cut, by the handles in the content; or which of them is missing, in words.

    By the record, else by the handles alone, which a stock snapshot-controller has written.
    """
    intent, found = group_intent_of(content), dict[str, Volume]()
    recorded = {each.handle: each for each in intent.members} if intent is not None else {}
    known = {} if recorded else dict(_by_handle(content, state))
    for handle in content.spec.source.volume_handles or ():
        member = recorded.get(handle)
        volume = state.cluster.volumes.get(member.volume) if member is not None else known.get(handle)
        if volume is None or handle not in (handle_of(volume), handle_in_source(volume)):
            return f"no PersistentVolume with the handle {handle} is there"
        if not claim_uid_of(volume) or (member is not None and member.claim != claim_uid_of(volume)):
            return f"volume {volume.name} is not bound to the claim of the group any more"
        found[handle] = volume
    return found


def _by_handle(content: VolumeGroupSnapshotContent, state: SnapshotState) -> Iterator[tuple[str, Volume]]:
    namespace, wanted = content.spec.volume_group_snapshot_ref.namespace, set(content.spec.source.volume_handles or ())
    for volume in state.cluster.volumes.values():
        claim = volume.spec.claim_ref
        if claim is not None and claim.namespace == namespace:
            yield from ((handle, volume) for handle in {handle_of(volume), handle_in_source(volume)} & wanted)


def count_groups(state: SnapshotState) -> Counter[tuple[str, str]]:
    """Count the groups of our drivers by driver and state, as `SnapshotState.count` does single snapshots."""
    found: Counter[tuple[str, str]] = Counter()
    for group in state.groups.values():
        content = state.group_contents.get(group_content_name_of(group))
        of_class = state.group_classes.get(group.spec.volume_group_snapshot_class_name or "")
        driver = content.spec.driver if content is not None else of_class.driver if of_class is not None else ""
        if state.cluster.has_driver(driver):
            wrong = state_of_error(group.status.error)
            found[driver, "ready" if group.status.ready_to_use else wrong] += 1
    return found


def owner_of_group(content: VolumeGroupSnapshotContent, cluster_id: str) -> SnapshotOwnership:
    """Return the marks of the snapshots of a dynamic content."""
    intent = group_intent_of(content)
    uid = intent.group if intent is not None else content.spec.volume_group_snapshot_ref.uid
    cluster = intent.cluster if intent is not None else cluster_id
    return SnapshotOwnership(cluster_id=cluster, snapshot_uid=uid, content_name=f"{GROUP_CONTENT_PREFIX}{uid}")
