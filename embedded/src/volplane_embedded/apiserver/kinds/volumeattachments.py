"""VolumeAttachments (`pkg/registry/storage/volumeattachment`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver import object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.persistentvolumes import validate_inline
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, path
from volplane_embedded.apiserver.kinds.validation import immutable, named
from volplane_embedded.apiserver.kinds.volume_sources import driver_name
from volplane_embedded.apiserver.resources import Column, Json, Resource, StatusStrategy, keep_metadata

_ERROR_BYTES: Final = 1024
_METADATA_BYTES: Final = 256 * 1024


class AttachmentStrategy(StatusStrategy):
    def default(self, obj: Json) -> None:
        obj.setdefault("spec", {}).setdefault("source", {})
        status = obj.setdefault("status", {})
        status.setdefault("attached", False)
        for key in ("attachError", "detachError"):
            if (error := status.get(key)) is not None:
                error.setdefault("time", None)

    def prepare_create(self, obj: Json) -> None:
        obj["status"] = {"attached": False}

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        causes = list(object_meta.validate_of_kind(obj["metadata"]))
        spec = obj["spec"]
        driver_name(spec.get("attacher") or "", "spec.attacher", causes)
        _validate_source(spec["source"], causes)
        named(spec.get("nodeName") or "", "spec.nodeName", causes)
        _validate_status(obj["status"], causes)
        if (name := spec["source"].get("persistentVolumeName")) is not None:
            named(name, "spec.source.persistentVolumeName", causes)
        return causes

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        if subresource == "status":
            keep_metadata(new, old)

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        causes = list(self.validate_create(new))
        immutable(new["spec"], old["spec"], "spec", causes)
        return causes


def _validate_source(source: Json, causes: list[Cause]) -> None:
    inline, name = source.get("inlineVolumeSpec"), source.get("persistentVolumeName")
    why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    if inline is None and name is None:
        causes.append(Cause.required("spec.source", why))
    elif inline is not None and name is not None:
        causes.append(Cause.forbidden("spec.source", why))
    elif inline is not None:
        validate_inline(inline, "spec.source.inlineVolumeSpec", causes)
    elif not name:
        causes.append(Cause.required("spec.source.persistentVolumeName", "must specify non empty persistentVolumeName"))


def _validate_status(status: Json, causes: list[Cause]) -> None:
    metadata = status.get("attachmentMetadata") or {}
    if sum(len(key) + len(value) for key, value in metadata.items()) > _METADATA_BYTES:
        causes.append(Cause.too_long("status.attachmentMetadata", f"{_METADATA_BYTES} bytes"))
    for key in ("attachError", "detachError"):
        error = status.get(key) or {}
        if len(error.get("message") or "") > _ERROR_BYTES:
            causes.append(Cause.too_long(f"status.{key}.message", f"{_METADATA_BYTES} bytes"))
        if (error.get("errorCode") or 0) < 0:
            why = "must be between 0 and 2147483647, inclusive"
            causes.append(Cause.invalid(f"status.{key}.errorCode", error["errorCode"], why))


RESOURCE: Final = Resource(
    group="storage.k8s.io",
    version="v1",
    plural="volumeattachments",
    kind="VolumeAttachment",
    singular="volumeattachment",
    namespaced=False,
    strategy=AttachmentStrategy(),
    columns=(
        NAME,
        Column(
            "Attacher",
            "attacher indicates the name of the volume driver that MUST handle this request. This is the name returned"
            " by GetPluginName().",
            path("spec", "attacher"),
            format="name",
        ),
        Column(
            "PV",
            "persistentVolumeName represents the name of the persistent volume to attach.",
            path("spec", "source", "persistentVolumeName"),
        ),
        Column(
            "Node",
            "nodeName represents the node that the volume should be attached to.",
            path("spec", "nodeName"),
        ),
        Column(
            "Attached",
            "attached indicates the volume is successfully attached. This field must only be set by the entity"
            " completing the attach operation, i.e. the external-attacher.",
            path("status", "attached", absent=False),
            type="boolean",
        ),
        AGE,
    ),
    subresources=("status",),
    unconditional_update=False,
)
