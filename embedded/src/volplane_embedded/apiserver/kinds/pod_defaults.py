"""Defaults of pods (`pkg/apis/core/v1/defaults.go`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from volplane.kube.quantity import parse
from volplane_embedded.apiserver.kinds import volume_sources
from volplane_embedded.apiserver.kinds.persistentvolumeclaims import default_spec
from volplane_embedded.apiserver.kinds.validation import canonical_amounts, canonical_resources, fill_condition_times
from volplane_embedded.apiserver.resources import Json

CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE: Final = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_FILE_MODE: Final = 0o644


def containers(spec: Json, *lists: str) -> Iterator[tuple[str, Json]]:
    """Return the containers of the named lists (default: all) with their paths below spec."""
    for name in lists or CONTAINER_LISTS:
        for index, container in enumerate(spec.get(name) or ()):
            yield f"{name}[{index}]", container


def default(pod: Json) -> None:
    default_template(pod)
    spec = pod["spec"]
    spec.setdefault("enableServiceLinks", True)
    for _, container in containers(spec):
        _default_requests(container["resources"])
    status = pod.setdefault("status", {})
    status.setdefault("phase", "Pending")
    for single, several in (("podIP", "podIPs"), ("hostIP", "hostIPs")):
        _pair(status, single, several)
    fill_condition_times(status, "lastProbeTime", "lastTransitionTime")


def default_template(template: Json) -> None:
    """Set the defaults of a pod that a template of pods has too."""
    spec = template.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    if spec.setdefault("terminationGracePeriodSeconds", 30) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
        term.setdefault("preference", {})
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for _, container in containers(spec):
        _default_container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _default_volume(volume)
    canonical_resources(spec, "overhead")
    canonical_resources(spec.get("resources") or {}, "requests", "limits")


def _pair(status: Json, single: str, several: str) -> None:
    """Make an old field with one address and a new one with several agree; the old one wins."""
    first = status.get(single)
    if first and (status.get(several) or [{}])[0].get("ip") != first:
        status[several] = [{"ip": first}]
    elif status.get(several) and not first:
        status[single] = status[several][0].get("ip", "")


def _default_container(container: Json, *, host_network: bool) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = "Always" if _is_latest(container.get("image") or "") else "IfNotPresent"
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network:
            port.setdefault("hostPort", port.get("containerPort"))
    for probe in _PROBES:
        if (found := container.get(probe)) is not None:
            _default_probe(found)
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict):
            _default_handler(hook)
    for variable in container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")
    canonical_resources(container["resources"], "requests", "limits")


def _default_requests(resources: Json) -> None:
    limits = resources.get("limits")
    if limits:
        resources["requests"] = {**limits, **(resources.get("requests") or {})}


def _default_probe(probe: Json) -> None:
    for key, value in _PROBE.items():
        if not probe.get(key):
            probe[key] = value
    _default_handler(probe)


def _default_handler(handler: Json) -> None:
    request = handler.get("httpGet")
    if request is not None:
        request.setdefault("path", "/")
        request.setdefault("scheme", "HTTP")
    if (grpc := handler.get("grpc")) is not None:
        grpc.setdefault("service", "")


def _default_volume(volume: Json) -> None:
    if not any(key != "name" for key in volume):
        volume["emptyDir"] = {}
    volume_sources.default(volume)
    for key in ("secret", "configMap", "projected", "downwardAPI"):
        if (source := volume.get(key)) is not None:
            source.setdefault("defaultMode", _FILE_MODE)
            for item in source.get("items") or ():
                _default_field_reference(item)
    for source in (volume.get("projected") or {}).get("sources") or ():
        if (token := source.get("serviceAccountToken")) is not None:
            token.setdefault("expirationSeconds", 3600)
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            _default_field_reference(item)
    if (scratch := volume.get("emptyDir")) is not None:
        canonical_amounts(scratch, "sizeLimit")
    template: Any = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
    if template is not None:
        template.setdefault("metadata", {})
        default_spec(template.setdefault("spec", {}))


def _default_field_reference(item: Json) -> None:
    if (reference := item.get("fieldRef")) is not None:
        reference.setdefault("apiVersion", "v1")


def _is_latest(image: str) -> bool:
    name = image.split("@", 1)
    if len(name) > 1:
        return False
    _, colon, tag = name[0].rpartition("/")[2].partition(":")
    return not colon or tag == "latest"


def qos_class(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort, from the cpu and memory of the containers."""
    guaranteed, asked = True, False
    for _, container in containers(spec, "initContainers", "containers"):
        resources = container.get("resources") or {}
        requests, limits = _compute(resources.get("requests")), _compute(resources.get("limits"))
        asked = asked or bool(requests or limits)
        guaranteed = guaranteed and set(limits) == {"cpu", "memory"} and requests == limits
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _compute(amounts: Json | None) -> dict[str, int]:
    return {key: parse(amount).nanos for key, amount in (amounts or {}).items() if key in {"cpu", "memory"} and amount}
