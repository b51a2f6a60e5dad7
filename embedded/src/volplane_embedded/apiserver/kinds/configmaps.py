"""ConfigMaps (`pkg/registry/core/configmap`), and the rules that they share with Secrets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME
from volplane_embedded.apiserver.kinds.validation import refused
from volplane_embedded.apiserver.resources import Column, Json, Resource, Strategy

_MAX_BYTES: Final = 1024 * 1024
_IMMUTABLE: Final = "field is immutable when `immutable` is set"


class ConfigMapStrategy(Strategy):
    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes = list(object_meta.validate_of_kind(obj["metadata"]))
        texts, binaries = obj.get("data") or {}, obj.get("binaryData") or {}
        validate_keys("data", texts, causes)
        both = "duplicate of key present in binaryData"
        causes.extend(Cause.invalid(f"data[{key}]", key, both) for key in texts if key in binaries)
        validate_keys("binaryData", binaries, causes)
        validate_size((*texts.values(), *binaries.values()), "", causes)
        return causes

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        fixed = object_meta.validate_update_of_kind(new["metadata"], old["metadata"])
        return [*fixed, *immutable_causes(new, old, "data", "binaryData"), *self.validate_create(new)]


def immutable_causes(new: Json, old: Json, *keys: str) -> list[Cause]:
    """Refuse changes of the fields `keys`, and of `immutable` itself, once `immutable` is true."""
    if not old.get("immutable"):
        return []
    causes = [] if new.get("immutable") else [Cause.forbidden("immutable", _IMMUTABLE)]
    changed = [key for key in keys if (new.get(key) or {}) != (old.get(key) or {})]
    return [*causes, *(Cause.forbidden(key, _IMMUTABLE) for key in changed)]


def validate_keys(where: str, data: Iterable[str], causes: list[Cause]) -> None:
    """Check the keys of the field `where`: each must be usable as a file name."""
    for key in data:
        refused(names.config_key(key), key, f"{where}[{key}]", causes)


def validate_size(values: Iterable[str], where: str, causes: list[Cause]) -> None:
    """Check that the values have at most 1 MiB together."""
    if sum(map(len, values)) > _MAX_BYTES:
        causes.append(Cause.too_long(where, f"{_MAX_BYTES} bytes"))


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
            lambda entry: len(entry.get("data") or ()) + len(entry.get("binaryData") or ()),
        ),
        AGE,
    ),
    short_names=("cm",),
    returns_deleted=False,
)
