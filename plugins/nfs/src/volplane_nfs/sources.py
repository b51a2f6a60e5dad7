"""Sources of PersistentVolumes: whether an nfs source names a directory of a share. Purely lexical."""

from __future__ import annotations

from volplane import InvalidArgument, VolumeSource
from volplane.directory import CONTROL, path_components
from volplane_nfs.nfs4.files import Path
from volplane_nfs.settings import Settings, ShareAddress


def _names(source: VolumeSource) -> tuple[str, list[str]] | None:
    """Return server and path of an nfs source, None if it is none that can be used."""
    server, names = source.fields.get("server"), path_components(source.fields.get("path"))
    if source.kind != "nfs" or not isinstance(server, str) or names is None:
        return None
    return server.lower(), names


def path_below_share(source: VolumeSource, address: ShareAddress) -> Path | None:
    """Return the path below the share that an nfs source names, None if it is not strictly below it. Purely lexical."""
    known = _names(source)
    if known is None or known[0] != address.server.host.lower():
        return None
    try:
        names = tuple(name.encode() for name in known[1])
    except UnicodeEncodeError:
        return None
    depth = len(address.path)
    if names[:depth] != address.path or len(names) <= depth or names[depth] == CONTROL.encode():
        return None
    return names[depth:]


def below_pseudo_path(source: VolumeSource, settings: Settings) -> bool:
    """Return whether an nfs source names one of the driver's exports."""
    known = _names(source)
    if known is None or settings.export is None:
        return False
    above = [name for name in settings.export.pseudo_path.split("/") if name]
    hosts = {share.server.host.lower() for share in settings.addresses}
    return known[0] in hosts and known[1][: len(above)] == above and len(known[1]) == len(above) + 1


def static_path(source: VolumeSource, share: ShareAddress) -> Path:
    """Return what `path_below_share` returns, or raise `InvalidArgument`."""
    path = path_below_share(source, share)
    if path is None:
        raise InvalidArgument(f"nfs {source.fields.get('path')!r} is no directory below {share}: it is not touched")
    return path
