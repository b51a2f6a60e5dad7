"""Access modes and kinds of volumes: CSI's and ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from volplane.assets import AccessMode, VolumeMode
from volplane.csi.codes import CsiError
from volplane.csi.ids import LONGEST_MAP
from volplane.csi.wire import message
from volplane.schemas import DriverInfo

_MODES: Final = {
    "SINGLE_NODE_WRITER": AccessMode.READ_WRITE_ONCE,
    "SINGLE_NODE_READER_ONLY": AccessMode.READ_WRITE_ONCE,
    "SINGLE_NODE_MULTI_WRITER": AccessMode.READ_WRITE_ONCE,
    "SINGLE_NODE_SINGLE_WRITER": AccessMode.READ_WRITE_ONCE_POD,
    "MULTI_NODE_READER_ONLY": AccessMode.READ_ONLY_MANY,
    "MULTI_NODE_SINGLE_WRITER": AccessMode.READ_WRITE_MANY,
    "MULTI_NODE_MULTI_WRITER": AccessMode.READ_WRITE_MANY,
}


@cache
def _modes() -> Mapping[int, AccessMode]:
    named = message("VolumeCapability.AccessMode").DESCRIPTOR.enum_types_by_name["Mode"].values_by_name
    return {named[name].number: mode for name, mode in _MODES.items()}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a volume shall be able to do."""

    modes: tuple[AccessMode, ...]
    volume_mode: VolumeMode
    mount_options: tuple[str, ...]


def read_capabilities(given: Iterable[Any], field: str = "volume_capabilities") -> Wanted:
    """Return what the capabilities ask for together. Raises CsiError for what contradicts itself."""
    capabilities = list(given)
    if not capabilities:
        raise CsiError("INVALID_ARGUMENT", f"{field} is empty")
    modes: list[AccessMode] = []
    kinds: set[VolumeMode] = set()
    options: list[str] = []
    for each in capabilities:
        kind = each.WhichOneof("access_type")
        mode = _modes().get(each.access_mode.mode)
        if kind is None or mode is None:
            missing = "an access type (block or mount)" if kind is None else "a known access mode"
            raise CsiError("INVALID_ARGUMENT", f"{field} has an entry without {missing}")
        kinds.add(VolumeMode.BLOCK if kind == "block" else VolumeMode.FILESYSTEM)
        if mode not in modes:
            modes.append(mode)
        options += [flag for flag in each.mount.mount_flags if flag not in options]
    if len(kinds) > 1:
        raise CsiError("INVALID_ARGUMENT", f"{field} asks for block and mount at once")
    if sum(len(flag.encode()) for flag in options) > LONGEST_MAP:
        raise CsiError("INVALID_ARGUMENT", f"mount_flags have more than {LONGEST_MAP} bytes")
    return Wanted(tuple(modes), kinds.pop(), tuple(options))


def why_not(wanted: Wanted, info: DriverInfo) -> str:
    """Explain why the driver has no volume like this; "" = it has."""
    if other := sorted(set(wanted.modes) - info.access_modes):
        return f"access mode {other[0]} is not served; served are {', '.join(sorted(info.access_modes))}"
    if wanted.volume_mode not in info.volume_modes:
        return f"volumes of mode {wanted.volume_mode} are not served"
    if wanted.mount_options and not info.supports_mount_options:
        return "volumes of this driver take no mount options"
    return ""
