"""Columns and cells that several kinds print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from volplane_embedded.apiserver.resources import Column, Json, Since

__all__ = ["AGE", "NAME", "NAME_DESCRIPTION", "field_text", "modes", "path"]

NAME_DESCRIPTION: Final = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a"
    " client to request the generation of an appropriate name automatically. Name is primarily intended for creation"
    " idempotence and configuration definition. Cannot be updated. More info:"
    " https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)
_AGE_DESCRIPTION: Final = (
    "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed"
    " to be set in happens-before order across separate operations. Clients may not set this value. It is represented"
    " in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info:"
    " https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)
_SHORT_MODES: Final[Mapping[str, str]] = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def path(*keys: str, absent: Any = "") -> Callable[[Json], Any]:
    """A cell that shows the value at a path, `absent` where there is none."""

    def cell(obj: Json) -> Any:
        found: Any = obj
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return absent if found is None else found

    return cell


def field_text(*keys: str) -> Callable[[Json], str]:
    """The text a field selector compares with: booleans in lower case, absence as ""."""
    read = path(*keys)

    def value(obj: Json) -> str:
        found = read(obj)
        return str(found).lower() if isinstance(found, bool) else str(found)

    return value


def modes(listed: Iterable[str] | None) -> str:
    """Access modes in short form, each once, in the stock order."""
    present = set(listed or ())
    return ",".join(short for mode, short in _SHORT_MODES.items() if mode in present)


NAME: Final = Column("Name", NAME_DESCRIPTION, path("metadata", "name"), format="name")
AGE: Final = Column("Age", _AGE_DESCRIPTION, lambda obj: Since(obj["metadata"].get("creationTimestamp")))
