"""The EXPORT block of a volume, in a file of its own in a folder that the server's configuration includes (%dir).

A folder with one bad file keeps Ganesha from starting, so a file is written beside the folder and renamed into it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from volplane import InvalidArgument, Unavailable
from volplane.directory import check_name
from volplane_nfs.markers import VolumeMarker
from volplane_nfs.parameters import check_export
from volplane_nfs.settings import Settings

_PATH: Final = re.compile(r'^  Path = "(?P<path>[^"]*)";$', re.MULTILINE)


def file_of(settings: Settings, export_id: int) -> Path:
    """Return the path of the file, in the option config_directory, of the EXPORT block with this Export_Id.

    It may not exist.
    """
    return Path(settings.config_directory, f"volplane-{export_id}.conf")


def server_path(settings: Settings, marker: VolumeMarker) -> str:
    """Return where the volume is on the server's own file system."""
    return f"{settings.server_path.rstrip('/')}/{marker.path}"


def export_block(settings: Settings, marker: VolumeMarker, share_id: str) -> str:
    """Return the block. Raises `Unavailable` if the marker was changed and holds what may not stand in a block.

    Filesystem_id follows from the share and the Export_Id: it is stable over restarts, and other disks.
    """
    demand, export_id = marker.demand, marker.export_id
    try:
        check_name(marker.name)
        check_export(demand.get("clients") or (), demand["protocols"], demand["squash"])
        anonymous = {key: int(demand[key]) for key in ("anonymous_uid", "anonymous_gid") if demand.get(key) is not None}
    except (InvalidArgument, KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"the marker of {marker.name!r} was changed, so it is not exported: {error}") from error
    rights = "RO" if marker.backing else "RW"
    access = [
        f"Access_Type = {'NONE' if demand.get('clients') else rights};",
        f"Squash = {demand['squash']};",
        "SecType = sys;",
        f"Protocols = {', '.join(demand['protocols'])};",
        "Transports = TCP;",
    ]
    access += [f"{key.title()} = {number};" for key, number in anonymous.items()]
    if demand.get("clients"):
        clients = ", ".join(demand["clients"])
        access.append(f"CLIENT {{ Clients = {clients}; Access_Type = {rights}; Squash = {demand['squash']}; }}")
    lines = [
        f"{_first_words(marker)}claim {marker.owner.claim_uid!r}, made by volplane",
        "EXPORT {",
        f"  Export_Id = {export_id};",
        f'  Path = "{server_path(settings, marker)}";',
        f'  Pseudo = "{settings.pseudo_path}/{marker.name}";',
        f"  Filesystem_Id = {zlib.crc32(share_id.encode())}.{export_id};",
        *(f"  {line}" for line in access),
        "  FSAL { Name = VFS; }",
        "}",
        "",
    ]
    return "\n".join(lines)


def written_path(settings: Settings, marker: VolumeMarker) -> str | None:
    """Return the Path in the file with this volume's Export_Id; None if there is no file.

    Empty: the file is not this volume's. Raises `Unavailable`.
    """
    text = None if marker.export_id is None else _read(file_of(settings, marker.export_id))
    if text is None:
        return None
    path = _PATH.search(text)
    return path["path"] if path is not None and text.startswith(_first_words(marker)) else ""


def _first_words(marker: VolumeMarker) -> str:
    # Without the claim, which `adopt` changes.
    return f"# volume {marker.name} of "


def _read(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"cannot read {file}: {error.strerror}") from error


def write_file(
    settings: Settings, marker: VolumeMarker, share_id: str, *, over: bool = False
) -> tuple[Path, Callable[[], None]]:
    """Write the file of a volume's export; its path, and what takes that back. Both raise `Unavailable`.

    over: whether the id is known to be this volume's. Otherwise the file of another volume is left as it is.
    """
    if marker.export_id is None:
        raise Unavailable(f"{marker.name} was made in mode subdirectory: it has no export")
    file = file_of(settings, marker.export_id)
    before = _read(file)
    if before is not None and not over and written_path(settings, marker) == "":
        raise _taken(file)
    _put(file, export_block(settings, marker, share_id), over=before is not None)
    if written_path(settings, marker) == "":
        raise _taken(file)
    return file, lambda: remove_file(settings, marker) if before is None else _put(file, before, over=True)


def _put(file: Path, text: str, *, over: bool) -> None:
    """Make a file with its whole text. over: whether one of that name is replaced; otherwise it stays."""
    new = file.parent.parent / f".volplane-{secrets.token_hex(8)}"
    try:
        with new.open("x") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if over:
            new.rename(file)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(new, file)
            new.unlink()
        _sync(file.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise Unavailable(
            f"cannot write {file}: {error.strerror}; config_directory and the folder above it have to be on this host, "
            "on one file system, and writable"
        ) from error


def _taken(file: Path) -> Unavailable:
    """Return the error for an Export_Id whose file is another volume's."""
    return Unavailable(
        f"{file} is the export of another volume: give each driver of one server its own range of Export_Ids, by "
        "first_export_id and last_export_id"
    )


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk: a power cut must bring none back, and lose none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(settings: Settings, marker: VolumeMarker) -> None:
    """Remove the file of a volume, if it is there; raises `Unavailable`."""
    if marker.export_id is None or written_path(settings, marker) == "":
        return
    file = file_of(settings, marker.export_id)
    try:
        file.unlink(missing_ok=True)
        _sync(Path(settings.config_directory))
    except OSError as error:
        raise Unavailable(f"cannot remove {file}: {error.strerror}") from error
