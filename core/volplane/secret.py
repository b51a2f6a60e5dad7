"""Secrets of driver options: a reference in the configuration, the value read when it is needed, and its redaction.

An option of kind `ParameterKind.SECRET` holds a reference, one of

    env:NAME                        an environment variable of this process
    file:/PATH                      a file; a newline at its end is left out
    secret:NAMESPACE/NAME/KEY       a key of a Kubernetes Secret; a newline at its end is left out

The backend gets a `Secret` and calls `reveal`. Revealed values are replaced by `***` in all logs of this process and in
messages of hooks; a result of a hook that contains one is refused.
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
"""Replaces a secret in logs and messages."""
LONGEST: Final = 65_536
"""Characters of a file that holds a secret."""
SHORTEST_HIDDEN: Final = 4
"""Characters; shorter secrets are not redacted, because they occur in ordinary words."""
SHORTEST_LINE: Final = 8
"""Characters; lines of a multi-line secret (a key file) that are as long are redacted too."""
MOST_HIDDEN: Final = 1_000
"""Texts that are redacted; the oldest is dropped first."""

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
    """The kind of a reference."""

    ENVIRONMENT = "env"
    FILE = "file"
    KUBERNETES = "secret"


class Secret:
    """The reference to a secret. Only `reveal` returns the value; `repr` and `str` show the reference.

    Call `reveal` for each use, so that a changed secret is used. It reads the environment or a file; a Kubernetes
    Secret is in memory, because volplane reads it before `start` and every 30 s.
    """

    __slots__ = ("_given", "_revealed", "key", "place", "reference", "where")

    def __init__(self, reference: str) -> None:
        """reference: env:…, file:… or secret:…. Raises ValueError without the text, which may be the secret itself."""
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
        """A copy or a pickle holds the reference, not the value."""
        return type(self), (self.reference,)

    def reveal(self) -> str:
        """The present value, not empty. Raises Unavailable with the reference and the reason."""
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
        """Whether a nested value contains the secret revealed last; False if that is shorter than 8 characters."""
        return len(self._revealed) >= SHORTEST_LINE and _holds(value, self._revealed)

    def give(self, text: str) -> None:
        """Set the value of a Kubernetes Secret. For volplane and for tests of backends."""
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
"""Revealed texts, the oldest first."""
_hidden: tuple[str, ...] = ()
"""The same, the longest first. Replaced as a whole, so readers need no lock."""


def _hide(text: str) -> None:
    global _hidden  # noqa: PLW0603 - process-wide, as logging is
    if text in _revealed or len(text) < SHORTEST_HIDDEN:
        return
    parts = {text, *(line.strip() for line in text.splitlines() if len(line.strip()) >= SHORTEST_LINE)}
    # As `repr` and JSON escape them.
    parts |= {spell(part)[1:-1] for part in parts for spell in (repr, json.dumps, _json)}
    with _hiding:
        _revealed.update(dict.fromkeys(parts))
        for oldest in list(_revealed)[: max(0, len(_revealed) - MOST_HIDDEN)]:
            del _revealed[oldest]
        _hidden = tuple(sorted(_revealed, key=len, reverse=True))


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def redacted(text: str) -> str:
    """The text with `***` in place of every secret that this process has revealed."""
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
