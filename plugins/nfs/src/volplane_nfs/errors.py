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

__all__ = ["LOST_HANDLE", "STORAGE_ERRORS", "printable", "to_backend_error"]

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
    return ResourceExhausted(f"{text}: {why}; delete volumes or grow it", scope="share", code=code)


def _denied(text: str, code: str) -> BackendError:
    return PermissionDenied(f"{text}: {_SQUASHED}", code=code, retry_after=_DENIED_RETRY)


def _kerberos(text: str, code: str) -> BackendError:
    return PermissionDenied(
        f"{text}: the export demands another security flavour than sys, such as krb5, which the driver does not speak",
        code=code,
        retry_after=_DENIED_RETRY,
    )


def _owner(text: str, code: str) -> BackendError:
    return PermissionDenied(
        f"{text}: the server does not take numeric owners (in Ganesha: Only_Numeric_Owners = true); or leave uid and "
        "gid out of the class",
        code=code,
        retry_after=_DENIED_RETRY,
    )


def _read_only(text: str, code: str) -> BackendError:
    return Unavailable(f"{text}: the export or its file system is read-only", code=code, retry_after=_DENIED_RETRY)


def _later(seconds: float, why: str) -> Make:
    return lambda text, code: Unavailable(f"{text}: {why}", code=code, retry_after=seconds)


def _in_use(text: str, code: str) -> BackendError:
    return VolumeInUse(
        f"{text}: something still writes into it, or it is exported or mounted on the server; nothing is called gone",
        code=code,
    )


def _invalid(text: str, code: str) -> BackendError:
    return InvalidArgument(f"{text}: the server does not take a name or value of it; shorten pathTemplate", code=code)


def _other_file_system(text: str, code: str) -> BackendError:
    return Unsupported(
        f"{text}: the share consists of several file systems, and nothing is moved between them", code=code
    )


def _gone(text: str, code: str) -> BackendError:
    return NotFound(f"{text}: it does not exist on the server", code=code)


LOST_HANDLE: Final = frozenset({Status.STALE, Status.FHEXPIRED, Status.BADHANDLE})
"""The server knows our handles no longer: they are looked up once more."""

_TABLE: Final[Mapping[int, Make]] = {
    Status.NOSPC: _full,
    Status.DQUOT: _full,
    Status.ACCESS: _denied,
    Status.PERM: _denied,
    Status.WRONGSEC: _kerberos,
    Status.BADOWNER: _owner,
    Status.ROFS: _read_only,
    Status.DELAY: _later(0.5, "the server asks for patience"),
    Status.GRACE: _later(2.0, "the server was restarted and waits for its clients to come back (grace period)"),
    Status.LOCKED: _later(1.0, "a file is locked"),
    Status.FILE_OPEN: _later(1.0, "a file is open"),
    Status.RESOURCE: _later(1.0, "the server lacks resources for the call"),
    Status.IO: _later(5.0, "the server's disk fails"),
    Status.NXIO: _later(5.0, "the server's disk is gone"),
    Status.SERVERFAULT: _later(5.0, "the server had an internal error"),
    Status.MOVED: _later(15.0, "the share moved to another server, which is not followed; change the option shares"),
    **dict.fromkeys(
        LOST_HANDLE, _later(2.0, "the share was replaced, or a directory vanished in the middle of a call")
    ),
    Status.NOTEMPTY: _in_use,
    Status.XDEV: _other_file_system,
    Status.NAMETOOLONG: _invalid,
    Status.BADNAME: _invalid,
    Status.BADCHAR: _invalid,
    Status.INVAL: _invalid,
    Status.NOENT: _gone,
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
