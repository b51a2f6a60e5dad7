"""How a process is let in to the HTTP endpoints of another one on its machine: by an address and a token.

The token is in a file that only the user of the process can read. A loopback address is no credential: every user of
the machine reaches it, pods that share the host's network, and everybody through the proxy of a service mesh. The
process that listens writes the file, and a command of the same user on the same machine reads it. The directory is the
first usable one of $VOLPLANE_RUNTIME_DIR (alone, if it is set), /run/volplane for user 0, /tmp/volplane-<uid>.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from volplane.errors import ConfigurationError, VolplaneError

DIRECTORY_VARIABLE: Final = "VOLPLANE_RUNTIME_DIR"
_FILE: Final = "http-{}.token"
HOLDER: Final = "Volplane-Holder"
"""Header: of a request, the process that is asked; of an answer, the one that answers."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    host: str
    port: int

    @classmethod
    def parse(cls, option: str, text: str) -> HttpAddress:
        """Read "127.0.0.1:9809" or "[::1]:0" (a free port). Raises ConfigurationError naming the option."""
        host, colon, port = text.rpartition(":")
        if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
            raise ConfigurationError(f'{option} is "{text}"; it must be ADDRESS:PORT, such as 127.0.0.1:9809')
        return cls(host.strip("[]"), int(port))


def is_loopback(host: str | None) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host or "").is_loopback
    return host == "localhost"


class ActionToken:
    """A token in its file, until `remove`."""

    def __init__(self, port: int, hosts: Sequence[str] = ("127.0.0.1",)) -> None:
        """Make a new token for the endpoints on this port of these addresses: another one may be another user's."""
        self._token, self._hosts = secrets.token_hex(32), " ".join(hosts)
        self.path: Path | None = None
        """None if no file could be made."""
        self.why = ""
        """Why none could be made in the last directory that was tried."""
        for directory in _directories():
            path = directory / _FILE.format(port)
            fresh = path.with_suffix(".new")
            try:
                directory.mkdir(mode=0o700, exist_ok=True)
                _check(directory)
                fresh.unlink(missing_ok=True)
                # O_EXCL, O_NOFOLLOW: a file or link that another user put there is not written through.
                fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "w") as file:
                    file.write(f"{self._token} {self._hosts}")
                self.path = fresh.replace(path)
            except OSError as error:
                self.why = f"{directory}: {error.strerror or error}"
            else:
                return

    def allows(self, authorization: str) -> bool:
        expected = f"Bearer {self._token}"
        return self.path is not None and hmac.compare_digest(authorization.encode(errors="replace"), expected.encode())

    def remove(self) -> None:
        """Remove the file, unless another process has replaced it."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                if self.path.read_text().startswith(self._token):
                    self.path.unlink()


def read_token(port: int, host: str = "localhost") -> tuple[str, str]:
    """Return the token for this port of `host`, and the address that has it. Raises VolplaneError with what to do."""
    tried = []
    for directory in _directories():
        path = directory / _FILE.format(port)
        try:
            _check(directory)
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
                token, *served = file.read().split() or [""]
            for address in ("127.0.0.1", "::1") if host == "localhost" else (host,):
                if {address, "::" if ":" in address else "0.0.0.0"} & set(served):  # noqa: S104 - nothing is bound
                    return token, address
            tried.append(f"{path}: the controller serves {', '.join(served)}, not {host}")
        except OSError as error:
            tried.append(f"{path}: {error.strerror or error}")
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
    yield Path(f"/tmp/volplane-{os.geteuid()}")  # noqa: S108 -- `_check` refuses one that another user made


def _check(directory: Path) -> None:
    """Raise PermissionError for a directory that others own or can write."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{directory} is not a directory that this user owns and nobody else can write")
