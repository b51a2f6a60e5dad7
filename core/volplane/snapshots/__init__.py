"""Snapshots: the two halves of the stock pair.

The snapshot-controller (`decide`) binds VolumeSnapshots and contents, and the snapshotter (`contents`) has snapshots
cut, looked up and deleted. Both are pure; `operation` makes the live checks and calls the hooks. While a stock
snapshot-controller holds its Lease, only the second works, by its protocol. docs/explanation/snapshots.md says more.
`runs` has VolumeSnapshots taken, and deleted, by the schedules of claims, whoever binds them.
"""

from collections.abc import Iterable
from typing import Final

from volplane.controller.controller import FOLLOW, READ, Controller, Duty, Role, Rule, Watch
from volplane.intents.operation import OperationDeps
from volplane.snapshots.contents import decide_content
from volplane.snapshots.decide import SEEK, decide_snapshot, decide_source
from volplane.snapshots.groups import decide_group
from volplane.snapshots.groups_contents import decide_group_content
from volplane.snapshots.groups_handlers import GroupHandlers
from volplane.snapshots.groups_objects import GROUP_API
from volplane.snapshots.groups_operation import GROUP_QUEUE, GroupOperations
from volplane.snapshots.groups_state import count_groups
from volplane.snapshots.handlers import SnapshotHandlers
from volplane.snapshots.operation import QUEUE, SnapshotOperations
from volplane.snapshots.state import STOCK_LEASE, SnapshotState
from volplane.snapshots.turns import SCHEDULES, Turns

__all__ = ["SNAPSHOTS", "SNAPSHOTTER", "SNAPSHOT_CONTROLLER", "SNAPSHOT_SCHEDULER"]

_GROUP: Final = "snapshot.storage.k8s.io"


def _controllers(role: Role, deps: OperationDeps) -> Iterable[Controller]:
    common, sidecar = role.runs("snapshot-controller"), role.runs("snapshotter")
    schedules = role.runs("snapshot-scheduler")
    if not (common or sidecar or schedules) or role.node_name:
        return
    state = SnapshotState(cluster=deps.cluster, common=common)
    if schedules:
        turns = Turns(state, deps.queue(SCHEDULES), lambda driver: deps.registry.limits(driver).concurrency)
        yield Controller(
            queue=SCHEDULES,
            cache=deps.cluster.claims,
            explained="reason",
            topic="its schedule of snapshots: ",
            decide=turns.decide,
            own=(Watch(cache=state.snapshots),),
            subscribe=turns.subscribe,
            resync=turns.scheduled,
            of_driver=turns.scheduled,
            measure=turns.measure,
        )
    snapshots, sources, contents = deps.queue("snapshots"), deps.queue("snapshot-sources"), deps.queue(QUEUE)
    handlers = SnapshotHandlers(state, snapshots, contents, sources, deps.queue("claims"))
    operations = SnapshotOperations(deps, state)
    own = (
        Watch(cache=state.snapshots),
        Watch(cache=state.contents),
        Watch(cache=state.classes),
        Watch(cache=state.leases, field_selector=f"metadata.name={STOCK_LEASE}"),
    )
    if sidecar:
        yield Controller(
            queue=QUEUE,
            cache=state.contents,
            decide=lambda name, reads: decide_content(name, state, reads),
            own=own,
            subscribe=handlers.subscribe,
            operations=operations.handlers(),
            resync=state.contents.keys,
            of_driver=handlers.contents_of_driver,
            measure=lambda metrics: metrics.snapshots.show(state.count()),
        )
    if common or sidecar:
        yield from _groups(state, deps, common=common, sidecar=sidecar, own=own)
    if not common:
        return
    yield Controller(
        queue="snapshots",
        cache=state.snapshots,
        decide=lambda key, reads: decide_snapshot(key, state, reads),
        own=own,
        subscribe=handlers.subscribe if not sidecar else lambda: None,
        operations={SEEK: operations.seek},
        resync=state.snapshots.keys,
        of_driver=lambda _name: handlers.waiting(),
    )
    yield Controller(
        queue="snapshot-sources",
        cache=deps.cluster.claims,
        explained="reason",
        topic="its snapshots: ",
        decide=lambda key, _reads: decide_source(key, state),
        own=own,
        resync=state.held_claims,
    )


