"""The hooks `delete` and `recycle`: check that the disk is ours and not attached; delete it, or let a pod erase it."""

from __future__ import annotations

from collections.abc import Callable

from volplane import BackendError, DeleteRequest, Done, PodScrub, RecycleRequest, Unavailable, VolumeInUse
from volplane.cloud import BoundedCache, Fences, HookCall, RetryLater, StateAges, pod_scrub
from volplane_gce_pd.api import GceError, Method
from volplane_gce_pd.compute import Compute
from volplane_gce_pd.errors import NOT_FOUND, code_of
from volplane_gce_pd.operations import LongOperations, Outcome
from volplane_gce_pd.ownership import refuse_foreign
from volplane_gce_pd.resources import Disk, DiskKey, disk_key, disk_key_from, existing

_STUCK_SECONDS = 600.0
_STUCK_RETRY = 60.0


class Deleter:
    """The hooks `delete` and `recycle` of one driver. Safe for threads."""

    def __init__(
        self, compute: Compute, operations: LongOperations, fences: Fences, node_name: Callable[[str], str]
    ) -> None:
        """node_name: from the name of a virtual machine to that of its node."""
        self._compute = compute
        self._operations = operations
        self._fences = fences
        self._node_name = node_name
        self._ages = StateAges(compute.clock)
        self._since: BoundedCache[DiskKey, float] = BoundedCache()

    def delete(self, request: DeleteRequest, call: HookCall) -> Done:
        """Raises RetryLater, GceError and the errors of the contract."""
        settings = self._compute.settings
        key = disk_key_from(request.volume.handle, settings.project)
        if key is None:
            request.context.log.warning(
                "handle %r is no disk of project %s: there is nothing to delete",
                request.volume.handle,
                settings.project,
            )
            return Done()
        try:
            outcome = self._operations.outcome(call, Method.DISKS_DELETE, key)
        except GceError as error:
            if code_of(error) in NOT_FOUND:
                return Done()
            raise
        if outcome is Outcome.SUCCEEDED:
            return Done()  # Of the disk whose id is in its requestId: one of its name is another one.
        since = self._since.setdefault(key, self._compute.clock())
        try:
            return self._delete_seen(request, key, outcome, call, since)
        except BackendError:
            self._since.drop(key)
            raise

    def _delete_seen(
        self, request: DeleteRequest, key: DiskKey, outcome: Outcome, call: HookCall, since: float
    ) -> Done:
        """since: when this deletion first looked; while it waits for its rate, that look is enough."""
        disk = self._compute.disk_before(key, since=since)
        if disk is None:
            return Done()
        refuse_foreign(disk, request.volume.owner)
        if disk.state == "DELETING" or disk.making:
            self._wait(disk)
        if outcome is not Outcome.NONE:
            raise RetryLater(0.0, self._operations.next_attempt(call.context))
        self._refuse_attached(disk)
        self._fences.refuse_former_leader(disk.asset, disk.labels, call.context)
        return self._delete(disk, call)

    def scrub(self, request: RecycleRequest) -> PodScrub:
        """Return how a pod erases the disk, if it is ours and not attached. Raises as `delete`."""
        disk = existing(self._compute.disk(disk_key(request.volume, self._compute.settings)), request.volume)
        refuse_foreign(disk, request.volume.owner)
        where = [self._node_name(name) for _, name in disk.users]
        return pod_scrub(request, disk.name, where, "resourceInUseByAnotherResource")

    def _wait(self, disk: Disk) -> None:
        """Raises RetryLater, and Unavailable once the state lasts ten minutes."""
        seconds = self._ages.seconds(disk.key, disk.state)
        if seconds > _STUCK_SECONDS:
            raise Unavailable(
                f"{disk.name} in {disk.place} has been {disk.state} for {seconds / 60:.0f} minutes: look at the Google "
                "Cloud Service Health dashboard; volplane waits for it",
                code=disk.state,
                retry_after=_STUCK_RETRY,
            )
        raise RetryLater(self._compute.disks.next_poll(disk.key, after=min(max(seconds / 4, 0.5), 10.0)))

    def _refuse_attached(self, disk: Disk) -> None:
        if disk.users:
            where = ", ".join(self._node_name(name) for _, name in disk.users)
            raise VolumeInUse(
                f"{disk.name} cannot be deleted while it is attached to {where}; stop what uses it there",
                code="resourceInUseByAnotherResource",
            )

    def _delete(self, disk: Disk, call: HookCall) -> Done:
        """Start the deletion; raises RetryLater, and returns only if the disk is gone already."""
        kind, _, where = disk.place.partition("/")
        method = Method.REGION_DISKS_DELETE if kind == "regions" else Method.DISKS_DELETE
        fields = {kind.removesuffix("s"): where, "disk": disk.name}
        try:
            raise self._operations.begin(call, method, disk.key, disk.id, state={}, **fields)
        except GceError as error:
            if code_of(error) not in NOT_FOUND:
                raise
            return Done()
