"""What a claim asks for, as requests of CSI."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from volplane import AccessMode, InvalidArgument, OutOfRange, ProvisionRequest, Segment, VolumeIdentity, VolumeMode
from volplane.csi.wire import build
from volplane_csi.capabilities import Capabilities
from volplane_csi.classes import PREFIX, for_driver, read_class
from volplane_csi.saved import SavedRequest
from volplane_csi.settings import LONGEST_NAME, Settings

_ALL: Final = ""
"""The name of the parameter that stands for every key (`ParameterKind.KEYS`)."""
_LARGEST: Final = (1 << 63) - 1


def keys_of(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of a class as they were given."""
    return dict(parameters.get(_ALL) or {})


def name_of(prefix: str, uid: str, generation: int = 1) -> str:
    """Return the name of a volume or snapshot on the storage: that which the sidecars would give it.

    Each generation has another one: a driver may answer a name that was deleted with what it has left of that.
    """
    name = f"{prefix}-{uid}" if generation == 1 else f"{prefix}-{uid}-g{generation}"
    if len(name.encode()) > LONGEST_NAME:
        raise InvalidArgument(
            f"name {name!r} has more than {LONGEST_NAME} bytes: shorten the prefix", nothing_done=True
        )
    return name


def create_volume(request: ProvisionRequest, known: Capabilities, settings: Settings, secret: str) -> SavedRequest:
    """Return the request for the asset. secret: NAMESPACE/NAME of that of the controller. Raises InvalidArgument."""
    of_class = read_class(keys_of(request.parameters), request)
    of_class.refuse_others(secret)
    parameters = dict(of_class.parameters)
    if settings.extra_create_metadata:
        claim = {"pvc/name": request.claim.name, "pvc/namespace": request.claim.namespace, "pv/name": request.name}
        parameters |= {f"{PREFIX}{key}": value for key, value in claim.items()}
    fs_type = (of_class.fs_type or settings.default_fstype) if request.volume_mode is VolumeMode.FILESYSTEM else ""
    if request.capacity_bytes > _LARGEST:
        raise OutOfRange(f"{request.capacity_bytes} bytes were asked for, CSI can tell at most {_LARGEST}")
    about: dict[str, Any] = {"source": of_class.source_fields, "annotations": of_class.annotations}
    if fs_type:
        about["source"]["fsType"] = fs_type
    single = known.can("SINGLE_NODE_MULTI_WRITER")
    multi = request.access_modes or (AccessMode.READ_WRITE_ONCE,)
    fields = {
        "name": name_of(settings.volume_name_prefix, request.claim.uid, request.owner.generation),
        "capacity_range": {"required_bytes": request.capacity_bytes, "limit_bytes": request.limit_bytes or 0},
        "volume_capabilities": [
            capability((each,), request.volume_mode, fs_type, request.mount_options, single=single) for each in multi
        ],
        "parameters": parameters,
        "volume_content_source": _source(request, known),
        "mutable_parameters": _mutable(request, known),
    }
    places = _places(request, settings.topology_keys)
    while True:
        needs = {"requisite": places, "preferred": places} if places else None
        content = build("CreateVolumeRequest", accessibility_requirements=needs, **fields)
        saved = SavedRequest(
            content=content.SerializeToString(deterministic=True), driver_version=known.version, about=about
        )
        # Any of the places will do, so that the first ones are enough.
        if len(places) <= 1 or saved.fits():
            saved.require_fits()
            return saved
        places = places[: len(places) // 2]


def _source(request: ProvisionRequest, known: Capabilities) -> Any:
    if request.source_snapshot is not None:
        if not known.can("CREATE_DELETE_SNAPSHOT"):
            raise InvalidArgument(f"CSI driver {known.name} restores no snapshots (CREATE_DELETE_SNAPSHOT)")
        return {"snapshot": {"snapshot_id": request.source_snapshot}}
    if request.source_volume is not None:
        if not known.can("CLONE_VOLUME"):
            raise InvalidArgument(f"CSI driver {known.name} copies no volumes (CLONE_VOLUME)")
        return {"volume": {"volume_id": request.source_volume}}
    return None


def _mutable(request: ProvisionRequest, known: Capabilities) -> dict[str, str] | None:
    if not request.mutable_parameters:
        return None
    if not known.can("MODIFY_VOLUME"):
        raise InvalidArgument(f"CSI driver {known.name} knows no VolumeAttributesClass (MODIFY_VOLUME)")
    return for_driver(request.mutable_parameters)


def _places(request: ProvisionRequest, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the places that will do, the best first. Each claim has another best one where none was chosen."""
    if not keys:
        return []
    found: Sequence[Segment] = (request.segment,) if request.segment else ()
    if not found:
        found = request.allowed_segments or request.node_segments
        first = int.from_bytes(hashlib.sha256(request.claim.uid.encode()).digest()[:8]) % max(len(found), 1)
        found = [*found[first:], *found[:first]]
    return [{"segments": dict(each)} for each in found]


def capability(
    modes: Sequence[AccessMode],
    volume_mode: VolumeMode,
    fs_type: str,
    mount_options: Sequence[str] = (),
    *,
    single: bool,
) -> dict[str, Any]:
    """Return the capability that stands for these access modes together. single: SINGLE_NODE_MULTI_WRITER is known.

    Raises InvalidArgument for modes that CSI cannot tell together. Source: accessmodes.go of csi-lib-utils.
    """
    asked = set(modes)
    if AccessMode.READ_WRITE_ONCE_POD in asked:
        if len(asked) > 1:
            raise InvalidArgument("ReadWriteOncePod cannot be had together with other access modes")
        mode = "SINGLE_NODE_SINGLE_WRITER" if single else "SINGLE_NODE_WRITER"
    elif AccessMode.READ_WRITE_MANY in asked:
        mode = "MULTI_NODE_MULTI_WRITER"
    elif AccessMode.READ_ONLY_MANY in asked:
        if len(asked) > 1:
            raise InvalidArgument("CSI knows no volume that is ReadOnlyMany and ReadWriteOnce")
        mode = "MULTI_NODE_READER_ONLY"
    else:
        mode = "SINGLE_NODE_MULTI_WRITER" if single else "SINGLE_NODE_WRITER"
    if volume_mode is VolumeMode.BLOCK:
        return {"block": {}, "access_mode": {"mode": mode}}
    return {"mount": {"fs_type": fs_type, "mount_flags": list(mount_options)}, "access_mode": {"mode": mode}}


def capability_of(volume: VolumeIdentity, known: Capabilities) -> dict[str, Any]:
    """Return the capability of a volume that exists."""
    fs_type = volume.source.fields.get("fsType")
    return capability(
        volume.access_modes,
        volume.volume_mode,
        fs_type if isinstance(fs_type, str) else "",
        volume.mount_options,
        single=known.can("SINGLE_NODE_MULTI_WRITER"),
    )
