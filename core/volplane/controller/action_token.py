"""The credential for what the HTTP endpoints change: a token in a file that only the user of the process can read.

A loopback address is no credential: every user of the machine reaches it, and so do pods that share the host's network.
The process that listens writes the file, and a command of the same user on the same machine reads it. The directory is
the first usable one of $VOLPLANE_RUNTIME_DIR (alone, if it is set), /run/volplane for user 0, /tmp/volplane-<uid>.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from volplane.errors import VolplaneError

__all__ = ["DIRECTORY_VARIABLE", "ActionToken", "read_token"]

DIRECTORY_VARIABLE: Final = "VOLPLANE_RUNTIME_DIR"
_LONGEST: Final = 256


class ActionToken:
    """A token in its file, until `remove`. path: None if no file could be made; `why` says why."""

    def __init__(self, port: int) -> None:
        """Make a new token for the endpoints on this port."""
        self._token = secrets.token_hex(32)
        self.path: Path | None = None
        self.why = ""
        for directory in _directories():
            try:
                self.path = _write(directory, port, self._token)
            except OSError as error:
                self.why = f"{directory}: {error.strerror or error}"
                continue
            break

    def allows(self, authorization: str) -> bool:
        """Whether this value of the header Authorization is the token."""
        expected = f"Bearer {self._token}"
        return self.path is not None and hmac.compare_digest(authorization.encode(errors="replace"), expected.encode())

    def remove(self) -> None:
        """Remove the file, unless another process has replaced it."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                if self.path.read_text() == self._token:
                    self.path.unlink()


def read_token(port: int) -> str:
    """The token for the endpoints on this port of this machine. Raises VolplaneError with what to do."""
    tried = []
    for directory in _directories():
        try:
            _check(directory)
            return _read(directory / _file_name(port))
        except OSError as error:
            tried.append(f"{directory / _file_name(port)}: {error.strerror or error}")
    raise VolplaneError(
        f"the controller's token cannot be read ({'; '.join(tried)}): run the command on the machine (or in the pod) "
        f"of the controller, as the user that it runs as, with the same {DIRECTORY_VARIABLE}"
    )


def _directories() -> Iterator[Path]:
    if given := os.environ.get(DIRECTORY_VARIABLE):
        yield Path(given)
        return
    if os.geteuid() == 0:
        yield Path("/run/volplane")
    yield Path(f"/tmp/volplane-{os.geteuid()}")  # noqa: S108 -- `_check` refuses one that somebody else made


def _file_name(port: int) -> str:
    return f"http-{port}.token"


def _check(directory: Path) -> None:
    """Raise PermissionError for a directory that others own or can write."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{directory} is not a directory that this user owns and nobody else can write")


def _write(directory: Path, port: int, token: str) -> Path:
    directory.mkdir(mode=0o700, exist_ok=True)
    _check(directory)
    path = directory / _file_name(port)
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(token)
    fresh.replace(path)
    return path


def _read(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd) as file:
        return file.read(_LONGEST).strip()
