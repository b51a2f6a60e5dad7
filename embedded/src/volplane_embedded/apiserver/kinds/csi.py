"""CSIDrivers, CSINodes and CSIStorageCapacities (`pkg/registry/storage`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, path
from volplane_embedded.apiserver.kinds.validation import (
    canonical_amounts,
    immutable,
    label_selector,
    named,
    nonnegative_quantity,
    one_of,
    refused,
)
from volplane_embedded.apiserver.kinds.volume_sources import driver_name
from volplane_embedded.apiserver.resources import Column, Json, Resource, Strategy

_NODE_ID_BYTES: Final = 256
_GROUP_POLICIES: Final = ("File", "None", "ReadWriteOnceWithFSType")
_LIFECYCLES: Final = ("Ephemeral", "Persistent")
_SHORTEST_UPDATE: Final = 10
_SHORTEST_TOKEN: Final = 600
_LONGEST_TOKEN: Final = 2**32


class DriverStrategy(Strategy):
    def default(self, obj: Json) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("attachRequired", True)
        for key in ("podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"):
            spec.setdefault(key, False)
        spec.setdefault("fsGroupPolicy", "ReadWriteOnceWithFSType")
        if not spec.get("volumeLifecycleModes"):
            spec["volumeLifecycleModes"] = ["Persistent"]

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        if new["spec"] != old["spec"]:
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        return [*object_meta.validate_of_kind(obj["metadata"]), *_validate_driver(obj["spec"])]

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
        after, before = new["spec"], old["spec"]
        causes.extend(_validate_driver(after))
        immutable(after.get("attachRequired"), before.get("attachRequired"), "spec.attachedRequired", causes)
        modes = "volumeLifecycleModes"
        immutable(after.get(modes), before.get(modes), f"spec.{modes}", causes)
        return causes


def _validate_driver(spec: Json) -> list[Cause]:
    causes: list[Cause] = []
    one_of(spec["fsGroupPolicy"], _GROUP_POLICIES, "spec.fsGroupPolicy", causes)
    _validate_token_requests(spec.get("tokenRequests") or (), causes)
    for mode in spec["volumeLifecycleModes"]:
        one_of(mode, _LIFECYCLES, "spec.volumeLifecycleModes", causes)
    period = spec.get("nodeAllocatableUpdatePeriodSeconds")
    if period is not None and period < _SHORTEST_UPDATE:
        why = f"must be greater than or equal to {_SHORTEST_UPDATE} seconds"
        causes.append(Cause.invalid("spec.nodeAllocatableUpdatePeriodSeconds", period, why))
    in_secrets = spec.get("serviceAccountTokenInSecrets")
    if in_secrets is not None and not spec.get("tokenRequests"):
        why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified"
        causes.append(Cause.invalid("spec.serviceAccountTokenInSecrets", in_secrets, why))
    return causes


def _validate_token_requests(requests: Sequence[Json], causes: list[Cause]) -> None:
    audiences: set[str] = set()
    for index, request in enumerate(requests):
        where, audience = f"spec.tokenRequests[{index}]", request.get("audience") or ""
        if audience in audiences:
            causes.append(Cause.duplicate(f"{where}.audience", audience))
            continue
        audiences.add(audience)
        seconds = request.get("expirationSeconds")
        if seconds is None:
            continue
        if seconds < _SHORTEST_TOKEN:
            why = "may not specify a duration less than 10 minutes"
            causes.append(Cause.invalid(f"{where}.expirationSeconds", seconds, why))
        if seconds > _LONGEST_TOKEN:
            why = "may not specify a duration larger than 2^32 seconds"
            causes.append(Cause.invalid(f"{where}.expirationSeconds", seconds, why))


class NodeStrategy(Strategy):
    def default(self, obj: Json) -> None:
        obj.setdefault("spec", {}).setdefault("drivers", None)

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes = list(object_meta.validate_of_kind(obj["metadata"]))
        seen: set[str] = set()
        for index, driver in enumerate(obj["spec"]["drivers"] or ()):
            _validate_node_driver(driver, seen, f"spec.drivers[{index}]", causes)
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(self.validate_create(new))
        for before in old["spec"].get("drivers") or ():
            for after in new["spec"]["drivers"] or ():
                if before.get("name") == after.get("name"):
                    immutable(_fixed(after), _fixed(before), "spec.drivers", causes)
        return causes


def _fixed(driver: Json) -> Json:
    """Return the parts of a node's driver that may not change."""
    return {key: value for key, value in driver.items() if key != "allocatable" and value}


