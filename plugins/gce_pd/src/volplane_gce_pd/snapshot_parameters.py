"""The parameters of a VolumeSnapshotClass, and the snapshot or image that it asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from volplane import InvalidArgument, Param, ParameterSchema, SnapshotRequest
from volplane.cloud import LABELS, AccountParameters
from volplane_gce_pd.parameters import tag_values_of
from volplane_gce_pd.resources import IMAGES, SNAPSHOTS
from volplane_gce_pd.settings import Settings, check_labels


@dataclass(frozen=True, kw_only=True)
class SnapshotParameters(AccountParameters):
    """The parameters of a VolumeSnapshotClass."""

    kind: Annotated[
        str,
        Param(
            "What is made: a snapshot, or an image, which takes longer to make and less to restore often.",
            name="snapshot-type",
            choices=(SNAPSHOTS, IMAGES),
        ),
    ] = SNAPSHOTS
    locations: Annotated[
        str,
        Param(
            "Region or multi-region in which it is stored; default: near its disk.",
            name="storage-locations",
            pattern=r"\s*[A-Za-z]+(-[A-Za-z]+[0-9]+)?\s*|",
        ),
    ] = ""
    family: Annotated[
        str, Param("Family of the image; without effect on snapshots.", name="image-family", pattern="[a-z][a-z0-9-]*|")
    ] = ""
    labels: Annotated[Mapping[str, str], Param("Labels, beside those of the driver's options.")] = field(
        default_factory=dict
    )
    resource_tags: Annotated[
        tuple[str, ...],
        Param("Tags of Resource Manager to bind to it: parent/key/value, several with commas.", name="resource-tags"),
    ] = ()

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for what a schema cannot express."""
        _ = tag_values_of(self.resource_tags)
        check_labels(self.labels, "parameter labels")

    def message(self, request: SnapshotRequest, settings: Settings, source: str, name: str) -> dict[str, Any]:
        """Return the fields of compute.v1.Snapshot or compute.v1.Image. source: handle of the disk. Raises
        InvalidArgument.
        """
        plain = {**settings.labels, **self.labels}
        check_labels(plain, "parameter labels, with those of the options")
        wanted = {
            "name": name,
            "source_disk": source,
            "description": _description(request),
            "labels": {**plain, **LABELS.of_snapshot(request.owner), **LABELS.of_term(request.context)},
            "storage_locations": [self.locations.strip().lower()] if self.locations.strip() else None,
            "family": self.family if self.kind == IMAGES and self.family else None,
            "params": {"resource_manager_tags": tags} if (tags := tag_values_of(self.resource_tags)) else None,
        }
        return {key: value for key, value in wanted.items() if value is not None}

    def refuse_regional(self, place: str) -> None:
        """Raise InvalidArgument for an image of a disk in two zones, which Compute Engine does not make."""
        if self.kind == IMAGES and place.startswith("regions/"):
            raise InvalidArgument(
                "snapshot-type images: Compute Engine makes no image of a regional disk; use snapshot-type snapshots"
            )


PARAMETERS = ParameterSchema.of(SnapshotParameters)


def _description(request: SnapshotRequest) -> str:
    """Return the text that people and the official driver's tools read."""
    made_for = request.snapshot
    return json.dumps(
        {
            "kubernetes.io/created-for/volumesnapshot/name": made_for.name,
            "kubernetes.io/created-for/volumesnapshot/namespace": made_for.namespace,
            "kubernetes.io/created-for/volumesnapshotcontent/name": made_for.content,
            "storage.gke.io/created-by": "volplane",
        },
        sort_keys=True,
    )
