"""The hooks `attach` and `detach`: attachDisk and detachDisk, and the wait until they have taken effect.

A virtual machine works off its operations one after another and queues 32 (gcp-compute-persistent-disk-csi-driver,
issue 1129), so that few of them run at once here, and a pair of machine and disk that failed is tried later each time.
detachDisk names a device, not an attachment. Its requestId is made of the disk's last attachment: a late copy of a call
is one that Compute Engine has seen, and never detaches what was attached since (issue 965 there).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from volplane import (
    AccessMode,
    AttachedElsewhere,
    Attachment,
    AttachRequest,
    BackendError,
    DetachRequest,
    Done,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    VolumeInUse,
)
from volplane.cloud import BoundedCache, Fences, HookCall, RetryLater
from volplane_gce_pd.api import GceError, Method
from volplane_gce_pd.compute import Compute
from volplane_gce_pd.errors import IN_USE, NOT_FOUND, code_of, to_backend_error
from volplane_gce_pd.operations import LongOperations, Outcome
from volplane_gce_pd.ownership import refuse_foreign, write_term
from volplane_gce_pd.resources import (
    FORCE_ATTACH,
    AttachedDisk,
    Disk,
    DiskKey,
    Instance,
    InstanceKey,
    disk_key,
    disk_key_from,
    existing,
    instance_key,
)

_DISK_SIZE = "disk-size"
"""Key of the publish context: GiB, which the official node plugin compares with the device before it makes a file
system."""
_QUEUE_RETRY = 1.0
_QUEUED_SECONDS = 300.0
"""An operation that no caller asked about for so long does not count any more."""
_FIRST_BACKOFF = 0.2
_LONGEST_BACKOFF = 300.0


class VmQueues:
    """How many operations of each virtual machine this process has under way. Safe for threads."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._running: dict[InstanceKey, dict[DiskKey, float]] = {}
        self._lock = threading.Lock()

    def enter(self, vm: InstanceKey, disk: DiskKey) -> None:
        """Take a place; raises RetryLater while none is free."""
        now = self._clock()
        with self._lock:
            running = self._running.setdefault(vm, {})
            for old in [key for key, since in running.items() if since + _QUEUED_SECONDS < now]:
                del running[old]
            if disk not in running and len(running) >= self._most:
                raise RetryLater(_QUEUE_RETRY)
            running[disk] = now

    def leave(self, vm: InstanceKey, disk: DiskKey) -> None:
        """Free the place of an operation that is over, or was not started."""
        with self._lock:
            running = self._running.get(vm, {})
            running.pop(disk, None)
            if not running:
                self._running.pop(vm, None)


