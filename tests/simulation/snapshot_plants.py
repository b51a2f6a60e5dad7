"""Known bugs about snapshots, and about what is made from them."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from msgspec.structs import replace as with_fields

from simulation.planting import by_name, replace
from volplane.controller.actions import Action, Delete, Settled
from volplane.drivers.driver import DriverView
from volplane.kube.objects import KubeObject
from volplane.snapshots import contents, decide, operation, runs, source
from volplane.snapshots.demand import demand_of
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshot, VolumeSnapshotContent
from volplane.snapshots.operation import SnapshotOperations
from volplane.snapshots.source import Wanted
from volplane.snapshots.state import SnapshotState
from volplane.state import matching
from volplane.state.records import SourceRecord


def cut_again_when_the_content_is_lost(stack: ExitStack) -> None:
    """Take a VolumeSnapshot without a content for a new one, whatever moment it shows."""

    def anew(snapshot: VolumeSnapshot, state: SnapshotState, _reads: Any) -> Action:
        demand = demand_of(snapshot, state)
        return demand.next or Settled() if demand.wanted is None else decide._begin(snapshot, demand.wanted, state)

    def may_cut(content: VolumeSnapshotContent, state: SnapshotState) -> bool:
        snapshot = state.snapshot_of(content)
        return snapshot is not None and not snapshot.terminating and not content.terminating

    replace(stack, decide, "_heal", anew)
    for module in (contents, operation):
        replace(stack, module, "may_cut", may_cut)


def release_the_claim_before_the_cut(stack: ExitStack) -> None:
    """Need the claim of a VolumeSnapshot no more once its content exists."""

    def unfinished_of(self: SnapshotState, claim_key: str) -> Any:
        return (each for each in self.snapshots.by_index("claim", claim_key) if self.content_of(each) is None)

    replace(stack, SnapshotState, "unfinished_of", unfinished_of)


def forget_the_snapshot_of_a_lost_content(stack: ExitStack) -> None:
    """Make no content again, though the storage has the snapshot."""
    replace(stack, decide, "_heal", lambda *_: Settled())


def delete_under_retain(stack: ExitStack) -> None:
    """Delete the snapshot with its content, whatever the policy."""
    deletion = contents._deletion

    def under_delete(content: VolumeSnapshotContent, *rest: Any) -> Action | None:
        return deletion(with_fields(content, spec=with_fields(content.spec, deletion_policy="Delete")), *rest)

    async def unused(*_: Any) -> None: ...

    replace(stack, contents, "_deletion", under_delete)
    replace(stack, SnapshotOperations, "_require_unused", unused)


def bind_a_claim_with_a_source_to_any_volume(stack: ExitStack) -> None:
    """Overlook the source of a claim when its volume is chosen."""
    replace(stack, matching, "source_of", lambda _claim: None)


def restore_from_an_unready_snapshot(stack: ExitStack) -> None:
    """Make a volume of a snapshot that is cut, ready or not."""
    refusal = source.snapshot_refusal

    def ready(wanted: Wanted, snapshot: KubeObject | None, content: KubeObject | None) -> str:
        if isinstance(snapshot, VolumeSnapshot):
            snapshot = with_fields(snapshot, status=with_fields(snapshot.status, ready_to_use=True))
        return refusal(wanted, snapshot, content)

    replace(stack, source, "snapshot_refusal", ready)
    replace(stack, source, "resolve", _unasked(source.resolve))


def _unasked(resolve: Any) -> Any:
    """Return `resolve` that does not ask the driver whether a snapshot is ready."""

    def resolved(wanted: Wanted, cluster: Any, reads: Any) -> Any:
        found = resolve(wanted, cluster, reads)
        if getattr(found, "verb", "") != "find-source":
            return found
        snapshot = reads.get(VOLUME_SNAPSHOTS, wanted.key)
        content = reads.get(VOLUME_SNAPSHOT_CONTENTS, snapshot.status.bound_volume_snapshot_content_name)
        return source.Source(SourceRecord(snapshot=content.status.snapshot_handle))

    return resolved


def take_no_answer_for_none(stack: ExitStack) -> None:
    """Take a snapshot for absent, and let its content go, before a call without an answer must have ended."""

    def absent(_progress: Any, _driver: DriverView, _state: Any) -> None: ...

    replace(stack, operation, "require_absent", absent)


def hold_the_source_for_ever(stack: ExitStack) -> None:
    """Leave the finalizer on a VolumeSnapshot once the volume is made of it."""
    replace(stack, source, "release", lambda *_: None)
    replace(stack, decide, "swept", lambda *_: None)


def begin_a_run_while_the_last_one_is_under_way(stack: ExitStack) -> None:
    """Take a snapshot when it is due, whatever has become of the last one."""
    replace(stack, runs, "is_under_way", lambda _snapshot: False)


def count_snapshots_that_are_not_ready(stack: ExitStack) -> None:
    """Keep as many as the schedule says, ready or not."""
    replace(stack, runs, "is_good", lambda snapshot: not snapshot.terminating)


def delete_the_last_good_one_by_its_age(stack: ExitStack) -> None:
    """Delete all that are old."""

    def too_many(it: Any) -> Any:
        old = (each for each in it.good if it.now - runs._moment(each) > timedelta(seconds=it.schedule.max_age))
        return ((each, "old") for each in old if it.schedule.max_age)

    def delete(_it: Any, snapshot: VolumeSnapshot, why: str, _reads: Any) -> Action:
        return Delete(kind=VOLUME_SNAPSHOTS, target=snapshot, why=why)

    replace(stack, runs, "_too_many", too_many)
    replace(stack, runs, "_delete", delete)


def take_a_snapshot_again_that_is_gone(stack: ExitStack) -> None:
    """Take the snapshot of the last run again, whoever has deleted it."""

    follow = runs._follow

    def followed(it: Any, reads: Any, free: Any) -> Any:
        lost = bool(it.record.snapshot) and it.last is None
        return follow(it._replace(record=with_fields(it.record, made=False)) if lost else it, reads, free)

    replace(stack, runs, "_follow", followed)


SNAPSHOT_PLANTS = by_name(
    cut_again_when_the_content_is_lost,
    release_the_claim_before_the_cut,
    forget_the_snapshot_of_a_lost_content,
    delete_under_retain,
    bind_a_claim_with_a_source_to_any_volume,
    restore_from_an_unready_snapshot,
    take_no_answer_for_none,
    hold_the_source_for_ever,
    begin_a_run_while_the_last_one_is_under_way,
    count_snapshots_that_are_not_ready,
    delete_the_last_good_one_by_its_age,
    take_a_snapshot_again_that_is_gone,
)
