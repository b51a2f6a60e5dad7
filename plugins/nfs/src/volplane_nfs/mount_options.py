"""`mountOptions` of classes: those that contradict what the driver's volumes are, are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane import InvalidArgument

__all__ = ["refuse_mount_options"]

_VERSIONS: Final = frozenset({"nfsvers", "vers"})


def refuse_mount_options(options: Sequence[str]) -> None:
    """Raise `InvalidArgument` for a version of NFS below 4, and for a port, which follows from the share."""
    for option in options:
        key, _, value = option.partition("=")
        if (key in _VERSIONS and not value.startswith("4")) or option in {"v2", "v3", "nfsvers", "vers"}:
            raise InvalidArgument(
                f"mountOptions {option!r}: the paths of volumes are those of NFSv4; use nfsvers=4.1 or nfsvers=4"
            )
        if key == "port":
            raise InvalidArgument(f"mountOptions {option!r}: the port follows from the driver's option shares")
