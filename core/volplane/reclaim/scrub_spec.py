"""Whether the spec of a scrubber pod is still the one it was made with. Pure.

The API server and its admission plugins fill in fields; a webhook may add anything. Fields that only say where, when
and how long a pod runs may differ. What runs, with which rights and on what, may not: an added container would see the
contents of a volume, and a changed command could report success while the contents are still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["spec_difference"]

_FILLED_IN: Final = {
    "spec": frozenset(
        {
            "dnsConfig",
            "dnsPolicy",
            "enableServiceLinks",
            "imagePullSecrets",
            "nodeName",
            "nodeSelector",
            "os",
            "overhead",
            "preemptionPolicy",
            "priority",
            "priorityClassName",
            "resources",
            "runtimeClassName",
            "schedulerName",
            "schedulingGates",
            "serviceAccount",
            "serviceAccountName",
            "terminationGracePeriodSeconds",
            "tolerations",
            "topologySpreadConstraints",
        }
    ),
    "container": frozenset({"imagePullPolicy", "resources", "terminationMessagePath", "terminationMessagePolicy"}),
}
"""Fields that may differ, or be filled in. Every other field counts, also those that Kubernetes will add."""
_DEMANDED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
"""The part of the node affinity that counts; preferences only choose among those nodes."""
_DEFAULTS: Final[Mapping[str, object]] = {
    "apiVersion": "v1",
    "defaultMode": 420,
    "expirationSeconds": 3600,
    "hostIPC": False,
    "hostNetwork": False,
    "hostPID": False,
    "readOnly": False,
    "stdin": False,
    "stdinOnce": False,
    "tty": False,
}
"""Values that mean the same as their absence, in any place."""


def spec_difference(made: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    """Return what of the live spec differs from what was made, in words; "" if nothing relevant does."""
    return (
        _lists_differ("volume", made, live, "volumes")
        or _lists_differ("container", made, live, "containers")
        or _lists_differ("init container", made, live, "initContainers")
        or _lists_differ("ephemeral container", made, live, "ephemeralContainers")
        or _fields_differ("spec", _without_lists(made), _without_lists(live))
    )


def _without_lists(spec: Mapping[str, Any]) -> dict[str, Any]:
    left = {key: value for key, value in spec.items() if key not in _LISTS}
    nodes = (left.pop("affinity", None) or {}).get("nodeAffinity") or {}
    return {**left, "nodeAffinity": nodes.get(_DEMANDED)}


_LISTS: Final = frozenset({"containers", "volumes", "initContainers", "ephemeralContainers"})


def _lists_differ(what: str, made: Mapping[str, Any], live: Mapping[str, Any], key: str) -> str:
    """Return what was added to, removed from or changed in a list of named items."""
    ours, theirs = ({str(item.get("name")): item for item in spec.get(key) or ()} for spec in (made, live))
    if added := sorted(theirs.keys() - ours.keys()):
        return f"{what} {added[0]!r} was added"
    if removed := sorted(ours.keys() - theirs.keys()):
        return f"{what} {removed[0]!r} was removed"
    if len(theirs) != len(live.get(key) or ()):
        return f"{what}s of one name were added"
    where = "container" if what.endswith("container") else what
    for name, item in ours.items():
        if difference := _fields_differ(where, item, theirs[name]):
            return f"{difference} of {what} {name!r}"
    return ""


def _fields_differ(where: str, made: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    ours, theirs = _plain(made), _plain(live)
    for key in sorted((ours.keys() | theirs.keys()) - _FILLED_IN.get(where, frozenset())):
        if ours.get(key) != theirs.get(key):
            how = "changed" if key in ours and key in theirs else "added" if key in theirs else "removed"
            return f"{key} was {how}" if where == "spec" else f"{key} {how}"
    return ""


def _plain(value: Any) -> Any:
    """Return the value without nulls, empty texts, lists and mappings, and defaults of the API."""
    if isinstance(value, Mapping):
        parts = {key: _plain(item) for key, item in value.items()}
        return {key: item for key, item in parts.items() if not _is_default(key, item)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _is_default(key: str, value: Any) -> bool:
    return value is None or value in ({}, [], "") or (key in _DEFAULTS and value == _DEFAULTS[key])
