"""What a mocked project holds: disks, virtual machines, snapshots, operations."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

URL = "https://www.googleapis.com/compute/v1/"
Json = dict[str, Any]
"""A JSON object, as in requests and answers."""


def fingerprint(labels: Mapping[str, str]) -> str:
    """Return the fingerprint of labels, which their next change must name."""
    digest = hashlib.sha256(json.dumps(dict(labels), sort_keys=True).encode()).digest()[:8]
    return base64.urlsafe_b64encode(digest).decode()


@dataclass(slots=True, kw_only=True)
class DiskRecord:
    """A disk, as the fake keeps it."""

    place: str
    """`zones/<zone>` or `regions/<region>`."""
    name: str
    id: int
    wanted: Json
    """The body it was inserted with."""
    size: int
    kind: str
    created: str
    status: str = "CREATING"
    """As in the API."""
    labels: dict[str, str] = field(default_factory=dict)
    iops: int = 0
    throughput: int = 0
    users: dict[tuple[str, str], str] = field(default_factory=dict)
    """Zone and name of virtual machines, with the mode."""
    last_attach: str = ""
    last_detach: str = ""
    busy: int = 0
    """Operations that work on it now."""
    changed: float | None = None
    """When its size or performance was changed last."""

    @property
    def zones(self) -> tuple[str, ...]:
        """Return where it can be attached."""
        replicas = tuple(str(url).rpartition("/")[2] for url in self.wanted.get("replicaZones", ()))
        return replicas or (self.place.partition("/")[2],)

    def path(self, project: str) -> str:
        """Return its relative URL."""
        return f"projects/{project}/{self.place}/disks/{self.name}"

    def shown(self, project: str) -> Json:
        """Return the disk as in answers."""
        kind, _, where = self.place.partition("/")
        place = {kind.removesuffix("s"): f"{URL}projects/{project}/{self.place}"}
        shown: Json = {
            "kind": "compute#disk",
            "id": str(self.id),
            "name": self.name,
            "sizeGb": str(self.size),
            "status": self.status,
            "type": f"{URL}projects/{project}/{kind}/{where}/diskTypes/{self.kind}",
            "selfLink": URL + self.path(project),
            "creationTimestamp": self.created,
            "labelFingerprint": fingerprint(self.labels),
            **place,
        }
        copied = ("description", "accessMode", "storagePool", "enableConfidentialCompute", "diskEncryptionKey")
        shown |= {key: self.wanted[key] for key in copied if key in self.wanted}
        for key in ("sourceSnapshot", "sourceImage", "sourceDisk"):
            if key in self.wanted:
                shown[key] = URL + str(self.wanted[key]).removeprefix(URL)
        if "replicaZones" in self.wanted:
            shown["replicaZones"] = [f"{URL}projects/{project}/zones/{zone}" for zone in self.zones]
        optional: Json = {
            "users": [f"{URL}projects/{project}/zones/{zone}/instances/{name}" for zone, name in self.users][:50],
            "labels": dict(self.labels),
            "provisionedIops": str(self.iops) if self.iops else "",
            "provisionedThroughput": str(self.throughput) if self.throughput else "",
            "lastAttachTimestamp": self.last_attach,
            "lastDetachTimestamp": self.last_detach,
        }
        return shown | {key: value for key, value in optional.items() if value}


@dataclass(slots=True, kw_only=True)
class InstanceRecord:
    """A virtual machine."""

    zone: str
    name: str
    id: int
    machine_type: str
    created: str
    status: str = "RUNNING"
    disks: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Device name -> path and mode of the disk."""
    queued: int = 0
    free_at: float = 0.0
    """When its queue is worked off."""

    def shown(self, project: str) -> Json:
        """Return the virtual machine as in answers."""
        base = f"{URL}projects/{project}/zones/{self.zone}"
        return {
            "kind": "compute#instance",
            "id": str(self.id),
            "name": self.name,
            "zone": base,
            "machineType": f"{base}/machineTypes/{self.machine_type}",
            "status": self.status,
            "creationTimestamp": self.created,
            "selfLink": f"{base}/instances/{self.name}",
            "disks": [
                {
                    "kind": "compute#attachedDisk",
                    "type": "PERSISTENT",
                    "mode": mode,
                    "source": URL + path,
                    "deviceName": device,
                    "index": index,
                    "boot": index == 0,
                }
                for index, (device, (path, mode)) in enumerate(self.disks.items())
            ],
        }


@dataclass(slots=True, kw_only=True)
class SnapshotRecord:
    """A snapshot or an image."""

    kind: str = "snapshots"
    """Or images."""
    project: str = ""
    """Another project that shares it; "" = this one."""
    wanted: Json = field(default_factory=dict)
    """The body it was inserted with."""
    restored: list[float] = field(default_factory=list)
    """When disks were made from it."""
    name: str
    id: int
    size: int
    disk: str
    """Path of its disk."""
    disk_id: int
    created: str
    status: str = "CREATING"
    """As in the API."""
    description: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    def path(self, project: str) -> str:
        """Return its relative URL."""
        return f"projects/{self.project or project}/global/{self.kind}/{self.name}"

    def shown(self, project: str) -> Json:
        """Return the snapshot as in answers."""
        copied = ("storageLocations", *(("family",) if self.kind == "images" else ()))
        return {
            "kind": f"compute#{self.kind.removesuffix('s')}",
            "id": str(self.id),
            "name": self.name,
            "diskSizeGb": str(self.size),
            "status": self.status,
            "sourceDisk": URL + self.disk,
            "sourceDiskId": str(self.disk_id),
            "creationTimestamp": self.created,
            "selfLink": URL + self.path(project),
            "labelFingerprint": fingerprint(self.labels),
            **{key: self.wanted[key] for key in copied if key in self.wanted},
            **({"description": self.description} if self.description else {}),
            **({"labels": dict(self.labels)} if self.labels else {}),
        }


@dataclass(slots=True, kw_only=True)
class OperationRecord:
    """An operation."""

    place: str
    """`zones/<zone>`, `regions/<region>` or `global`."""
    name: str
    id: int
    method: str
    target: str
    created: str
    status: str = "PENDING"
    """One of PENDING, RUNNING, DONE."""
    error: tuple[str, str] | None = None
    error_status: int = 0
    ended: float | None = None
    """When."""

    def shown(self, project: str) -> Json:
        """Return the operation as in answers."""
        kind, _, where = self.place.partition("/")
        place = {kind.removesuffix("s"): f"{URL}projects/{project}/{self.place}"} if where else {}
        shown: Json = {
            "kind": "compute#operation",
            "id": str(self.id),
            "name": self.name,
            "operationType": self.method.rpartition(".")[2],
            "targetLink": URL + self.target,
            "status": self.status,
            "progress": {"PENDING": 0, "RUNNING": 50}.get(self.status, 100),
            "insertTime": self.created,
            "selfLink": f"{URL}projects/{project}/{self.place}/operations/{self.name}",
            **place,
        }
        if self.error is not None:
            code, message = self.error
            shown["error"] = {"errors": [{"code": code, "message": message}]}
            shown["httpErrorStatusCode"] = self.error_status
            shown["httpErrorMessage"] = "BAD REQUEST" if self.error_status == 400 else "FORBIDDEN"
        return shown
