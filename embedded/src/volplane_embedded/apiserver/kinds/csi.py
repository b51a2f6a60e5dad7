"""CSIDrivers, CSINodes and CSIStorageCapacities (`pkg/registry/storage`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane.kube.quantity import parse
from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, path
from volplane_embedded.apiserver.kinds.validation import immutable, label_selector, named, one_of
from volplane_embedded.apiserver.kinds.volume_sources import driver_name
from volplane_embedded.apiserver.resources import Column, Json, Resource, Strategy

__all__ = ["CAPACITY", "DRIVER", "NODE", "CapacityStrategy", "DriverStrategy", "NodeStrategy"]

_NODE_ID_BYTES: Final = 256
_GROUP_POLICIES: Final = ("File", "None", "ReadWriteOnceWithFSType")
_LIFECYCLES: Final = ("Ephemeral", "Persistent")
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

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        driver_name(obj["metadata"].get("name", ""), "metadata.name", causes)
        _validate_driver(obj["spec"], causes)
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes: list[Cause] = []
        after, before = new["spec"], old["spec"]
        _validate_driver(after, causes)
        for key in ("attachRequired", "volumeLifecycleModes"):
            immutable(after.get(key), before.get(key), f"spec.{key}", causes)
        return causes


def _validate_driver(spec: Json, causes: list[Cause]) -> None:
    one_of(spec["fsGroupPolicy"], _GROUP_POLICIES, "spec.fsGroupPolicy", causes)
    for mode in spec["volumeLifecycleModes"]:
        one_of(mode, _LIFECYCLES, "spec.volumeLifecycleModes", causes)
    audiences: set[str] = set()
    for index, request in enumerate(spec.get("tokenRequests") or ()):
        where, audience = f"spec.tokenRequests[{index}]", request.get("audience") or ""
        if audience in audiences:
            causes.append(Cause.duplicate(f"{where}.audience", audience))
        audiences.add(audience)
        seconds = request.get("expirationSeconds")
        if seconds is not None and not _SHORTEST_TOKEN <= seconds <= _LONGEST_TOKEN:
            why = "may not specify a duration less than 10 minutes or larger than 1<<32 seconds"
            causes.append(Cause.invalid(f"{where}.expirationSeconds", seconds, why))


class NodeStrategy(Strategy):
    def default(self, obj: Json) -> None:
        obj.setdefault("spec", {}).setdefault("drivers", [])

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        seen: set[str] = set()
        for index, driver in enumerate(obj["spec"]["drivers"] or ()):
            where, name = f"spec.drivers[{index}]", driver.get("name") or ""
            driver_name(name, f"{where}.name", causes)
            if name in seen:
                causes.append(Cause.duplicate(f"{where}.name", name))
            seen.add(name)
            _validate_node_driver(driver, where, causes)
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(self.validate_create(new))
        before = {driver.get("name"): driver for driver in old["spec"].get("drivers") or ()}
        for index, driver in enumerate(new["spec"]["drivers"] or ()):
            known = before.get(driver.get("name"))
            if known is None:
                continue
            for key in ("nodeID", "topologyKeys"):
                immutable(driver.get(key), known.get(key), f"spec.drivers[{index}].{key}", causes)
        return causes


def _validate_node_driver(driver: Json, where: str, causes: list[Cause]) -> None:
    node = driver.get("nodeID") or ""
    if not node:
        causes.append(Cause.required(f"{where}.nodeID"))
    elif len(node) > _NODE_ID_BYTES:
        causes.append(Cause.invalid(f"{where}.nodeID", node, f"must be {_NODE_ID_BYTES} characters or less"))
    count = (driver.get("allocatable") or {}).get("count")
    if count is not None and count < 0:
        causes.append(Cause.invalid(f"{where}.allocatable.count", count, "must be greater than or equal to 0"))
    seen: set[str] = set()
    for key in driver.get("topologyKeys") or ():
        if not key:
            causes.append(Cause.required(f"{where}.topologyKeys"))
        elif why := names.qualified_name(key):
            causes.append(Cause.invalid(f"{where}.topologyKeys", key, why))
        if key in seen:
            causes.append(Cause.duplicate(f"{where}.topologyKeys", key))
        seen.add(key)


class CapacityStrategy(Strategy):
    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        if obj.get("storageClassName"):
            named(obj["storageClassName"], "storageClassName", causes)
        else:
            causes.append(Cause.required("storageClassName"))
        if obj.get("nodeTopology") is not None:
            label_selector(obj["nodeTopology"], "nodeTopology", causes)
        causes.extend(
            Cause.invalid(key, obj[key], "must be greater than or equal to 0")
            for key in ("capacity", "maximumVolumeSize")
            if obj.get(key) is not None and parse(obj[key]).nanos < 0
        )
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(self.validate_create(new))
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
    generation=True,
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
            "StorageClassName", "The storage class that the reported capacity applies to.", path("storageClassName")
        ),
        Column(
            "Capacity",
            "capacity is the value reported by the CSI driver in its GetCapacityResponse.",
            path("capacity", absent="<unset>"),
        ),
    ),
    unconditional_update=False,
)
