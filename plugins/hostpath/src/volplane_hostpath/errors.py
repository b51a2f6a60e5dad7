"""From errno to the errors of the contract, with messages that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from volplane import (
    BackendError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    VolumeInUse,
)
from volplane.directory.dirfd import printable

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
NO_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO})
"""Of a read of what is a directory, a symbolic link or a socket."""
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_DENIED_RETRY = 15.0
"""Permissions are repaired by hand while people wait, so it is retried sooner than `PermissionDenied` by itself."""
_BROKEN = frozenset({errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN})
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def to_backend_error(error: OSError, *, root: str, doing: str, nothing_done: bool = False) -> BackendError:
    """Return the error of the contract for an OSError.

    doing: as in "make the directory of pvc-1". nothing_done: the caller has undone everything.
    """
    number = error.errno or 0
    code = errno.errorcode.get(number, "OSError")
    where = printable(str(error.filename)) if isinstance(error.filename, str) else root
    text = f"cannot {doing} under {root}: {error.strerror or error}"
    if number in NO_SPACE:
        return ResourceExhausted(
            f"{text}: the file system has no space or no inodes left; free space on it or grow it",
            scope=root,
            reschedule=True,
            code=code,
            nothing_done=nothing_done,
        )
    if number == errno.EROFS:
        return Unavailable(
            f"{text}: look in the kernel log for disk errors and mount it writable again",
            code=code,
            nothing_done=nothing_done,
        )
    if number in _DENIED:
        return PermissionDenied(
            f"{text} ({where}): run volplane as root or give its user this right; chattr -i may be needed",
            code=code,
            retry_after=_DENIED_RETRY,
            nothing_done=nothing_done,
        )
    if number in _BROKEN:
        return Unavailable(f"{text}: the disk is failing or gone", code=code, nothing_done=nothing_done)
    if number in _NO_DESCRIPTORS:
        return Unavailable(f"{text}: raise the limit of open files", code=code, nothing_done=nothing_done)
    if number == errno.EBUSY:
        return VolumeInUse(f"{text} ({where}): unmount what is mounted there", code=code)
    if number == errno.ENAMETOOLONG:
        return InvalidArgument(f"{text}: shorten pathTemplate or the root", code=code)
    if number == errno.ENOENT:
        return NotFound(f"{text} ({where})", code=code, nothing_done=nothing_done)
    return BackendError(f"{text} ({where})", code=code, nothing_done=nothing_done)


@contextmanager
def storage_errors(*, root: str, doing: str, nothing_done: bool = False) -> Iterator[None]:
    """Turn every OSError that leaves the block into a `BackendError`."""
    try:
        yield
    except OSError as error:
        raise to_backend_error(error, root=root, doing=doing, nothing_done=nothing_done) from error
