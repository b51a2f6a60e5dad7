"""Secrets that options name and do not hold: where one is, what it is just now, and that nothing shows it.

An option of kind `ParameterKind.SECRET` holds a reference, one of

    env:NAME                        an environment variable of this process
    file:/PATH                      a file; a newline at its end is left out
    secret:NAMESPACE/NAME/KEY       a key of a Kubernetes Secret; a newline at its end is left out

The backend gets a `Secret`, and reads it when it needs it. What it has read is left out of everything that this process
logs and of every message and result of a hook, even where a backend is careless with it.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Final

from volplane.errors import Unavailable

__all__ = ["HIDDEN", "Secret", "SecretPlace", "redacted"]

HIDDEN: Final = "***"
"""What stands where a secret stood."""
LONGEST: Final = 65_536
"""Bytes of a file that is meant as a secret."""
SHORTEST_HIDDEN: Final = 4
"""Characters: to hide shorter texts would make every message illegible."""
SHORTEST_LINE: Final = 8
"""Characters of a line of a secret of several, such as a key file."""
MOST_HIDDEN: Final = 1_000

_PATTERNS: Final = (
    re.compile(r"(?P<place>env):(?P<where>[A-Za-z_][A-Za-z0-9_]*)", re.ASCII),
    re.compile(r"(?P<place>file):(?P<where>/[^\0\n]*[^\0\n/])"),
    re.compile(
        r"(?P<place>secret):(?P<where>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?)"
        r"/(?P<key>[-._A-Za-z0-9]{1,253})",
        re.ASCII,
    ),
)


class SecretPlace(StrEnum):
    """Where a secret is kept."""

    ENVIRONMENT = "env"
    FILE = "file"
    KUBERNETES = "secret"


class Secret:
    """A secret that an option names. `reveal` reads it; nothing else shows it, `repr` and `str` name its place.

    Read it late and each time, so that a changed one is used: it costs a look at the environment, a small file, or (a
    Kubernetes Secret, which volplane reads before `start` and every 30 s) nothing.
    """

    __slots__ = ("_given", "_revealed", "key", "place", "reference", "where")

    def __init__(self, reference: str) -> None:
        """reference: as in the module's table. Raises ValueError, which does not show it: it may be the secret
        itself.
        """
        match = next(filter(None, (pattern.fullmatch(reference) for pattern in _PATTERNS)), None)
        if match is None:
            raise ValueError("expected env:NAME, file:/PATH or secret:NAMESPACE/NAME/KEY")
        self.reference: Final = reference
        self.place: Final = SecretPlace(match["place"])
        self.where: Final = match["where"]
        """Name of the variable, path of the file, or `namespace/name` of the Kubernetes Secret."""
        self.key: Final = match.groupdict().get("key") or ""
        """In the Kubernetes Secret."""
        self._given: str | None = None
        self._revealed = ""

    def __repr__(self) -> str:
        return f"<Secret {self.reference}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reference == self.reference

    def __hash__(self) -> int:
        return hash(self.reference)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        """A copy or a pickle has the reference, not the secret."""
        return type(self), (self.reference,)

    def reveal(self) -> str:
        """The secret as it is now, not empty. Raises Unavailable that names the place and what is wrong."""
        match self.place:
            case SecretPlace.ENVIRONMENT:
                text = self._of_environment()
            case SecretPlace.FILE:
                text = self._of_file()
            case SecretPlace.KUBERNETES:
                text = self._of_cluster()
        if not text:
            raise Unavailable(f"{self.reference} is empty")
        _hide(text)
        self._revealed = text
        return text

    def is_in(self, value: object) -> bool:
        """Whether a value, however nested, holds what was revealed last; False if that is below 8 characters."""
        return len(self._revealed) >= SHORTEST_LINE and _holds(value, self._revealed)

    def give(self, text: str) -> None:
        """Keep what the Kubernetes Secret holds now. Called by volplane, by tests of backends, and by nobody else."""
        self._given = _without_newline(text)

    def _of_environment(self) -> str:
        text = os.environ.get(self.where)
        if text is None:
            raise Unavailable(f"environment variable {self.where} is not set")
        return text

    def _of_file(self) -> str:
        try:
            with open(self.where, encoding="utf-8", newline="") as file:  # noqa: PTH123 - bounded
                text = file.read(LONGEST + 1)
        except OSError as error:
            raise Unavailable(f"file {self.where} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise Unavailable(f"file {self.where} is no UTF-8 text") from None
        if len(text) > LONGEST:
            raise Unavailable(f"file {self.where} is longer than {LONGEST} characters")
        return _without_newline(text)

    def _of_cluster(self) -> str:
        if self._given is None:
            raise Unavailable(
                f"key {self.key} of Secret {self.where} is not known: only controllers of a cluster read its Secrets; "
                "elsewhere name env:NAME or file:/PATH"
            )
        return self._given


def _without_newline(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


# --- hiding -----------------------------------------------------------------------------------------------------

_hiding = threading.Lock()
_revealed: dict[str, None] = {}
"""What has been revealed, the oldest first."""
_hidden: tuple[str, ...] = ()
"""The same, the longest first; replaced as a whole, so that it may be read without the lock."""


def _hide(text: str) -> None:
    global _hidden  # noqa: PLW0603 - it belongs to the process, as its logs do
    if text in _revealed or len(text) < SHORTEST_HIDDEN:
        return
    parts = {text, *(line.strip() for line in text.splitlines() if len(line.strip()) >= SHORTEST_LINE)}
    # As `repr` and JSON spell them.
    parts |= {spell(part)[1:-1] for part in parts for spell in (repr, json.dumps, _json)}
    with _hiding:
        _revealed.update(dict.fromkeys(parts))
        for oldest in list(_revealed)[: max(0, len(_revealed) - MOST_HIDDEN)]:
            del _revealed[oldest]
        _hidden = tuple(sorted(_revealed, key=len, reverse=True))


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def redacted(text: str) -> str:
    """`text` without any secret that this process has revealed, `***` in their places."""
    for part in _hidden:
        if part in text:
            text = text.replace(part, HIDDEN)
    return text


def _holds(value: object, text: str) -> bool:
    if isinstance(value, str):
        return text in value
    if isinstance(value, bytes):
        return text.encode() in value
    if isinstance(value, Mapping):
        return any(_holds(key, text) or _holds(item, text) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_holds(item, text) for item in value)
    if is_dataclass(value):
        return any(_holds(getattr(value, each.name), text) for each in fields(value))
    return False
