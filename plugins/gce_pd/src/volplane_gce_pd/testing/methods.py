"""The methods that a FakeCompute has: their HTTP routes, messages, rate groups and permissions.

Routes are those of the Compute Engine API v1 reference. Messages are Google's own classes (google-cloud-compute):
an unknown query parameter, an unknown field or a wrong type in a request is refused, in an answer it is a bug of the
fake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from google.protobuf.json_format import ParseError

from volplane_gce_pd.testing import disks, instances, reads, snapshots
from volplane_gce_pd.testing.errors import ComputeError, not_found
from volplane_gce_pd.testing.project import Project
from volplane_gce_pd.testing.records import OperationRecord

Handler = Callable[[Project, str, Mapping[str, Any]], "dict[str, Any] | OperationRecord"]
_PREFIX = "/compute/v1/"
_REQUEST_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_REPEATED = ("paths",)
"""Query parameters that may come several times (discovery document of compute v1)."""
_NO_REQUEST_ID = "00000000-0000-0000-0000-000000000000"


def _message(name: str) -> Any:
    """Return the class of a message."""
    from google.cloud import compute_v1  # noqa: PLC0415 - takes a second and 150 MB

    return getattr(compute_v1, name)


class ModelViolation(AssertionError):
    """An answer of the fake does not conform to Google's message classes."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the API."""

    name: str
    verb: str
    path: str
    """Template."""
    request: str
    """Names of message classes, "" = no body."""
    body: str = ""
    """Names of message classes, "" = no body."""
    answer: str = "Operation"
    """Names of message classes, "" = no body."""

    @property
    def handler(self) -> Handler:
        """Return what the fake does."""
        service, _, name = self.name.partition(".")
        if service in ("snapshots", "images") and name in ("insert", "delete"):
            return snapshots.insert if name == "insert" else snapshots.delete
        return _HANDLERS[name]

    @property
    def permission(self) -> str:
        """Return what the caller needs in any case."""
        service, _, name = self.name.partition(".")
        return f"compute.{_ASSETS.get(service, service)}.{_VERBS.get(name, name)}"

    @property
    def group(self) -> str:
        """Return the rate quota that it counts for."""
        if self.verb != "GET":
            return "mutations"
        if "Operations." in self.name:
            return "operationReads"
        return {"get": "reads", "list": "lists"}.get(self.name.partition(".")[2], "aggregatedLists")

    @property
    def pattern(self) -> re.Pattern[str]:
        """Return the pattern of the path, with a group for each of its parameters."""
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path))

    def check_query(self, query: Mapping[str, str]) -> None:
        """Raise invalid for query parameters that the method does not have."""
        fields = _message(self.request).meta.fields
        known = {re.sub(r"_(\w)", lambda match: match[1].upper(), name) for name in fields}
        unknown = set(query) - known
        if unknown:
            raise ComputeError("invalidParameter", f"Unknown name '{min(unknown)}': Cannot bind query parameter.")
        given = query.get("requestId")
        if given is not None and (not _REQUEST_ID.fullmatch(given) or given == _NO_REQUEST_ID):
            raise ComputeError("invalid", f"Invalid value for field 'requestId': '{given}'. Must be a non-zero UUID.")

    def checked_body(self, body: bytes) -> dict[str, Any]:
        """Return the body, by the message class. Raises parseError."""
        if not self.body:
            if body not in (b"", b"{}"):
                raise ComputeError("parseError", f"{self.name} takes no body")
            return {}
        try:
            _message(self.body).from_json(body or b"{}", ignore_unknown_fields=False)
        except (ParseError, ValueError) as error:
            raise ComputeError("parseError", " ".join(str(error).split())) from None
        result: dict[str, Any] = json.loads(body or b"{}")
        return result

    def check_answer(self, answer: Mapping[str, Any]) -> bytes:
        """Return the answer as it is sent. Raises ModelViolation."""
        text = json.dumps(answer)
        try:
            _message(self.answer).from_json(text, ignore_unknown_fields=False)
        except (ParseError, ValueError) as error:
            raise ModelViolation(f"{self.name}: {error}") from error
        return text.encode()


_ASSETS = {"regionDisks": "disks"}
_VERBS = {"insert": "create", "aggregatedList": "list"}
_HANDLERS: Mapping[str, Handler] = {
    "aggregatedList": reads.aggregated_list,
    "attachDisk": instances.attach_disk,
    "delete": disks.delete,
    "detachDisk": instances.detach_disk,
    "get": reads.get,
    "insert": disks.insert,
    "list": reads.list_some,
    "resize": disks.resize,
    "setLabels": disks.set_labels,
    "update": disks.update,
}


def _of_disks(service: str, scope: str, kind: str) -> list[Method]:
    base = f"projects/{{project}}/{scope}/disks"
    one = f"{base}/{{disk}}"
    labels = f"{base}/{{resource}}/setLabels"
    zone = kind.removesuffix("Disk") or "Zone"
    return [
        Method(f"{service}.insert", "POST", base, f"Insert{kind}Request", "Disk"),
        Method(f"{service}.list", "GET", base, f"List{kind}sRequest", "", "DiskList"),
        Method(f"{service}.get", "GET", one, f"Get{kind}Request", "", "Disk"),
        Method(f"{service}.delete", "DELETE", one, f"Delete{kind}Request"),
        Method(f"{service}.update", "PATCH", one, f"Update{kind}Request", "Disk"),
        Method(f"{service}.resize", "POST", f"{one}/resize", f"Resize{kind}Request", f"{kind}sResizeRequest"),
        Method(f"{service}.setLabels", "POST", labels, f"SetLabels{kind}Request", f"{zone}SetLabelsRequest"),
    ]


