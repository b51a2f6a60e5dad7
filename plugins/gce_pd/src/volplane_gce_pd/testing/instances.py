"""Methods of instances, and virtual machines that a test adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane_gce_pd.testing.errors import ComputeError, bad_request, in_use
from volplane_gce_pd.testing.project import Effect, Project
from volplane_gce_pd.testing.records import DiskRecord, InstanceRecord, OperationRecord

Params = Mapping[str, Any]


def add_instance(project: Project, zone: str, name: str, machine_type: str) -> InstanceRecord:
    """Return a running virtual machine with a boot disk."""
    instance = InstanceRecord(
        zone=zone, name=name, id=project.number(), machine_type=machine_type, created=project.stamp()
    )
    boot = f"projects/{project.behaviour.project}/zones/{zone}/disks/{name}"
    instance.disks["persistent-disk-0"] = (boot, "READ_WRITE")
    project.instances[zone, name] = instance
    return instance


def delete_instance(project: Project, instance: InstanceRecord) -> None:
    """Delete a virtual machine; its disks are detached."""
    project.instances.pop((instance.zone, instance.name), None)
    for disk in project.disks.values():
        if disk.users.pop((instance.zone, instance.name), None) is not None:
            disk.last_detach = project.stamp()


def _require_state(project: Project, instance: InstanceRecord) -> None:
    """Raise resourceNotReady for a virtual machine that takes no disk now: only running and stopped ones do."""
    if instance.status not in ("RUNNING", "TERMINATED"):
        path = f"projects/{project.behaviour.project}/zones/{instance.zone}/instances/{instance.name}"
        raise ComputeError("resourceNotReady", f"The resource '{path}' is not ready: its status is {instance.status}")


def _queue(project: Project, instance: InstanceRecord) -> None:
    if instance.queued >= project.behaviour.vm_queue:
        path = f"projects/{project.behaviour.project}/zones/{instance.zone}/instances/{instance.name}"
        raise ComputeError(
            project.behaviour.queue_code,
            f"Operation rate exceeded for resource '{path}'. Too many pending operations on a resource.",
        )


def attach_disk(project: Project, method: str, params: Params) -> OperationRecord:
    """instances.attachDisk: it waits in the queue of the virtual machine."""
    instance, body = project.instance(params["zone"], params["instance"]), params["body"]
    disk = project.disk_at(str(body.get("source", "")), "resource.source")
    mode = body.get("mode", "READ_WRITE")
    if mode not in ("READ_WRITE", "READ_ONLY") or instance.zone not in disk.zones:
        raise bad_request("resource.source", body["source"], "Disk must be in the same zone as the instance.")
    device = body.get("deviceName") or f"persistent-disk-{len(instance.disks)}"
    forced = str(params.get("forceAttach", "false")).lower() == "true"
    _require_state(project, instance)
    _queue(project, instance)
    path = disk.path(project.behaviour.project)
    refused = _refusal(project, disk, instance, mode, device, forced=forced)
    if refused is not None and instance.queued == 0:
        project.found_while_running(refused)

    def begin() -> None:
        error = _refusal(project, disk, instance, mode, device, forced=forced)
        if error is not None:
            raise error
        if forced:
            _take_away(project, disk, (instance.zone, instance.name))
        disk.users[instance.zone, instance.name] = mode

    def end() -> None:
        if (instance.zone, instance.name) in disk.users:
            instance.disks[device] = (path, mode)
            disk.last_attach = project.stamp()

    def undo() -> None:
        disk.users.pop((instance.zone, instance.name), None)

    target = f"projects/{project.behaviour.project}/zones/{instance.zone}/instances/{instance.name}"
    place = f"zones/{instance.zone}"
    return project.operate(method, params, place, target, Effect(begin=begin, end=end, undo=undo), vm=instance)


def _refusal(
    project: Project, disk: DiskRecord, instance: InstanceRecord, mode: str, device: str, *, forced: bool
) -> ComputeError | None:
    path = disk.path(project.behaviour.project)
    if (disk.place, disk.name) not in project.disks:
        return ComputeError("notFound", f"The resource '{path}' was not found")
    if disk.status != "READY":
        return ComputeError("resourceNotReady", f"The resource '{path}' is not ready")
    if device in instance.disks or any(each == path for each, _ in instance.disks.values()):
        return bad_request("resource.deviceName", device, "The disk or its device name is attached already.")
    others = {user: each for user, each in disk.users.items() if user != (instance.zone, instance.name)}
    access = disk.wanted.get("accessMode")
    if access == "READ_ONLY_MANY" and mode != "READ_ONLY":
        return bad_request("resource.mode", mode, f"The access mode of the disk is {access}.")
    hyperdisk = bool(project.behaviour.disk_types[disk.kind].access_modes)
    shared = access in ("READ_WRITE_MANY", "READ_ONLY_MANY") or (
        not hyperdisk and mode == "READ_ONLY" and set(others.values()) <= {mode}
    )
    if others and not shared and not (forced and disk.place.startswith("regions/")):
        zone, name = next(iter(others))
        return in_use(path, f"projects/{project.behaviour.project}/zones/{zone}/instances/{name}")
    takes = project.behaviour.machine_disks.get(instance.machine_type.partition("-")[0], ("",))
    if not disk.kind.startswith(takes):
        why = f"{disk.kind} disk type cannot be used by {instance.machine_type} machine type."
        by_http = project.behaviour.shape == "http"
        return bad_request("resource.source", path, why) if by_http else ComputeError("unsupportedOperation", why)
    most = project.behaviour.machine_types.get(instance.machine_type, 128)
    if len(instance.disks) >= most:
        message = f"Exceeded limit 'maximum_persistent_disks' on resource '{instance.name}'. Limit: {most}"
        return ComputeError("limitExceeded", message)
    return None


def _take_away(project: Project, disk: DiskRecord, wanted: tuple[str, str]) -> None:
    """Detach the disk from every virtual machine but the one that wants it."""
    path = disk.path(project.behaviour.project)
    for user in [user for user in disk.users if user != wanted]:
        del disk.users[user]
        instance = project.instances.get(user)
        if instance is not None:
            instance.disks = {device: held for device, held in instance.disks.items() if held[0] != path}


def detach_disk(project: Project, method: str, params: Params) -> OperationRecord:
    """instances.detachDisk: whatever has this device name when its turn comes."""
    instance = project.instance(params["zone"], params["instance"])
    device = params.get("deviceName", "")
    _require_state(project, instance)
    _queue(project, instance)
    if device not in instance.disks and instance.queued == 0:
        raise bad_request("deviceName", device, f"No attached disk found with device name '{device}'")
    if next(iter(instance.disks), "") == device:
        raise bad_request("deviceName", device, "The boot disk of a running instance cannot be detached.")

    def end() -> None:
        path, _mode = instance.disks.pop(device, ("", ""))
        for disk in project.disks.values():
            if disk.path(project.behaviour.project) == path:
                disk.users.pop((instance.zone, instance.name), None)
                disk.last_detach = project.stamp()

    target = f"projects/{project.behaviour.project}/zones/{instance.zone}/instances/{instance.name}"
    return project.operate(method, params, f"zones/{instance.zone}", target, Effect(end=end), vm=instance)
