"""Parameters of classes: those that sidecars read themselves, and those for the driver.

Source: kubernetes-csi/external-provisioner, pkg/controller/controller.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from volplane import InvalidArgument, ProvisionRequest

__all__ = ["PREFIX", "ClassParameters", "SecretRef", "for_driver", "read_class"]

PREFIX: Final = "csi.storage.k8s.io/"
"""Begins the parameters that the driver does not get."""
FSTYPE: Final = f"{PREFIX}fstype"
_SOURCE_FIELDS: Final = {
    "controller-publish-secret": "controllerPublishSecretRef",
    "node-stage-secret": "nodeStageSecretRef",
    "node-publish-secret": "nodePublishSecretRef",
    "controller-expand-secret": "controllerExpandSecretRef",
    "node-expand-secret": "nodeExpandSecretRef",
}
"""Role of a secret, as classes name it -> the field of `spec.csi` of volumes."""
_ANNOTATIONS: Final = {
    "provisioner-secret": "volume.kubernetes.io/provisioner-deletion-secret",
    "controller-modify-secret": "volume.kubernetes.io/controller-modify-secret",
}
"""Role -> the beginning of the annotations on volumes."""
_OLD: Final = {
    "provisioner-secret": "csiProvisionerSecret",
    "controller-publish-secret": "csiControllerPublishSecret",
    "node-stage-secret": "csiNodeStageSecret",
    "node-publish-secret": "csiNodePublishSecret",
}
"""Role -> the beginning of keys that old classes have; the driver gets them, too."""
_ROLES: Final = (*_ANNOTATIONS, *_SOURCE_FIELDS)
_DEFAULT: Final = "secret"
_OF_CONTROLLER: Final = tuple(role for role in _ROLES if not role.startswith("node"))
_TOKEN: Final = re.compile(r"\$\{([^}]*)\}|\$(\w+)|\$")
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Where a Secret is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClassParameters:
    """What a class says, for one claim."""

    parameters: Mapping[str, str]
    """For the driver."""
    fs_type: str
    """As given; "" = not at all."""
    secrets: Mapping[str, SecretRef]
    """Role -> Secret."""

    @property
    def source_fields(self) -> dict[str, dict[str, str]]:
        """Return the references in `spec.csi` of the volume."""
        found = {field: self.secrets.get(role) for role, field in _SOURCE_FIELDS.items()}
        return {key: {"name": ref.name, "namespace": ref.namespace} for key, ref in found.items() if ref is not None}

    @property
    def annotations(self) -> dict[str, str]:
        """Return the annotations of the volume by which sidecars find the secrets of later calls."""
        found: dict[str, str] = {}
        for role, key in _ANNOTATIONS.items():
            ref = self.secrets.get(role)
            if ref is not None or role == "provisioner-secret":
                found[f"{key}-name"] = ref.name if ref is not None else ""
                found[f"{key}-namespace"] = ref.namespace if ref is not None else ""
        return found

    def refuse_others(self, known: str) -> None:
        """Raise InvalidArgument if the driver is to be called with another Secret than `known` ("" = any)."""
        for role in _OF_CONTROLLER:
            ref = self.secrets.get(role)
            if ref is not None and str(ref) != known:
                raise InvalidArgument(
                    f"{PREFIX}{role}-name: the class names Secret {ref}, and controllers call the driver with "
                    f"{f'Secret {known}' if known else 'none'}: set the option controller_secret to secret:{ref}/*"
                )


def for_driver(given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that a driver gets. Raises InvalidArgument for an unknown one of sidecars."""
    known = {FSTYPE, *(f"{PREFIX}{role}-{part}" for role in (*_ROLES, _DEFAULT) for part in ("name", "namespace"))}
    if unknown := sorted(key for key in given if key.startswith(PREFIX) and key not in known):
        raise InvalidArgument(f"parameter {unknown[0]!r}: no such key begins with {PREFIX}")
    return {key: value for key, value in given.items() if not key.startswith(PREFIX)}


def read_class(given: Mapping[str, str], request: ProvisionRequest) -> ClassParameters:
    """Return what the class says for the claim of the request. Raises InvalidArgument."""
    kinds = [value for key, value in given.items() if key == FSTYPE or key.lower() == "fstype"]
    if len(kinds) > 1:
        raise InvalidArgument(f"parameter fstype is given twice, also as {FSTYPE}")
    refs = {role: _ref(role, given, request) for role in _ROLES}
    return ClassParameters(
        for_driver(given), kinds[0] if kinds else "", {role: ref for role, ref in refs.items() if ref is not None}
    )


def _ref(role: str, given: Mapping[str, str], request: ProvisionRequest) -> SecretRef | None:
    templates = _templates(role, given) or _templates(_DEFAULT, given)
    if templates is None:
        return None
    name, namespace = templates
    claim = request.claim
    values = {"pv.name": request.name, "pvc.namespace": claim.namespace}
    # Only the operator chooses a namespace: names and annotations of claims are their tenants'.
    space = _expanded(namespace, values, f"{role}-namespace")
    values |= {"pvc.name": claim.name}
    values |= {f"pvc.annotations['{key}']": value for key, value in claim.annotations.items()}
    ref = SecretRef(space, _expanded(name, values, f"{role}-name"))
    if not _LABEL.fullmatch(ref.namespace):
        raise InvalidArgument(f"{PREFIX}{role}-namespace: {namespace!r} gives {ref.namespace!r}, which is no namespace")
    if not _SUBDOMAIN.fullmatch(ref.name):
        raise InvalidArgument(f"{PREFIX}{role}-name: {name!r} gives {ref.name!r}, which is no name of a Secret")
    return ref


def _templates(role: str, given: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the templates of name and namespace; None if the class names none."""
    found: list[str] = []
    for part in ("name", "namespace"):
        keys = [f"{PREFIX}{role}-{part}", *([f"{_OLD[role]}{part.title()}"] if role in _OLD else [])]
        values = [given[key] for key in keys if key in given]
        if len(values) > 1:
            raise InvalidArgument(f"parameter {keys[0]} is given twice, also as {keys[1]}")
        found += values
    if not found:
        return None
    if len(found) == 1 or not all(found):
        raise InvalidArgument(f"{PREFIX}{role}-name and -namespace must be given together, and not be empty")
    return found[0], found[1]


def _expanded(template: str, values: Mapping[str, str], key: str) -> str:
    def value_of(match: re.Match[str]) -> str:
        token = match[1] if match[1] is not None else match[2] or ""
        if token not in values:
            known = ", ".join(sorted(each for each in values if "annotations" not in each))
            raise InvalidArgument(f"{PREFIX}{key}: {template!r} has the unknown token {token!r}; known are {known}")
        return values[token]

    return _TOKEN.sub(value_of, template)
