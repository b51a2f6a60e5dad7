"""What stands in the values of the chart; its JSON Schema is written from these definitions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from volplane.cli.manifests import MOST_REPLICAS, MOUNT

__all__ = ["Values", "schema"]

_Name = Annotated[str, Meta(min_length=1)]
_Subdomain = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")]
_Controller = Literal[
    "all",
    "binder",
    "provisioner",
    "reclaimer",
    "expander",
    "protection",
    "attach-detach",
    "attacher",
    "assigner",
    "capacity",
]
_Positive = Annotated[float, Meta(gt=0)]
_Whole = Annotated[int, Meta(ge=1)]


class _Closed(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """A mapping without other keys."""


class Image(_Closed, frozen=True):
    repository: Annotated[str, Meta(pattern=r"^[a-z0-9][-a-z0-9._:/]*$")] = "volplane"
    tag: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_][-A-Za-z0-9._]{0,127})?(@sha256:[0-9a-f]{64})?$")] = ""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"


class Driver(_Closed, frozen=True):
    name: _Subdomain
    backend: _Name
    options: dict[str, Any] | None = None
    concurrency: _Whole | None = None
    rate: _Positive | None = None
    timeout: _Positive | None = None
    distributed: bool | None = None
    storage_capacity: bool | None = None


class Extension(_Closed, frozen=True):
    name: _Name
    options: dict[str, Any] | None = None


class Scrubber(_Closed, frozen=True):
    image: _Name | None = None
    command: list[str] | None = None
    resources: dict[str, Any] | None = None
    tolerations: list[dict[str, Any]] | None = None
    template: dict[str, Any] | None = None
    attempts: _Whole | None = None
    base_deadline: _Positive | None = None
    deadline_per_gib: _Positive | None = msgspec.field(name="deadlinePerGiB", default=None)
    allow_unsafe: bool | None = None


class Configuration(_Closed, frozen=True):
    drivers: list[Driver] = []
    cluster_id: _Name | None = None
    extensions: list[Extension] | None = None
    scrubber: Scrubber | None = None


class StorageClass(_Closed, frozen=True):
    name: _Subdomain
    provisioner: _Subdomain
    parameters: dict[str, str] | None = None
    reclaim_policy: Literal["Delete", "Retain"] | None = None
    volume_binding_mode: Literal["Immediate", "WaitForFirstConsumer"] | None = None
    allow_volume_expansion: bool | None = None
    mount_options: list[str] | None = None
    allowed_topologies: list[dict[str, Any]] | None = None
    annotations: dict[str, str] | None = None


class StorageClasses(_Closed, frozen=True):
    per_driver: bool = True
    more: list[StorageClass] = []


class Node(_Closed, frozen=True):
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []


class Values(_Closed, frozen=True):
    """The defaults are those of values.yaml."""

    image: Image = Image()
    image_pull_secrets: list[dict[str, str]] = []
    controllers: Annotated[tuple[_Controller, ...], Meta(min_length=1)] = (
        "provisioner",
        "reclaimer",
        "expander",
        "attacher",
        "assigner",
        "capacity",
    )
    replicas: Annotated[int, Meta(ge=1, le=MOST_REPLICAS)] = 2
    config: Configuration = Configuration()
    storage_classes: StorageClasses = StorageClasses()
    mounts: list[Annotated[str, Meta(pattern=f"^{MOUNT}$")]] = []
    as_root: bool = False
    network_policies: bool = True
    monitoring: bool = False
    resources: dict[str, Any] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    node: Node = Node()
    # What Helm itself may put there: values of a chart that has this one as a part.
    global_: dict[str, Any] = msgspec.field(name="global", default={})


def schema() -> dict[str, Any]:
    """values.schema.json."""
    found: dict[str, Any] = msgspec.json.schema(Values)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
