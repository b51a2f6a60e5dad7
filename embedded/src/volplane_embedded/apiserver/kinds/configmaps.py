"""ConfigMaps, Secrets and ServiceAccounts."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, field_text, path
from volplane_embedded.apiserver.resources import Column, Json, Resource, Strategy

__all__ = ["CONFIG_MAP", "SECRET", "SERVICE_ACCOUNT", "ConfigMapStrategy", "SecretStrategy"]

_BYTES: Final = 1024 * 1024
_IMMUTABLE: Final = "field is immutable when `immutable` is set"
_ACCOUNT_SECRET: Final = "kubernetes.io/service-account-token"  # noqa: S105 - a type, no secret
_KEYS_OF_TYPE: Final[Mapping[str, Sequence[str]]] = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}


class ConfigMapStrategy(Strategy):
    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        texts, binaries = obj.get("data") or {}, obj.get("binaryData") or {}
        _validate_keys("data", texts, causes)
        _validate_keys("binaryData", binaries, causes)
        both = "duplicate of key present in binaryData"
        causes.extend(Cause.invalid(f"data[{key}]", key, both) for key in texts if key in binaries)
        _validate_size((*texts.values(), *binaries.values()), "", causes)
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = _frozen(new, old, "data", "binaryData")
        causes.extend(self.validate_create(new))
        return causes


class SecretStrategy(Strategy):
    def default(self, obj: Json) -> None:
        plain = obj.pop("stringData", None)
        if plain:
            encoded = {key: base64.b64encode((value or "").encode()).decode() for key, value in plain.items()}
            obj["data"] = {**(obj.get("data") or {}), **encoded}
        obj.setdefault("type", "Opaque")

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        data = obj.get("data") or {}
        _validate_keys("data", data, causes)
        _validate_size(data.values(), "data", causes)
        causes.extend(Cause.required(f"data[{key}]") for key in _KEYS_OF_TYPE.get(obj["type"], ()) if key not in data)
        annotations = obj["metadata"].get("annotations") or {}
        if obj["type"] == _ACCOUNT_SECRET and not annotations.get("kubernetes.io/service-account.name"):
            causes.append(Cause.required("metadata.annotations[kubernetes.io/service-account.name]"))
        return causes

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        if not new.get("type"):
            new["type"] = old["type"]

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes: list[Cause] = []
        if new["type"] != old["type"]:
            causes.append(Cause.invalid("type", new["type"], "field is immutable"))
        causes.extend(_frozen(new, old, "data"))
        causes.extend(self.validate_create(new))
        return causes


def _frozen(new: Json, old: Json, *keys: str) -> list[Cause]:
    if not old.get("immutable"):
        return []
    causes = [Cause.forbidden(key, _IMMUTABLE) for key in keys if (new.get(key) or {}) != (old.get(key) or {})]
    if not new.get("immutable"):
        causes.append(Cause.forbidden("immutable", _IMMUTABLE))
    return causes


def _validate_keys(where: str, data: Iterable[str], causes: list[Cause]) -> None:
    causes.extend(Cause.invalid(f"{where}[{key}]", key, why) for key in data if (why := names.config_key(key)))


def _validate_size(values: Iterable[str], where: str, causes: list[Cause]) -> None:
    if sum(map(len, values)) > _BYTES:
        causes.append(Cause("FieldValueTooLong", where, f"Too long: may not be more than {_BYTES} bytes"))


CONFIG_MAP: Final = Resource(
    group="",
    version="v1",
    plural="configmaps",
    kind="ConfigMap",
    singular="configmap",
    namespaced=True,
    strategy=ConfigMapStrategy(),
    columns=(
        NAME,
        Column(
            "Data",
            "Data contains the configuration data. Each key must consist of alphanumeric characters, '-', '_' or '.'.",
            lambda entry: str(len(entry.get("data") or ()) + len(entry.get("binaryData") or ())),
        ),
        AGE,
    ),
    short_names=("cm",),
    returns_deleted=False,
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
            lambda secret: str(len(secret.get("data") or ())),
        ),
        AGE,
    ),
    fields={"type": field_text("type")},
    returns_deleted=False,
)

SERVICE_ACCOUNT: Final = Resource(
    group="",
    version="v1",
    plural="serviceaccounts",
    kind="ServiceAccount",
    singular="serviceaccount",
    namespaced=True,
    strategy=Strategy(),
    columns=(
        NAME,
        Column(
            "Secrets",
            "Secrets is a list of the secrets in the same namespace that pods running using this ServiceAccount are"
            " allowed to use.",
            lambda account: str(len(account.get("secrets") or ())),
        ),
        AGE,
    ),
    short_names=("sa",),
)
