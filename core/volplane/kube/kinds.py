"""The kinds that volplane talks about: where they live in the API and which struct they decode to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from volplane.kube import objects

T = TypeVar("T", bound=objects.KubeObject)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A resource of the API and the struct its objects decode to."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    struct: type[T]
    optional: bool = False
    """A cluster may lack it: it is defined by a CustomResourceDefinition."""
    whole: bool = False
    """All of a namespace are read together, as one object; its key is the namespace and a slash."""
    prefix: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        group = "apis" if "/" in self.api_version else "api"
        object.__setattr__(self, "prefix", f"/{group}/{self.api_version}")

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Path of the collection (of one namespace, or of all), an object or a subresource."""
        place = f"{self.prefix}/namespaces/{namespace}" if namespace and self.namespaced else self.prefix
        path = f"{place}/{self.plural}/{name}" if name else f"{place}/{self.plural}"
        return f"{path}/{subresource}" if subresource else path

    def path_of(self, key: str, subresource: str = "") -> str:
        """Path of the object with this cache key (`namespace/name` or `name`)."""
        namespace, _, name = key.rpartition("/")
        return self.path(namespace, name, subresource)

    def body(self, **fields: Any) -> dict[str, Any]:
        return {"apiVersion": self.api_version, "kind": self.kind, **fields}


VOLUMES = Kind("v1", "PersistentVolume", "persistentvolumes", False, objects.Volume)
CLAIMS = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, objects.Claim)
PODS = Kind("v1", "Pod", "pods", True, objects.Pod)
WHOLE_PODS = Kind("v1", "Pod", "pods", True, objects.WholePod)
NODES = Kind("v1", "Node", "nodes", False, objects.Node)
NAMESPACES = Kind("v1", "Namespace", "namespaces", False, objects.KubeObject)
SECRETS = Kind("v1", "Secret", "secrets", True, objects.Secret)
STORAGE_CLASSES = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", False, objects.StorageClass)
VOLUME_ATTRIBUTES_CLASSES = Kind(
    "storage.k8s.io/v1", "VolumeAttributesClass", "volumeattributesclasses", False, objects.VolumeAttributesClass
)
CSI_NODES = Kind("storage.k8s.io/v1", "CSINode", "csinodes", False, objects.KubeObject)
CSI_DRIVERS = Kind("storage.k8s.io/v1", "CSIDriver", "csidrivers", False, objects.CsiDriver)
CAPACITIES = Kind("storage.k8s.io/v1", "CSIStorageCapacity", "csistoragecapacities", True, objects.CsiStorageCapacity)
ATTACHMENTS = Kind("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", False, objects.VolumeAttachment)
LEASES = Kind("coordination.k8s.io/v1", "Lease", "leases", True, objects.Lease)
