"""What the embedded API server knows about a kind: its names, its rules, its columns.

`Resource` separates the machinery (store, verbs, watch), which knows no kind, from the kinds, which know no request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from volplane_embedded.apiserver.errors import Cause

DEFINITIONS_GROUP: Final = "apiextensions.k8s.io"
"""The group of CustomResourceDefinition."""

Json = dict[str, Any]
"""A decoded JSON object. Strategies own the objects that they get, and may change them in place."""


@dataclass(frozen=True, slots=True)
class Since:
    """A cell that shows the time since `time` (RFC 3339). `tables.table` renders it."""

    time: str | None
    absent: str = "<unknown>"
    layout: str = "{}"
    """Format of the cell, for example `3 ({} ago)`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a `Table`. priority: 0 = printed by `kubectl get`, 1 = only with `-o wide`."""

    name: str
    description: str
    cell: Callable[[Json], Any]
    type: str = "string"
    format: str = ""
    priority: int = 0


class Strategy:
    """The rules of a kind (rest.RESTCreateStrategy, RESTUpdateStrategy). Methods may change `new` in place, never
    `old`.

    Order of a create: `default`, `prepare_create`, `validate_create`. Of an update of the main resource or of a
    subresource: `default`, `prepare_update`, then nothing more if nothing changed, else `validate_update`. The
    machinery sets the metadata; a strategy checks it too, where the stock server's does (`object_meta`).
    """

    def default(self, obj: Json) -> None:
        """Fill absent fields as the stock server's defaulting does; put quantities into canonical form."""

    def prepare_create(self, obj: Json) -> None:
        """Clear what a client may not set at creation (status), set initial status."""

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        """Return the causes for which the object is refused."""
        return ()

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        """Restore what this endpoint does not write: status for "", everything but status and metadata for "status"."""

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        """Return the causes for which the change is refused."""
        return ()

    def warnings(self, obj: Json) -> Sequence[str]:
        """Return the warnings about an object that the client has written (rest.WarningsOnCreate, WarningsOnUpdate)."""
        return ()

    def forbid_update(self, new: Json, old: Json, subresource: str) -> str:
        """Explain why an otherwise valid update is refused with 403 (admission), or ""."""
        return ""

    def validate_binding(self, binding: Json) -> Sequence[Cause]:
        """Return the causes for which a `Binding` is refused."""
        return ()

    def bind(self, obj: Json, binding: Json) -> str:
        """Apply a valid `Binding` to `obj`. Returns the reason of a 409 if it cannot be applied, else ""."""
        return "this kind cannot be bound"

    def evict(self, obj: Json) -> None:
        """Note in the status of `obj` that it is evicted."""

    def grace_seconds(self, obj: Json, asked: int | None) -> int:
        """Grace period of a delete in seconds. Above 0 the object is kept, with a deletionTimestamp, until a delete
        with 0.
        """
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One served resource of one API group version."""

    group: str
    version: str
    plural: str
    kind: str
    singular: str
    namespaced: bool
    strategy: Strategy
    columns: Sequence[Column]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    row_conditions: Callable[[Json], list[Json]] | None = None
    """Conditions of the row of an object in a `Table` (pods: Completed)."""
    subresources: tuple[str, ...] = ()
    """Of "status", "binding", "eviction", "exec", "finalize", "log", "portforward", "scale", "token"."""
    fields: Mapping[str, Callable[[Json], str]] = field(default_factory=dict)
    """Field selectors beyond metadata.name and metadata.namespace: path to the value it selects on."""
    generation: bool = False
    """Whether metadata.generation is kept (1 at creation, +1 when spec changes)."""
    storage: str = ""
    """Storage key of the objects, if two resources represent the same ones (events). Default: plural.group."""
    to_stored: Callable[[Json], Json] | None = None
    """Converts the object of a request to the stored form, if that differs. Strategies get the stored form."""
    from_stored: Callable[[Json], Json] | None = None
    """The reverse conversion, for responses and patches. Does not change its argument."""
    graceful: bool = False
    """Whether a delete is first an update that sets deletionTimestamp, even with a grace of 0 seconds (pods)."""
    collected: bool = False
    """Whether a delete waits for the garbage collector where its propagation policy says so (workloads)."""
    returns_deleted: bool = True
    """Whether a finished delete answers with the object, else with a Status (leases, events, configmaps,
    secrets...)."""
    faulty_group: str | None = None
    """The group that a refusal (422) names, if it is not the resource's own."""
    schema: Json | None = None
    """The structural schema by which objects are checked. None: they are typed, see `definitions`."""
    unconditional_update: bool = True
    """Whether a PUT may leave out metadata.resourceVersion (not leases, volumeattachments, csinodes, csidrivers...)."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def custom(self) -> bool:
        """Whether a CustomResourceDefinition defines it."""
        return self.schema is not None and self.group != DEFINITIONS_GROUP

    @property
    def prefix(self) -> str:
        """Path of the group version: /api/v1 or /apis/<group>/<version>."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


Clock = Callable[[], datetime]
"""Wall time: aware, UTC."""

_CLIENT_METADATA: Final = ("labels", "annotations", "finalizers", "ownerReferences")


def keep_metadata(new: Json, old: Json) -> None:
    """Restore the metadata that the status endpoint of some kinds does not change."""
    kept, target = old["metadata"], new["metadata"]
    for key in _CLIENT_METADATA:
        if key in kept:
            target[key] = kept[key]
        else:
            target.pop(key, None)


class StatusStrategy(Strategy):
    """A kind with a status subresource: the main endpoint writes everything else, the subresource only status."""

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        if subresource == "status":
            if "spec" in old:
                new["spec"] = old["spec"]
            else:
                new.pop("spec", None)
        elif "status" in old:
            new["status"] = old["status"]
        else:
            new.pop("status", None)