class Attacher:
    """The hooks `attach` and `detach` of one driver. Safe for threads."""

    def __init__(
        self, compute: Compute, operations: LongOperations, fences: Fences, node_name: Callable[[str], str]
    ) -> None:
        self._compute = compute
        self._operations = operations
        self._fences = fences
        self._node_name = node_name
        self._queues = VmQueues(compute.settings.operations_per_vm, compute.clock)
        self._failures: BoundedCache[tuple[InstanceKey, DiskKey], int] = BoundedCache()
        self._attaching: BoundedCache[tuple[InstanceKey, DiskKey], tuple[DiskKey, int]] = BoundedCache()
        """The operation by which this process attaches a disk, and its size in GiB."""

    # --- attach -------------------------------------------------------------------------------------------------

    def attach(self, request: AttachRequest, call: HookCall) -> Attachment:
        """Raises RetryLater, GceError and the errors of the contract."""
        key, settings = disk_key(request.volume, self._compute.settings), self._compute.settings
        vm = instance_key(request.node, settings.project)
        if vm is None:
            raise NotFound(
                f"node {request.node.name} has spec.providerID {request.node.instance_id!r}: no virtual machine of "
                f"project {settings.project!r}, so no disk can be attached to it; it must look like "
                f"gce://{settings.project}/{settings.region}-a/{request.node.name}"
            )
        outcome = self._finished(call, Method.INSTANCES_ATTACH_DISK, key, vm, f"attach {key[1]} to {request.node.name}")
        begun = self._attaching.get((vm, key))
        if begun is not None and self._operations.proves(call, Method.INSTANCES_ATTACH_DISK):
            return self._done((vm, key), begun[1])
        with self._looking_again(key, vm):
            return self._attach(request, key, vm, outcome, call)

    def _attach(
        self, request: AttachRequest, key: DiskKey, vm: InstanceKey, outcome: Outcome, call: HookCall
    ) -> Attachment:
        found_disk, target = self._compute.disk_and_instance(key, vm, attached=False)
        disk = existing(found_disk, request.volume)
        if request.volume.owner is not None:
            refuse_foreign(disk, request.volume.owner)
        self._fences.refuse_former_leader(disk.asset, disk.labels, call.context)
        if target is None:
            raise NotFound(
                f"virtual machine {vm[1]} of node {request.node.name} does not exist in zone {vm[0]}", code="notFound"
            )
        mode = "READ_ONLY" if _read_only(request) else "READ_WRITE"
        found = target.disk(key)
        if found is not None:
            return self._attached(found, disk, mode, request, (vm, key))
        if outcome is not Outcome.NONE:
            raise RetryLater(0.0, self._operations.next_attempt(call.context))
        forced = request.volume.attributes.get(FORCE_ATTACH) == "true" and disk.place.startswith("regions/")
        if not forced:
            self._refuse_elsewhere(disk, vm, mode)
        if disk.making:
            raise RetryLater(self._compute.disks.next_poll(key, after=0.5))
        self._refuse_place_and_room(request, disk, target)
        write_term(self._compute, self._fences, disk, call)
        if mode == "READ_ONLY" and disk.becomes_shared:
            raise self._operations.update(call, disk, {"access_mode": "READ_ONLY_MANY"})
        raise self._begin_attach(disk, target, mode, call, forced=forced)

    def _attached(
        self, found: AttachedDisk, disk: Disk, mode: str, request: AttachRequest, pair: tuple[InstanceKey, DiskKey]
    ) -> Attachment:
        if found.mode != mode:
            raise VolumeInUse(
                f"{found.key[1]} is attached to {request.node.name} as {found.mode}, but {mode} is asked for; it must "
                "be detached there first"
            )
        return self._done(pair, disk.size)

    def _done(self, pair: tuple[InstanceKey, DiskKey], size: int) -> Attachment:
        self._failures.drop(pair)
        self._attaching.drop(pair)
        return Attachment(metadata={_DISK_SIZE: str(size)})

    def _refuse_elsewhere(self, disk: Disk, vm: InstanceKey, mode: str) -> None:
        others = [user for user in disk.users if user != vm]
        if not others or disk.shared:
            return
        if mode == "READ_ONLY" and (disk.becomes_shared or not disk.disk_type.startswith("hyperdisk-")):
            first = self._compute.instance(others[0])
            there = first.disk(disk.key) if first is not None else None
            if there is None or there.mode == "READ_ONLY":
                return
        node = self._node_name(others[0][1])
        raise AttachedElsewhere(
            f"{disk.name} is attached to {node}; it must be detached there first",
            node=node,
            code="RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
        )

    def _refuse_place_and_room(self, request: AttachRequest, disk: Disk, target: Instance) -> None:
        if target.zone not in disk.zones:
            raise InvalidArgument(
                f"{disk.name} is in {' and '.join(disk.zones)}, node {request.node.name} in {target.zone}: a disk "
                "cannot be reached from another zone"
            )
        limit = _limit_of_label(request) or self._compute.attach_limit(target)
        if limit is not None and len(target.disks) >= limit:
            raise ResourceExhausted(
                f"node {request.node.name} ({target.machine_type}) holds {len(target.disks)} disks, its boot disk "
                f"included, and can hold {limit}; move a pod to another node",
                scope="node",
                code="LIMIT_EXCEEDED",
            )

    def _begin_attach(self, disk: Disk, target: Instance, mode: str, call: HookCall, *, forced: bool) -> RetryLater:
        fields: dict[str, Any] = {
            "zone": target.zone,
            "instance": target.name,
            "attached_disk_resource": {
                "source": disk.handle(self._compute.settings.project),
                "device_name": f"{disk.name}_regional" if disk.place.startswith("regions/") else disk.name,
                "mode": mode,
                "type_": "PERSISTENT",
            },
        }
        if forced:
            fields["force_attach"] = True
        return self._begin(Method.INSTANCES_ATTACH_DISK, disk, target, call, fields)

    # --- detach -------------------------------------------------------------------------------------------------

    def detach(self, request: DetachRequest, call: HookCall) -> Done:
        """Raises RetryLater, GceError and the errors of the contract."""
        settings = self._compute.settings
        key = disk_key_from(request.volume.handle, settings.project)
        if key is None:
            return Done()
        vm = instance_key(request.node, settings.project) if request.node.instance_id else self._known(request, key)
        if vm is None:
            return Done()
        doing = f"detach {key[1]} from {request.node.name}"
        outcome = self._finished(call, Method.INSTANCES_DETACH_DISK, key, vm, doing)
        if self._operations.proves(call, Method.INSTANCES_DETACH_DISK):
            self._failures.drop((vm, key))
            return Done()
        with self._looking_again(key, vm):
            return self._detach(request, key, vm, outcome, call)

    def _detach(self, request: DetachRequest, key: DiskKey, vm: InstanceKey, outcome: Outcome, call: HookCall) -> Done:
        disk, target = self._compute.disk_and_instance(key, vm, attached=True)
        found = target.disk(key) if target is not None else None
        if target is None or found is None:
            self._wait_for_attachment(vm, key)
            self._failures.drop((vm, key))
            return Done()
        if disk is not None and request.volume.owner is not None:
            refuse_foreign(disk, request.volume.owner)
        if outcome is not Outcome.NONE:
            raise RetryLater(0.0, self._operations.next_attempt(call.context))
        if disk is None:
            raise Unavailable(f"{key[1]} is attached to {request.node.name} and cannot be read; it is tried again")
        self._fences.refuse_former_leader(disk.asset, disk.labels, call.context)
        fields = {"zone": target.zone, "instance": target.name, "device_name": found.device}
        raise self._begin(Method.INSTANCES_DETACH_DISK, disk, target, call, fields)

    def _wait_for_attachment(self, vm: InstanceKey, key: DiskKey) -> None:
        """Raise RetryLater while an attachment is under way: a machine shows a disk only once that is done."""
        begun = self._attaching.get((vm, key))
        if begun is None:
            return
        operation = begun[0]
        running = self._compute.operations.current(operation)
        if running is not None and not running.done:
            raise RetryLater(self._compute.operations.next_poll(operation))
        self._attaching.drop((vm, key))
        self._compute.changed(vm)
        raise RetryLater(self._compute.instances.next_poll(vm))

    def _known(self, request: DetachRequest, key: DiskKey) -> InstanceKey | None:
        """Return the virtual machine of a node without a providerID, as when the Node object is gone.

        None if the disk is attached to none, or only to those of other nodes. Raises NotFound if it is attached to a
        machine whose node this process does not know: it may be this node or another one.
        """
        disk = self._compute.disk(key)
        users = disk.users if disk is not None else ()
        for user in users:
            if request.node.name in (user[1], self._node_name(user[1])):
                return user
        unknown = [user[1] for user in users if self._node_name(user[1]) == user[1]]
        if unknown:
            raise NotFound(
                f"node {request.node.name} is gone or has no spec.providerID, and {key[1]} is still attached to "
                f"{', '.join(unknown)}: if that is the node, detach the disk or delete the virtual machine"
            )
        return None

    # --- both ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _looking_again(self, key: DiskKey, vm: InstanceKey) -> Iterator[None]:
        """Use nothing that was seen before for the call that follows an error."""
        try:
            yield
        except BackendError:
            self._compute.changed(key)
            self._compute.changed(vm)
            raise

    def _finished(self, call: HookCall, method: Method, key: DiskKey, vm: InstanceKey, doing: str) -> Outcome:
        """Return what became of the saved operation. Raises RetryLater, and the error of a failed one."""
        try:
            outcome = self._operations.outcome(call, method, key, vm)
        except GceError as error:
            self._queues.leave(vm, key)
            if method is Method.INSTANCES_DETACH_DISK and code_of(error) in NOT_FOUND:
                return Outcome.UNKNOWN
            raise self._failure(error, key, vm, doing) from error
        if outcome is not Outcome.NONE:
            self._queues.leave(vm, key)
        return outcome

    def _begin(
        self, method: Method, disk: Disk, target: Instance, call: HookCall, fields: Mapping[str, Any]
    ) -> RetryLater:
        """Start the operation; returns what to raise."""
        vm = (target.zone, target.name)
        self._queues.enter(vm, disk.key)
        incarnation = (disk.id, target.id, disk.last_attached, disk.last_detached)
        started = False
        try:
            retry = self._operations.begin(call, method, disk.key, *incarnation, state={}, queue=vm, **fields)
            started = True
            if method is Method.INSTANCES_ATTACH_DISK and (running := self._operations.named(retry.state)) is not None:
                self._attaching.put((vm, disk.key), (running, disk.size))
        except GceError as error:
            gone = method is Method.INSTANCES_DETACH_DISK and code_of(error) in NOT_FOUND
            if gone or "No attached disk" in error.message:  # It was detached since it was read.
                raise RetryLater(self._compute.instances.next_poll(vm)) from None
            verb = "attach" if method is Method.INSTANCES_ATTACH_DISK else "detach"
            raise self._failure(error, disk.key, vm, f"{verb} {disk.name} at {self._node_name(vm[1])}") from error
        finally:
            if not started:
                self._queues.leave(vm, disk.key)
        return retry

    def _failure(self, error: GceError, key: DiskKey, vm: InstanceKey, doing: str) -> BackendError:
        """Return the error of the contract, whose retry time doubles with every failure of the pair in a row."""
        if error.call == Method.INSTANCES_ATTACH_DISK and code_of(error) in IN_USE:
            disk = self._compute.disk_now(key)
            others = [user for user in disk.users if user != vm] if disk is not None else []
            if others:
                node = self._node_name(others[0][1])
                return AttachedElsewhere(f"cannot {doing}: it is attached to {node}", node=node, code=error.code)
        failure = to_backend_error(error, doing)
        failures = (self._failures.get((vm, key)) or 0) + 1
        self._failures.put((vm, key), failures)
        backoff = min(_FIRST_BACKOFF * 2.0 ** min(failures - 1, 20), _LONGEST_BACKOFF)
        failure.retry_after = max(failure.retry_after or 0.0, backoff)
        return failure


def _read_only(request: AttachRequest) -> bool:
    return request.read_only or set(request.volume.access_modes) == {AccessMode.READ_ONLY_MANY}


def _limit_of_label(request: AttachRequest) -> int | None:
    """Return the node's own limit, its boot disk included (label of the official driver, which does not count that)."""
    text = request.node.labels.get("node-restriction.kubernetes.io/gke-volume-attach-limit-override", "")
    return int(text) + 1 if text.isascii() and text.isdigit() and 0 < int(text) < 1_000 else None