def _groups(
    state: SnapshotState, deps: OperationDeps, *, common: bool, sidecar: bool, own: tuple[Watch, ...]
) -> Iterable[Controller]:
    """Yield the controllers of groups. They alone wait for the kinds of groups, which a cluster may lack."""
    groups, contents = deps.queue(GROUPS_QUEUE), deps.queue(GROUP_QUEUE)
    handlers = GroupHandlers(state, groups, contents, deps.queue("snapshots"), deps.queue("snapshot-sources"))
    kinds = (Watch(cache=state.groups), Watch(cache=state.group_contents), Watch(cache=state.group_classes))
    if sidecar:
        yield Controller(
            queue=GROUP_QUEUE,
            cache=state.group_contents,
            decide=lambda name, reads: decide_group_content(name, state, reads),
            own=(*kinds, *own),
            subscribe=handlers.subscribe,
            operations=GroupOperations(deps, state).handlers(),
            resync=state.group_contents.keys,
            of_driver=handlers.contents_of_driver,
            measure=lambda metrics: metrics.groups.show(count_groups(state)),
        )
    if common:
        yield Controller(
            queue=GROUPS_QUEUE,
            cache=state.groups,
            decide=lambda key, reads: decide_group(key, state, reads),
            own=(*kinds, *own),
            subscribe=handlers.subscribe if not sidecar else lambda: None,
            resync=state.groups.keys,
            of_driver=lambda _name: handlers.waiting(),
        )


GROUPS_QUEUE: Final = "group-snapshots"
_KINDS: Final = (
    Rule(_GROUP, "volumesnapshots", READ),
    Rule(_GROUP, "volumesnapshotcontents", (*READ, "patch")),
    Rule(_GROUP, "volumesnapshotcontents/status", ("patch",)),
    Rule(_GROUP, "volumesnapshotclasses", FOLLOW),
    Rule(GROUP_API, "volumegroupsnapshots", READ),
    Rule(GROUP_API, "volumegroupsnapshotcontents", (*READ, "patch")),
    Rule(GROUP_API, "volumegroupsnapshotcontents/status", ("patch",)),
    Rule(GROUP_API, "volumegroupsnapshotclasses", FOLLOW),
    Rule("coordination.k8s.io", "leases", FOLLOW, (STOCK_LEASE,)),
)
SNAPSHOT_CONTROLLER: Final[Duty[OperationDeps]] = Duty(
    option="snapshot-controller",
    default=True,
    permissions=(
        *_KINDS,
        Rule(_GROUP, "volumesnapshots", ("patch",)),
        Rule(_GROUP, "volumesnapshots/status", ("patch",)),
        Rule(_GROUP, "volumesnapshotcontents", ("create", "delete")),
        Rule(_GROUP, "volumesnapshots", ("create", "delete")),
        Rule(GROUP_API, "volumegroupsnapshots", ("patch",)),
        Rule(GROUP_API, "volumegroupsnapshots/status", ("patch",)),
        Rule(GROUP_API, "volumegroupsnapshotcontents", ("create", "delete")),
        Rule("", "persistentvolumeclaims", ("patch",)),
    ),
)
SNAPSHOTTER: Final[Duty[OperationDeps]] = Duty(option="snapshotter", default=True, permissions=_KINDS)
SNAPSHOT_SCHEDULER: Final[Duty[OperationDeps]] = Duty(
    option="snapshot-scheduler",
    default=True,
    permissions=(
        Rule(_GROUP, "volumesnapshots", (*READ, "create", "delete")),
        Rule("", "persistentvolumeclaims", ("patch",)),
    ),
)
SNAPSHOTS: Final[Duty[OperationDeps]] = Duty(option="", controllers=_controllers)
"""The controllers of all three, which share what they see."""
