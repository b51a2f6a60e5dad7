"""Tells what an operator may change of the scrubber pod: what is harmless, weakens its sandbox, or is refused. Pure.

The template has the shape of a pod: `metadata.labels`, `metadata.annotations`, `spec` and in it at most one container.
A field that is not known here counts as weakening: what Kubernetes adds later is refused until it is listed here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

from volplane._messages import nearest

__all__ = ["ADDED_CAPABILITIES", "CONTAINER", "VOLUME", "overlaid", "template_flaws"]

CONTAINER: Final = "scrub"
VOLUME: Final = "volume"
"""Name of the volume that is erased, in the pod."""
ADDED_CAPABILITIES: Final = ("DAC_OVERRIDE", "FOWNER")
"""Without these two, uid 0 in the pod cannot remove what belongs to other users."""

_ELSEWHERE: Final = {
    "spec.tolerations": "scrubber.tolerations",
    "container.image": "scrubber.image",
    "container.command": "scrubber.command",
    "container.resources": "scrubber.resources",
}
_OURS: Final = {
    "spec": ("activeDeadlineSeconds", "affinity", "nodeName", "restartPolicy", "schedulingGates"),
    "container": ("livenessProbe", "name", "readinessProbe", "restartPolicy", "startupProbe", "stdin", "tty"),
}
"""With others than ours, a scrub cannot be trusted to be the right one, or to end."""
_HARMLESS: Final = {
    "spec": (
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "imagePullSecrets",
        "nodeSelector",
        "preemptionPolicy",
        "priorityClassName",
        "runtimeClassName",
        "schedulerName",
        "terminationGracePeriodSeconds",
    ),
    "container": ("args", "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy", "workingDir"),
    "securityContext": (
        "fsGroup",
        "fsGroupChangePolicy",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "seLinuxOptions",
        "supplementalGroups",
    ),
}
_SAFE_VALUES: Final[Mapping[str, tuple[object, ...]]] = {
    "spec.automountServiceAccountToken": (False,),
    "spec.hostIPC": (False,),
    "spec.hostNetwork": (False,),
    "spec.hostPID": (False,),
    "spec.hostUsers": (False,),
    "spec.shareProcessNamespace": (False,),
    "securityContext.allowPrivilegeEscalation": (False,),
    "securityContext.privileged": (False,),
    "securityContext.procMount": ("Default",),
    "securityContext.readOnlyRootFilesystem": (True,),
}
_LISTS: Final = ("volumes", "volumeMounts")
"""Lists that are appended to ours; everything else replaces ours."""


def template_flaws(template: Mapping[str, Any], *, allow_unsafe: bool) -> Iterator[str]:
    """Yield the reasons for which the template cannot be used, each as `path: reason`."""
    for key in template:
        if key not in ("metadata", "spec"):
            yield f"{key}: unknown key{nearest(key, ('metadata', 'spec'))}"
    yield from _metadata_flaws(_mapping(template, "metadata"))
    spec = _mapping(template, "spec")
    containers = spec.get("containers", [])
    if not isinstance(containers, list) or len(containers) > 1 or not all(isinstance(c, Mapping) for c in containers):
        yield "spec.containers: expected a list with at most one container, which is laid over ours"
        return
    yield from _shape_flaws(template, spec)
    for where, path, part in _parts(spec):
        for key in part:
            if other := _ELSEWHERE.get(f"{where}.{key}"):
                yield f"{path}.{key}: has a key of its own, {other}"
            elif key in _OURS.get(where, ()) and not (where == "container" and part[key] == CONTAINER):
                yield f"{path}.{key}: is volplane's own; a scrub could not be trusted with another"
    yield from _list_flaws(spec)
    if not allow_unsafe:
        yield from (f"{weak}; refused unless scrubber.allowUnsafe is true" for weak in _weakenings(spec))


def _shape_flaws(template: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    """Report what is no mapping where one is needed: null or anything else would replace all of ours."""
    places: list[tuple[str, Mapping[str, Any], str]] = [("", template, "metadata"), ("", template, "spec")]
    for where, path, part in _parts(spec):
        places.append((f"{path}.", part, "capabilities" if where == "securityContext" else "securityContext"))
    for path, parent, key in places:
        if key in parent and not isinstance(parent[key], Mapping):
            yield f"{path}{key}: is {parent[key]!r}, expected a mapping"


def _metadata_flaws(metadata: Mapping[str, Any]) -> Iterator[str]:
    for key, value in metadata.items():
        if key not in ("labels", "annotations"):
            yield f"metadata.{key}: only labels and annotations can be added"
        elif not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
            yield f"metadata.{key}: expected a mapping of texts; quote them"
        else:
            yield from (f"metadata.{key}.{name}: is volplane's own" for name in value if "volplane" in str(name))


def _list_flaws(spec: Mapping[str, Any]) -> Iterator[str]:
    mounts = next((container.get("volumeMounts") for container in spec.get("containers", [])), None)
    for path, items in (("spec.volumes", spec.get("volumes")), ("spec.containers[0].volumeMounts", mounts)):
        if items is None:
            continue
        if not isinstance(items, list) or not all(isinstance(item, Mapping) and item.get("name") for item in items):
            yield f"{path}: expected a list of mappings, each with a name"
        elif any(item["name"] == VOLUME for item in items):
            yield f"{path}: {VOLUME!r} is the volume that is erased; choose another name"


def _weakenings(spec: Mapping[str, Any]) -> Iterator[str]:
    """Report every field that gives the scrubber more than it has without the template."""
    for where, path, part in _parts(spec):
        for key, value in part.items():
            full = f"{where}.{key}"
            ours = key in _OURS.get(where, ()) or full in _ELSEWHERE
            if ours or key in _HARMLESS[where] or key in ("containers", "securityContext"):
                continue
            if full in _SAFE_VALUES:
                if value not in _SAFE_VALUES[full]:
                    yield f"{path}.{key}: is {value!r}, which weakens the sandbox"
            elif key == "capabilities":
                yield from _capabilities(f"{path}.{key}", value)
            elif key == "seccompProfile":
                if not isinstance(value, Mapping) or value.get("type") not in ("RuntimeDefault", "Localhost"):
                    yield f"{path}.{key}: is {value!r}, which weakens the sandbox"
            elif full == "container.env":
                yield from _environment(f"{path}.{key}", value)
            else:
                yield f"{path}.{key}: reaches beyond the sandbox"


def _capabilities(path: str, value: Any) -> Iterator[str]:
    value = value if isinstance(value, Mapping) else {}
    extra = sorted({*map(str, value.get("add") or ())} - {*ADDED_CAPABILITIES})
    if extra:
        yield f"{path}.add: {', '.join(extra)} weakens the sandbox"
    if "drop" in value and value["drop"] != ["ALL"]:
        yield f"{path}.drop: is {value['drop']!r}, which weakens the sandbox; ALL are dropped"


def _environment(path: str, value: Any) -> Iterator[str]:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(item, Mapping) or "valueFrom" in item:
            yield f"{path}[{index}]: takes its value from elsewhere, which may be a secret"


def _parts(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (kind, path, fields) of the spec, its container and the security contexts of both."""
    yield "spec", "spec", spec
    yield "securityContext", "spec.securityContext", _mapping(spec, "securityContext")
    for container in spec.get("containers") or ():
        yield "container", "spec.containers[0]", container
        yield "securityContext", "spec.containers[0].securityContext", _mapping(container, "securityContext")


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}


def overlaid(body: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod with a template without flaws laid over it."""
    spec = dict(_mapping(template, "spec"))
    container: Mapping[str, Any] = next(iter(spec.pop("containers", ())), {})
    [ours] = body["spec"]["containers"]
    merged = _merged(body, {"metadata": template.get("metadata") or {}, "spec": spec})
    merged["spec"]["containers"] = [_merged(ours, container)]
    return merged


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(ours))
    for key, value in theirs.items():
        mine = result.get(key)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            result[key] = _merged(mine, value)
        elif key in _LISTS and isinstance(mine, list):
            result[key] = [*mine, *value]
        else:
            result[key] = copy.deepcopy(value)
    return result
