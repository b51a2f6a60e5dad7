"""Admission plugins, with the names and effects of the stock server's (plugin/pkg/admission)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol

from volplane.kube.quantity import parse
from volplane_embedded.apiserver.errors import forbidden
from volplane_embedded.apiserver.kinds.persistentvolumeclaims import requested
from volplane_embedded.apiserver.kinds.persistentvolumes import BETA_CLASS
from volplane_embedded.apiserver.kinds.storageclasses import is_default
from volplane_embedded.apiserver.quota_admission import QUOTA_PLUGIN
from volplane_embedded.apiserver.resources import Json, Resource

_PROTECTION: Final = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
    "volumeattributesclasses": "kubernetes.io/vac-protection",
}
_NOT_READY: Final = "node.kubernetes.io/not-ready"
_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
_TOLERATION_SECONDS: Final = 300
_NO_RESIZE: Final = (
    "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
)


class Webhook(Protocol):
    """An admission webhook that stands in this process."""

    def __call__(self, resource: str, new: Json, old: Json | None) -> None:
        """Change `new` in place, or raise `errors.denied`. resource: plural, with `/status` for the subresource. old:
        None at creation.
        """


class Admission:
    """The enabled plugins. classes: returns all stored StorageClasses.

    Raises ValueError for a plugin to disable that is not one of `PLUGINS`.
    """

    def __init__(self, classes: Callable[[], Iterable[Json]], disabled: Collection[str] = ()) -> None:
        unknown = sorted(set(disabled) - set(PLUGINS))
        if unknown:
            raise ValueError(f"unknown admission plugin {', '.join(unknown)}: there are {', '.join(PLUGINS)}")
        self._classes = classes
        self._plugins = [plugin for name, plugin in _CHANGING.items() if name not in disabled]
        self._resize = _RESIZE not in disabled
        self.webhooks: list[Webhook] = []
        """Called in this order, after the plugins."""

    def admit(self, resource: Resource, new: Json, old: Json | None, subresource: str = "") -> None:
        """Change a defaulted object before it is validated. old: None at creation. Raises StatusError."""
        for plugin in self._plugins:
            plugin(self, resource, new, old)
        for webhook in self.webhooks:
            webhook(f"{resource.plural}/{subresource}" if subresource else resource.plural, new, old)

    def forbid_update(self, resource: Resource, new: Json, old: Json, subresource: str) -> str:
        """Explain why a valid update is refused with 403; "": it is not."""
        if not self._resize or subresource or resource.plural != "persistentvolumeclaims":
            return ""
        if new["spec"].get("resources") == old["spec"].get("resources"):
            return ""
        if parse(requested(new)) <= parse(requested(old)):
            return ""
        if old.get("status", {}).get("phase") != "Bound":
            return "Only bound persistent volume claims can be expanded"
        name = _class_of(new)
        if not name or name != _class_of(old):
            return _NO_RESIZE
        found = next((entry for entry in self._classes() if entry["metadata"].get("name") == name), None)
        return "" if found is not None and found.get("allowVolumeExpansion") else _NO_RESIZE

    def default_class(self, resource: Resource, new: Json, old: Json | None) -> None:
        """DefaultStorageClass: choose the newest default class, the first by name among equally new ones."""
        if resource.plural != "persistentvolumeclaims" or old is not None:
            return
        if new["spec"].get("storageClassName") is not None:
            return
        if BETA_CLASS in (new["metadata"].get("annotations") or {}):
            return
        defaults = sorted(
            (entry["metadata"] for entry in self._classes() if is_default(entry)), key=lambda meta: str(meta["name"])
        )
        if defaults:
            newest = max(defaults, key=lambda meta: str(meta.get("creationTimestamp", "")))
            new["spec"]["storageClassName"] = newest["name"]


def _class_of(claim: Json) -> str:
    annotations = claim["metadata"].get("annotations") or {}
    return str(annotations.get(BETA_CLASS) or claim["spec"].get("storageClassName") or "")


def _protect(_: Admission, resource: Resource, new: Json, old: Json | None) -> None:
    """StorageObjectInUseProtection."""
    finalizer = _PROTECTION.get(resource.plural)
    if finalizer is None or old is not None:
        return
    finalizers = new["metadata"].get("finalizers") or []
    if finalizer not in finalizers:
        new["metadata"]["finalizers"] = [*finalizers, finalizer]


def _taint(_: Admission, resource: Resource, new: Json, old: Json | None) -> None:
    """TaintNodesByCondition: a new node has the not-ready taint until a controller removes it."""
    if resource.plural != "nodes" or old is not None:
        return
    taints = new["spec"].get("taints") or []
    if not any(taint.get("key") == _NOT_READY and taint.get("effect") == "NoSchedule" for taint in taints):
        new["spec"]["taints"] = [*taints, {"key": _NOT_READY, "effect": "NoSchedule"}]


def _tolerate(_: Admission, resource: Resource, new: Json, _old: Json | None) -> None:
    """DefaultTolerationSeconds, for new and changed pods."""
    if resource.plural != "pods":
        return
    tolerations = new["spec"].get("tolerations") or []
    missing = [key for key in (_NOT_READY, _UNREACHABLE) if not any(_tolerates(entry, key) for entry in tolerations)]
    if missing:
        added = (
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS}
            for key in missing
        )
        new["spec"]["tolerations"] = [*tolerations, *added]


def _tolerates(toleration: Json, key: str) -> bool:
    return toleration.get("key") in {None, "", key} and toleration.get("effect") in {None, "", "NoExecute"}


def _prioritize(_: Admission, resource: Resource, new: Json, old: Json | None) -> None:
    """Priority, for a cluster without priority classes. A change that leaves it out keeps it."""
    if resource.plural != "pods":
        return
    asked = new["spec"].get("priority", 0)
    if old is None and asked:
        why = f"the integer value of priority ({asked}) must not be provided in pod spec; priority admission controller"
        why = f"{why} computed 0 from the given PriorityClass name"
        raise forbidden(resource.plural, resource.group, new["metadata"].get("name", ""), why)
    kept = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"} if old is None else old["spec"]
    for key in ("priority", "preemptionPolicy"):
        if key in kept:
            new["spec"].setdefault(key, kept[key])


_RESIZE: Final = "PersistentVolumeClaimResize"
_CHANGING: Final[dict[str, Callable[[Admission, Resource, Json, Json | None], None]]] = {
    "Priority": _prioritize,
    "DefaultTolerationSeconds": _tolerate,
    "DefaultStorageClass": Admission.default_class,
    "StorageObjectInUseProtection": _protect,
    "TaintNodesByCondition": _taint,
}
PLUGINS: Final = tuple(sorted((*_CHANGING, _RESIZE, QUOTA_PLUGIN)))
"""Names as the stock flag `--disable-admission-plugins` spells them."""
