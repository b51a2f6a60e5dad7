"""What Compute Engine asks of a disk that is made from another disk."""

from __future__ import annotations

from collections.abc import Sequence

from volplane import InvalidArgument, Unavailable
from volplane.cloud import refuse_other_zone, refuse_smaller
from volplane_gce_pd.disk_spec import DiskSpec
from volplane_gce_pd.resources import Disk, key_of_version


def zones_of_copy(source: Disk, spec: DiskSpec, zones: Sequence[str], *, selected: bool) -> tuple[str, ...]:
    """Return the zones in which the copy can be made, its source's first.

    zones: those in which it may be made. selected: the first of them is a selected node's. Raises InvalidArgument for a
    copy that cannot be (gcp-compute-persistent-disk-csi-driver, pkg/gce-pd-csi-driver/controller.go), ResourceExhausted
    for a node that cannot have it, Unavailable while the source is not ready.
    """
    _refuse_other(source, spec)
    regional = spec.parameters.regional
    if source.place.startswith("zones/"):
        refuse_other_zone(source.name, source.zones[0], zones, selected=selected and not regional)
    if source.state != "READY":
        raise Unavailable(f"{source.name} is {source.state}: it is copied when it is READY", code=source.state)
    if not regional:
        return source.zones
    if selected and source.place.startswith("zones/") and zones[0] not in source.zones:
        return (zones[0], *source.zones)
    return tuple(sorted(zones, key=lambda zone: zone not in source.zones))


def _refuse_other(source: Disk, spec: DiskSpec) -> None:
    parameters = spec.parameters
    wanted = {
        "type": (source.disk_type, parameters.disk_type),
        "encryption key": (key_of_version(source.kms_key), key_of_version(parameters.kms_key or "")),
    }
    for what, (has, asked) in wanted.items():
        if has != asked:
            raise InvalidArgument(
                f"{source.name} has the {what} {has or 'of Google'}, and a copy cannot have {asked or 'that of Google'}"
            )
    refuse_smaller(source.name, source.size, spec.size)
    if source.place.startswith("regions/") and not parameters.regional:
        raise InvalidArgument(f"{source.name} is regional, and so must its copy be: replication-type regional-pd")
