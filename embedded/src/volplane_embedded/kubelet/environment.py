"""The environment and arguments of a container. Pure.

Source: pkg/kubelet/kubelet_pods.go (makeEnvironmentVariables); core/v1 EnvVar, EnvFromSource; for
`$(NAME)` third_party/forked/golang/expansion.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from volplane.kube.objects import Secret
from volplane_embedded.kubelet.status import HOST
from volplane_embedded.objects import ConfigMap, Container, Pod

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^()]*)\))")
_ITEM: Final = re.compile(r"(metadata\.(?:labels|annotations))\['([^']*)'\]")


class Missing(Exception):
    """The pod refers to something that does not exist (yet) or is not supported. The message is worded as the
    kubelet's.
    """


@dataclass(slots=True)
class ConfigObjects:
    """ConfigMaps and Secrets of the pod's namespace, by name; None for one that does not exist."""

    config_maps: dict[str, ConfigMap | None] = field(default_factory=dict)
    secrets: dict[str, Secret | None] = field(default_factory=dict)

    def config_map(self, name: str, *, optional: bool) -> Mapping[str, bytes]:
        """Return its data. Raises Missing, unless it is optional."""
        found = self.config_maps.get(name)
        if found is None:
            if optional:
                return {}
            raise Missing(f'configmap "{name}" not found')
        plain = {key: value.encode() for key, value in (found.data or {}).items()}
        return {
            **plain,
            **{key: _decoded(value, f"configmap {name}") for key, value in (found.binary_data or {}).items()},
        }

    def secret(self, name: str, *, optional: bool) -> Mapping[str, bytes]:
        """Return its data. Raises Missing, unless it is optional."""
        found = self.secrets.get(name)
        if found is None:
            if optional:
                return {}
            raise Missing(f'secret "{name}" not found')
        return {key: _decoded(value, f"secret {name}") for key, value in (found.data or {}).items()}


def _decoded(text: str, whose: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Missing(f"{whose} holds a value that is not base64: {error}") from error


def config_references(container: Container) -> tuple[set[str], set[str]]:
    """Return the names of the ConfigMaps and of the Secrets that the environment is taken from."""
    maps: set[str] = set()
    secrets: set[str] = set()
    sources = [*(container.env_from or ()), *(var.value_from or {} for var in container.env or ())]
    for source in sources:
        for key, into in (
            ("configMapRef", maps),
            ("configMapKeyRef", maps),
            ("secretRef", secrets),
            ("secretKeyRef", secrets),
        ):
            if name := (source.get(key) or {}).get("name"):
                into.add(name)
    return maps, secrets


def make_environment(pod: Pod, container: Container, configuration: ConfigObjects) -> dict[str, str]:
    """Return all environment variables of a container. Raises Missing."""
    hostname = pod.spec.hostname or pod.name
    env = {"PATH": _PATH, "HOSTNAME": hostname, "HOME": "/tmp"}  # noqa: S108 - the only directory that it can write to
    for source in container.env_from or ():
        env |= _whole_source(source, configuration)
    for var in container.env or ():
        if var.value_from is None:
            env[var.name] = expand(var.value, env)
        elif (value := _value_from(pod, var.name, var.value_from, configuration)) is not None:
            env[var.name] = value
    return env


def _whole_source(source: Mapping[str, Any], configuration: ConfigObjects) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    data: Mapping[str, bytes] = {}
    if (reference := source.get("configMapRef")) is not None:
        data = configuration.config_map(reference.get("name", ""), optional=bool(reference.get("optional")))
    elif (reference := source.get("secretRef")) is not None:
        data = configuration.secret(reference.get("name", ""), optional=bool(reference.get("optional")))
    return {f"{prefix}{key}": _text(value) for key, value in data.items()}


def _value_from(pod: Pod, name: str, source: Mapping[str, Any], configuration: ConfigObjects) -> str | None:
    kinds: tuple[tuple[str, str, Callable[..., Mapping[str, bytes]]], ...] = (
        ("configMapKeyRef", "configmap", configuration.config_map),
        ("secretKeyRef", "secret", configuration.secret),
    )
    for key, kind, read in kinds:
        if (reference := source.get(key)) is not None:
            optional = bool(reference.get("optional"))
            data = read(reference.get("name", ""), optional=optional)
            value = data.get(reference.get("key", ""))
            if value is None and not optional:
                whose = f"{kind} {pod.namespace}/{reference.get('name')}"
                raise Missing(f"couldn't find key {reference.get('key')} in {whose}")
            return None if value is None else _text(value)
    if (reference := source.get("fieldRef")) is not None:
        return field_value(pod, reference.get("fieldPath", ""))
    given = ", ".join(source) or "nothing"
    raise Missing(f"the value of {name} is taken from {given}, which this node agent does not know")


def field_value(pod: Pod, path: str) -> str:
    """Return the value of a field of the downward API, by its path. Raises Missing."""
    meta, spec = pod.metadata, pod.spec
    plain = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "metadata.labels": _listed(meta.labels),
        "metadata.annotations": _listed(meta.annotations),
        "spec.nodeName": spec.node_name,
        "spec.serviceAccountName": spec.service_account_name,
        "status.hostIP": HOST,
        "status.hostIPs": HOST,
        "status.podIP": HOST,
        "status.podIPs": HOST,
    }
    if path in plain:
        return plain[path]
    if (match := _ITEM.fullmatch(path)) is not None:
        held = meta.labels if match[1] == "metadata.labels" else meta.annotations
        return (held or {}).get(match[2], "")
    raise Missing(f"field {path} cannot be had; one of {', '.join(sorted(plain))} can")


def _listed(items: Mapping[str, str] | None) -> str:
    return "\n".join(f'{key}="{value}"' for key, value in sorted((items or {}).items()))


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable, and `$$` by `$`. References to unset variables are kept."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return env.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def references(text: str) -> list[str]:
    """Return the names of the variables that `expand` would replace."""
    return [match[1] for match in _REFERENCE.finditer(text) if match[1] is not None]


def _text(value: bytes) -> str:
    """Decode a value and drop zero bytes, which a variable cannot hold."""
    return value.decode(errors="replace").replace("\0", "")
