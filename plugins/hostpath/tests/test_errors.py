"""What the operating system says reaches the claim as a sentence with what to do."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from volplane import (
    BackendError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    VolumeInUse,
)
from volplane.directory import dirfd
from volplane.directory.dirfd import printable
from volplane_hostpath.errors import to_backend_error
from volplane_hostpath.mounts import MountTable


@pytest.mark.parametrize(
    ("number", "kind", "advice"),
    [
        (errno.ENOSPC, ResourceExhausted, "free space on it or grow it"),
        (errno.EDQUOT, ResourceExhausted, "free space on it or grow it"),
        (errno.EROFS, Unavailable, "mount it writable"),
        (errno.EACCES, PermissionDenied, "run volplane as root"),
        (errno.EPERM, PermissionDenied, "run volplane as root"),
        (errno.EIO, Unavailable, "failing or gone"),
        (errno.ESTALE, Unavailable, "failing or gone"),
        (errno.EMFILE, Unavailable, "open files"),
        (errno.EBUSY, VolumeInUse, "unmount"),
        (errno.ENAMETOOLONG, InvalidArgument, "shorten"),
        (errno.ENOENT, NotFound, "/root"),
        (errno.EXDEV, BackendError, "/root"),
    ],
)
def test_every_number_has_its_class_and_its_advice(number: int, kind: type[BackendError], advice: str) -> None:
    error = to_backend_error(OSError(number, os.strerror(number)), root="/root", doing="make x")
    assert type(error) is kind
    assert advice in str(error)
    assert str(error).startswith("cannot make x under /root: ")
    assert error.code == errno.errorcode[number]


def test_a_message_is_always_text() -> None:
    error = to_backend_error(OSError(errno.EBUSY, "busy", "\udcff"), root="/root", doing="x")
    assert str(error).encode()
    assert printable("a\udcff/ü") == "a\\xff/ü"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("step", ["mkdir", "fsync", "syncfs", "fchmod"])
def test_a_disk_that_fails_while_a_volume_is_made_leaves_nothing(
    site: Any, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    def failing(*_arguments: Any, **_options: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(MountTable, "kind", lambda *_: "ext4" if step == "syncfs" else "nfs4")
        patch.setattr(dirfd if step == "syncfs" else os, step, failing)
        with pytest.raises(BackendError, match="pvc-u1") as caught:
            site.provision()
    assert caught.value.nothing_done
    assert caught.value.code == errno.errorcode[number]
    assert site.leftovers() == []
    assert site.provision()