def _of_operations(service: str, scope: str, kind: str) -> list[Method]:
    base = f"projects/{{project}}/{scope}/operations"
    return [
        Method(f"{service}.list", "GET", base, f"List{kind}OperationsRequest", "", "OperationList"),
        Method(f"{service}.get", "GET", f"{base}/{{operation}}", f"Get{kind}OperationRequest"),
    ]


_PROJECT = "projects/{project}"
_ZONE = f"{_PROJECT}/zones/{{zone}}"
_VM = f"{_ZONE}/instances/{{instance}}"


def _of_snapshots(service: str, kind: str) -> list[Method]:
    base = f"{_PROJECT}/global/{service}"
    one = f"{base}/{{{kind.lower()}}}"
    return [
        Method(f"{service}.insert", "POST", base, f"Insert{kind}Request", kind),
        Method(f"{service}.list", "GET", base, f"List{kind}sRequest", "", f"{kind}List"),
        Method(f"{service}.get", "GET", one, f"Get{kind}Request", "", kind),
        Method(f"{service}.delete", "DELETE", one, f"Delete{kind}Request"),
    ]


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        *_of_disks("disks", "zones/{zone}", "Disk"),
        *_of_disks("regionDisks", "regions/{region}", "RegionDisk"),
        Method(
            "disks.aggregatedList",
            "GET",
            f"{_PROJECT}/aggregated/disks",
            "AggregatedListDisksRequest",
            "",
            "DiskAggregatedList",
        ),
        Method(
            "globalOperations.aggregatedList",
            "GET",
            f"{_PROJECT}/aggregated/operations",
            "AggregatedListGlobalOperationsRequest",
            "",
            "OperationAggregatedList",
        ),
        Method(
            "instances.aggregatedList",
            "GET",
            f"{_PROJECT}/aggregated/instances",
            "AggregatedListInstancesRequest",
            "",
            "InstanceAggregatedList",
        ),
        Method("instances.list", "GET", f"{_ZONE}/instances", "ListInstancesRequest", "", "InstanceList"),
        Method("instances.get", "GET", _VM, "GetInstanceRequest", "", "Instance"),
        Method("instances.attachDisk", "POST", f"{_VM}/attachDisk", "AttachDiskInstanceRequest", "AttachedDisk"),
        Method("instances.detachDisk", "POST", f"{_VM}/detachDisk", "DetachDiskInstanceRequest"),
        *_of_snapshots("snapshots", "Snapshot"),
        *_of_snapshots("images", "Image"),
        Method(
            "machineTypes.get",
            "GET",
            f"{_ZONE}/machineTypes/{{machineType}}",
            "GetMachineTypeRequest",
            "",
            "MachineType",
        ),
        Method("zones.list", "GET", f"{_PROJECT}/zones", "ListZonesRequest", "", "ZoneList"),
        *_of_operations("zoneOperations", "zones/{zone}", "Zone"),
        *_of_operations("regionOperations", "regions/{region}", "Region"),
        *_of_operations("globalOperations", "global", "Global"),
    )
}
_PATTERNS = [(method, method.pattern) for method in METHODS.values()]


def permissions_for(method: Method, body: Mapping[str, Any]) -> list[str]:
    """Return what a caller needs for this call (Compute Engine documentation, "IAM permissions for methods")."""
    needed = [method.permission]
    tagged = bool(body.get("params", {}).get("resourceManagerTags"))
    if method.name in ("snapshots.insert", "images.insert"):
        kind = method.name.partition(".")[0]
        needed.append("compute.disks.createSnapshot" if kind == "snapshots" else "compute.disks.useReadOnly")
        needed += [f"compute.{kind}.setLabels"] if body.get("labels") else []
        needed += [f"compute.{kind}.createTagBinding"] if tagged else []
    elif method.name.endswith(".insert"):
        needed += ["compute.disks.setLabels"] if body.get("labels") else []
        needed += ["compute.snapshots.useReadOnly"] if "sourceSnapshot" in body else []
        needed += ["compute.images.useReadOnly"] if "sourceImage" in body else []
        needed += ["compute.disks.useReadOnly"] if "sourceDisk" in body else []
        needed += ["compute.storagePools.use"] if "storagePool" in body else []
        needed += ["compute.disks.createTagBinding"] if tagged else []
    elif method.name == "instances.attachDisk":
        needed.append("compute.disks.useReadOnly" if body.get("mode") == "READ_ONLY" else "compute.disks.use")
    return needed


def parsed(verb: str, target: str, body: bytes) -> tuple[Method, dict[str, Any]]:
    """Return the method and the parameters of a request; its body is the parameter `body`. Raises ComputeError."""
    path, _, query = target.partition("?")
    relative = unquote(path.removeprefix(_PREFIX))
    for method, pattern in _PATTERNS:
        match = pattern.fullmatch(relative)
        if match is None or method.verb != verb or not path.startswith(_PREFIX):
            continue
        given: dict[str, Any] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name in _REPEATED:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise ComputeError("invalidParameter", f"Invalid value for '{name}': it is not repeated.")
            else:
                given[name] = value
        method.check_query(given)
        params: dict[str, Any] = {**given, **match.groupdict()}
        checked = method.checked_body(body)
        return method, {**params, "body": checked} if method.body else params
    raise not_found(relative)