def _validate_node_driver(driver: Json, seen: set[str], where: str, causes: list[Cause]) -> None:
    name, node = driver.get("name") or "", driver.get("nodeID") or ""
    driver_name(name, f"{where}.name", causes)
    if not node:
        causes.append(Cause.required(f"{where}.nodeID"))
    elif len(node) > _NODE_ID_BYTES:
        causes.append(Cause.invalid(f"{where}.nodeID", node, f"must be {_NODE_ID_BYTES} characters or less"))
    count = (driver.get("allocatable") or {}).get("count")
    if count is not None and count < 0:
        causes.append(Cause.invalid(f"{where}.allocatable.count", count, "must be greater than or equal to 0"))
    if name in seen:
        causes.append(Cause.duplicate(f"{where}.name", name))
    seen.add(name)
    keys: set[str] = set()
    for key in driver.get("topologyKeys") or ():
        if not key:
            causes.append(Cause.required(where))
        if key in keys:
            causes.append(Cause.duplicate(where, key))
        keys.add(key)
        refused(names.qualified_name(key), key, where, causes)


class CapacityStrategy(Strategy):
    def default(self, obj: Json) -> None:
        canonical_amounts(obj, "capacity", "maximumVolumeSize")

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes = list(object_meta.validate_of_kind(obj["metadata"]))
        if obj.get("nodeTopology") is not None:
            label_selector(obj["nodeTopology"], "nodeTopology", causes)
        named(obj.get("storageClassName") or "", "storageClassName", causes)
        if obj.get("capacity") is not None:
            nonnegative_quantity(obj["capacity"], "capacity", causes)
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = [*self.validate_create(new), *object_meta.validate_update_of_kind(new["metadata"], old["metadata"])]
        for key in ("nodeTopology", "storageClassName"):
            immutable(new.get(key), old.get(key), key, causes)
        return causes


def _audiences(driver: Json) -> str:
    requests = driver["spec"].get("tokenRequests")
    return ",".join(request.get("audience") or "" for request in requests) if requests else "<unset>"


def _modes(driver: Json) -> str:
    return ",".join(driver["spec"].get("volumeLifecycleModes") or ()) or "<none>"


def _flag(name: str, key: str, description: str, *, absent: bool = False) -> Column:
    return Column(name, description, path("spec", key, absent=absent), type="boolean")


DRIVER: Final = Resource(
    group="storage.k8s.io",
    version="v1",
    plural="csidrivers",
    kind="CSIDriver",
    singular="csidriver",
    namespaced=False,
    strategy=DriverStrategy(),
    columns=(
        NAME,
        _flag(
            "AttachRequired",
            "attachRequired",
            "attachRequired indicates this CSI volume driver requires an attach operation.",
            absent=True,
        ),
        _flag(
            "PodInfoOnMount",
            "podInfoOnMount",
            "podInfoOnMount indicates this CSI volume driver requires additional pod information during mount.",
        ),
        _flag(
            "StorageCapacity",
            "storageCapacity",
            "storageCapacity indicates that the CSI volume driver publishes CSIStorageCapacity objects.",
        ),
        Column(
            "TokenRequests",
            "tokenRequests indicates the CSI driver needs service account tokens it is mounting volume for.",
            _audiences,
        ),
        _flag(
            "RequiresRepublish",
            "requiresRepublish",
            "requiresRepublish indicates the CSI driver wants NodePublishVolume being periodically called.",
        ),
        Column("Modes", "volumeLifecycleModes defines what kind of volumes this CSI volume driver supports.", _modes),
        AGE,
    ),
    unconditional_update=False,
)

NODE: Final = Resource(
    group="storage.k8s.io",
    version="v1",
    plural="csinodes",
    kind="CSINode",
    singular="csinode",
    namespaced=False,
    strategy=NodeStrategy(),
    columns=(
        NAME,
        Column(
            "Drivers",
            "Drivers indicates the number of CSI drivers registered on the node",
            lambda node: len(node["spec"].get("drivers") or ()),
            type="integer",
        ),
        AGE,
    ),
    unconditional_update=False,
)

CAPACITY: Final = Resource(
    group="storage.k8s.io",
    version="v1",
    plural="csistoragecapacities",
    kind="CSIStorageCapacity",
    singular="csistoragecapacity",
    namespaced=True,
    strategy=CapacityStrategy(),
    columns=(
        NAME,
        Column(
            "Created At",
            AGE.description,
            path("metadata", "creationTimestamp"),
            type="date",
        ),
    ),
    unconditional_update=False,
)
