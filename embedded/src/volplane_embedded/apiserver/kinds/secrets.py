"""Secrets and ServiceAccounts (`pkg/registry/core/secret`, `pkg/registry/core/serviceaccount`)."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from volplane_embedded.apiserver import object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.configmaps import immutable_causes, validate_keys, validate_size
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, field_text, path
from volplane_embedded.apiserver.resources import Column, Json, Resource, Strategy

_TOKEN_TYPE: Final = "kubernetes.io/service-account-token"  # noqa: S105 - a type, no secret
_DOCKER_KEYS: Final[Mapping[str, str]] = {
    "kubernetes.io/dockercfg": ".dockercfg",
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
}
_ANY_KEY_OF_TYPE: Final[Mapping[str, Sequence[str]]] = {
    "kubernetes.io/basic-auth": ("username", "password"),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}
_EVERY_KEY_OF_TYPE: Final[Mapping[str, Sequence[str]]] = {"kubernetes.io/tls": ("tls.crt", "tls.key")}


class SecretStrategy(Strategy):
    def default(self, obj: Json) -> None:
        plain = obj.pop("stringData", None)
        if plain:
            encoded = {key: base64.b64encode((value or "").encode()).decode() for key, value in plain.items()}
            obj["data"] = {**(obj.get("data") or {}), **encoded}
        obj.setdefault("type", "Opaque")

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes = list(object_meta.validate_of_kind(obj["metadata"]))
        data = obj.get("data") or {}
        validate_keys("data", data, causes)
        validate_size(data.values(), "data", causes)
        annotations = obj["metadata"].get("annotations") or {}
        if obj["type"] == _TOKEN_TYPE and not annotations.get("kubernetes.io/service-account.name"):
            causes.append(Cause.required("metadata.annotations[kubernetes.io/service-account.name]"))
        _validate_keys_of_type(obj["type"], data, causes)
        return causes

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        if not new.get("type"):
            new["type"] = old["type"]

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
        if new["type"] != old["type"]:
            causes.append(Cause.invalid("type", new["type"], "field is immutable"))
        causes.extend(immutable_causes(new, old, "data"))
        causes.extend(self.validate_create(new))
        return causes


def _validate_keys_of_type(kind: str, data: Mapping[str, str], causes: list[Cause]) -> None:
    """Check that the data has the keys that its type needs."""
    causes.extend(Cause.required(f"data[{key}]") for key in _EVERY_KEY_OF_TYPE.get(kind, ()) if key not in data)
    wanted = _ANY_KEY_OF_TYPE.get(kind, ())
    if not any(data.get(key) is not None for key in wanted):
        causes.extend(Cause.required(f"data[{key}]") for key in wanted)
    if (key := _DOCKER_KEYS.get(kind)) is None:
        return
    if key not in data:
        causes.append(Cause.required(f"data[{key}]"))
    elif why := _why_no_json_object(data[key]):
        causes.append(Cause.invalid(f"data[{key}]", "<secret contents redacted>", why))


def _why_no_json_object(encoded: str) -> str:
    try:
        value = msgspec.json.decode(base64.b64decode(encoded))
    except (ValueError, RecursionError) as why:
        return str(why)
    return (
        ""
        if value is None or isinstance(value, dict)
        else "json: cannot unmarshal into Go value of type map[string]interface {}"
    )


SECRET: Final = Resource(
    group="",
    version="v1",
    plural="secrets",
    kind="Secret",
    singular="secret",
    namespaced=True,
    strategy=SecretStrategy(),
    columns=(
        NAME,
        Column("Type", "Used to facilitate programmatic handling of secret data.", path("type")),
        Column(
            "Data",
            "Data contains the secret data. Each key must consist of alphanumeric characters, '-', '_' or '.'.",
            lambda secret: len(secret.get("data") or ()),
        ),
        AGE,
    ),
    fields={"type": field_text("type")},
    returns_deleted=False,
)


class ServiceAccountStrategy(Strategy):
    def validate_create(self, obj: Json) -> Sequence[Cause]:
        return list(object_meta.validate_of_kind(obj["metadata"]))

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        return [*object_meta.validate_update_of_kind(new["metadata"], old["metadata"]), *self.validate_create(new)]


SERVICE_ACCOUNT: Final = Resource(
    group="",
    version="v1",
    plural="serviceaccounts",
    kind="ServiceAccount",
    singular="serviceaccount",
    namespaced=True,
    subresources=("token",),
    strategy=ServiceAccountStrategy(),
    columns=(
        NAME,
        Column(
            "Secrets",
            "Secrets is a list of the secrets in the same namespace that pods running using this ServiceAccount are"
            " allowed to use.",
            lambda account: len(account.get("secrets") or ()),
        ),
        AGE,
    ),
    short_names=("sa",),
)
