"""From errno to the errors of the contract, with a message that says what to do."""

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

__all__ = ["shown", "storage_errors", "translated"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_DENIED_RETRY = 15.0
"""Rights on a directory are mended by hand while somebody waits: sooner than the class's own policy."""
_BROKEN = frozenset({errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN})
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def shown(name: str) -> str:
    """A file name as text that any event or log can carry: undecodable bytes become escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def translated(error: OSError, *, root: str, doing: str, nothing_done: bool = False) -> BackendError:
    """The error of the contract for what the operating system said.

    doing: what was tried, as in "make the directory of pvc-1". nothing_done: the caller left nothing behind.
    """
    number = error.errno or 0
    code = errno.errorcode.get(number, "OSError")
    where = shown(str(error.filename)) if isinstance(error.filename, str) else root
    said = f"cannot {doing} under {root}: {error.strerror or error}"
    if number in _FULL:
        return ResourceExhausted(
            f"{said}: the file system has no space or no inodes left; delete volumes or grow it",
            scope=root,
            reschedule=True,
            code=code,
            nothing_done=nothing_done,
        )
    if number == errno.EROFS:
        return Unavailable(
            f"{said}: look in the kernel log for disk errors and mount it writable again",
            code=code,
            nothing_done=nothing_done,
        )
    if number in _DENIED:
        return PermissionDenied(
            f"{said} ({where}): run volplane as root or give its user this right; chattr -i may be needed",
            code=code,
            retry_after=_DENIED_RETRY,
            nothing_done=nothing_done,
        )
    if number in _BROKEN:
        return Unavailable(f"{said}: the disk is failing or gone", code=code, nothing_done=nothing_done)
    if number in _NO_DESCRIPTORS:
        return Unavailable(f"{said}: raise the limit of open files", code=code, nothing_done=nothing_done)
    if number == errno.EBUSY:
        return VolumeInUse(f"{said} ({where}): unmount what is mounted there", code=code)
    if number == errno.ENAMETOOLONG:
        return InvalidArgument(f"{said}: shorten pathTemplate or the root", code=code)
    if number == errno.ENOENT:
        return NotFound(f"{said} ({where})", code=code, nothing_done=nothing_done)
    return BackendError(f"{said} ({where})", code=code, nothing_done=nothing_done)


@contextmanager
def storage_errors(*, root: str, doing: str, nothing_done: bool = False) -> Iterator[None]:
    """Translate every OSError that leaves the block."""
    try:
        yield
    except OSError as error:
        raise translated(error, root=root, doing=doing, nothing_done=nothing_done) from error
