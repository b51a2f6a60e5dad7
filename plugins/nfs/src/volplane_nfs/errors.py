"""From status codes of NFS to the errors of the contract, with messages that say what to do: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from volplane import (
    BackendError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    Unsupported,
    VolumeInUse,
)
from volplane.directory import CONTROL, CorruptMarker
from volplane_nfs.nfs4 import NfsError, NotAnNfsServer, Status, TransportError, name_of_status
from volplane_nfs.nfs4.files import NotADirectory

_DENIED_RETRY: Final = 15.0
"""Seconds. Exports are repaired by hand while people wait: sooner than `PermissionDenied` by itself."""
_SQUASHED: Final = (
    "the server does not let the driver's user do this: export the share to this host alone with no_root_squash and "
    "read-write, or set the options uid and gid to a user who may"
)

Make = Callable[[str, str], BackendError]
"""From the text and the code of an error."""


def _full(text: str, code: str) -> BackendError:
    why = "the user's quota is used up" if code.endswith("DQUOT") else "the file system has no space or no inodes left"
    return ResourceExhausted(f"{text}: {why}; free space on it or grow it", scope="share", code=code)


def _row(error: type[BackendError], why: str, retry_after: float | None = None) -> Make:
    return lambda text, code: error(f"{text}: {why}", code=code, retry_after=retry_after)


_INVALID: Final = _row(InvalidArgument, "the server does not take a name or value of it; shorten pathTemplate")
_LOST: Final = _row(Unavailable, "the share was replaced, or a directory vanished in the middle of a call", 2.0)

LOST_HANDLE: Final = frozenset({Status.STALE, Status.FHEXPIRED, Status.BADHANDLE})
"""The server knows our handles no longer: they are looked up once more."""

_TABLE: Final[Mapping[int, Make]] = {
    Status.NOSPC: _full,
    Status.DQUOT: _full,
    Status.ACCESS: _row(PermissionDenied, _SQUASHED, _DENIED_RETRY),
    Status.PERM: _row(PermissionDenied, _SQUASHED, _DENIED_RETRY),
    Status.WRONGSEC: _row(
        PermissionDenied,
        "the export demands another security flavour than sys: TLS (set the option tls), or one that the driver does "
        "not speak, such as krb5",
        _DENIED_RETRY,
    ),
    Status.BADOWNER: _row(
        PermissionDenied,
        "the server does not take numeric owners (in Ganesha: Only_Numeric_Owners = true); or leave uid and gid out of "
        "the class",
        _DENIED_RETRY,
    ),
    Status.ROFS: _row(Unavailable, "the export or its file system is read-only", _DENIED_RETRY),
    Status.DELAY: _row(Unavailable, "the server asks for patience", 0.5),
    Status.GRACE: _row(
        Unavailable, "the server was restarted and waits for its clients to come back (grace period)", 2.0
    ),
    Status.LOCKED: _row(Unavailable, "a file is locked", 1.0),
    Status.FILE_OPEN: _row(Unavailable, "a file is open", 1.0),
    Status.RESOURCE: _row(Unavailable, "the server lacks resources for the call", 1.0),
    Status.IO: _row(Unavailable, "the server's disk fails", 5.0),
    Status.NXIO: _row(Unavailable, "the server's disk is gone", 5.0),
    Status.SERVERFAULT: _row(Unavailable, "the server had an internal error", 5.0),
    Status.MOVED: _row(
        Unavailable, "the share moved to another server, which is not followed; change the option shares", 15.0
    ),
    **dict.fromkeys(LOST_HANDLE, _LOST),
    Status.NOTEMPTY: _row(
        VolumeInUse,
        "something still writes into it, or it is exported or mounted on the server; nothing is called gone",
    ),
    Status.XDEV: _row(Unsupported, "the share consists of several file systems, and nothing is moved between them"),
    **dict.fromkeys((Status.NAMETOOLONG, Status.BADNAME, Status.BADCHAR, Status.INVAL), _INVALID),
    Status.NOENT: _row(NotFound, "it does not exist on the server"),
}


def printable(name: bytes) -> str:
    """Return a file name as valid text for events and logs: undecodable bytes become escapes."""
    return name.decode("utf-8", "backslashreplace")


STORAGE_ERRORS: Final = (NfsError, TransportError, NotADirectory, CorruptMarker)
"""What the client and the driver's own files raise."""


def to_backend_error(
    error: NfsError | TransportError | NotADirectory | CorruptMarker, *, share: str, doing: str
) -> BackendError:
    """Return the error of the contract. doing: as in "make the directory of pvc-1"."""
    text = f"cannot {doing} on {share}"
    if isinstance(error, NotADirectory):
        return Unavailable(f"{text}: {error}, but a link or a file; no link is followed, and it is not touched")
    if isinstance(error, CorruptMarker):
        return Unavailable(f"{text}: its marker in {CONTROL} cannot be read ({error}); restore or repair it")
    if isinstance(error, NotAnNfsServer):
        return Unavailable(
            f"{text}: what answers there is no NFSv4 server ({error}); check host and port in the option shares"
        )
    if isinstance(error, TransportError):
        return Unavailable(f"{text}: {error}")
    make = _TABLE.get(error.status)
    if make is None:
        return BackendError(f"{text}: {error}", code=name_of_status(error.status))
    return make(f"{text} ({error.operation})", name_of_status(error.status))
