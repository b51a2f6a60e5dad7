"""ConfigMaps (`pkg/registry/core/configmap`), and the rules that they share with Secrets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME
from volplane_embedded.apiserver.resources import Column, Json, Resource, Strategy

__all__ = ["RESOURCE", "ConfigMapStrategy", "immutable_causes", "validate_keys", "validate_size"]

_MAX_BYTES: Final = 1024 * 1024
_IMMUTABLE: Final = "field is immutable when `immutable` is set"


class ConfigMapStrategy(Strategy):
    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes: list[Cause] = []
        texts, binaries = obj.get("data") or {}, obj.get("binaryData") or {}
        validate_keys("data", texts, causes)
        validate_keys("binaryData", binaries, causes)
        both = "duplicate of key present in binaryData"
        causes.extend(Cause.invalid(f"data[{key}]", key, both) for key in texts if key in binaries)
        validate_size((*texts.values(), *binaries.values()), "", causes)
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        return [*immutable_causes(new, old, "data", "binaryData"), *self.validate_create(new)]


def immutable_causes(new: Json, old: Json, *keys: str) -> list[Cause]:
    """Refuse changes of the fields `keys`, and of `immutable` itself, once `immutable` is true."""
    if not old.get("immutable"):
        return []
    causes = [Cause.forbidden(key, _IMMUTABLE) for key in keys if (new.get(key) or {}) != (old.get(key) or {})]
    if not new.get("immutable"):
        causes.append(Cause.forbidden("immutable", _IMMUTABLE))
    return causes


def validate_keys(where: str, data: Iterable[str], causes: list[Cause]) -> None:
    """Check the keys of the field `where`: each must be usable as a file name."""
    causes.extend(Cause.invalid(f"{where}[{key}]", key, why) for key in data if (why := names.config_key(key)))


def validate_size(values: Iterable[str], where: str, causes: list[Cause]) -> None:
    """Check that the values have at most 1 MiB together."""
    if sum(map(len, values)) > _MAX_BYTES:
        causes.append(Cause("FieldValueTooLong", where, f"Too long: may not be more than {_MAX_BYTES} bytes"))


RESOURCE: Final = Resource(
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
