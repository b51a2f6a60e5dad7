"""Secrets of driver options: references in the configuration, their values, and redaction.

An option of kind `ParameterKind.SECRET` holds one of these references:

    env:NAME                        an environment variable of this process
    file:/PATH                      a file, without a newline at its end
    secret:NAMESPACE/NAME/KEY       a key of a Kubernetes Secret, without a newline at its end
    secret:NAMESPACE/NAME/*         all its keys, as a JSON object

The backend gets a `Secret` and calls `reveal`. Revealed values are replaced by `***` in all logs of this process and in
the messages of hooks, and so is what stands beside the name of a secret. A result that has a revealed one is refused.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote, quote_plus

from volplane._messages import one_line, sanitize
from volplane.errors import Unavailable

HIDDEN: Final = "***"
"""The text that replaces a secret in logs and messages."""
LONGEST: Final = 65_536
"""The longest file of a secret, in characters."""
SHORTEST_HIDDEN: Final = 4
"""Characters; shorter secrets are not redacted, because they occur in ordinary words."""
SHORTEST_FOUND: Final = 8
"""Characters; results of hooks are not searched for shorter secrets."""
SHORTEST_ENCODED: Final = 6
"""Characters; the encoded forms of shorter secrets are not redacted, because they occur in ordinary words."""
MOST_HIDDEN: Final = 100
"""Secrets that are redacted; the oldest is dropped first."""

_PATTERNS: Final = (
    re.compile(r"(?P<place>env):(?P<where>[A-Za-z_][A-Za-z0-9_]*)", re.ASCII),
    re.compile(r"(?P<place>file):(?P<where>/[^\0\n]*[^\0\n/])"),
    re.compile(
        r"(?P<place>secret):(?P<where>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?)"
        r"/(?P<key>[-._A-Za-z0-9]{1,253}|\*)",
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

    __slots__ = ("_given", "_revealed", "key", "lacking", "needed", "place", "reference", "where")

    def __init__(self, reference: str, needed: bool = True) -> None:
        """reference: env:…, file:… or secret:…. needed: the driver does not start without it.

        Raises ValueError without the text, which may be the secret itself.
        """
        match = next(filter(None, (pattern.fullmatch(reference) for pattern in _PATTERNS)), None)
        if match is None:
            raise ValueError("expected env:NAME, file:/PATH or secret:NAMESPACE/NAME/KEY")
        self.reference: Final = reference
        self.place: Final = SecretPlace(match["place"])
        self.where: Final = match["where"]
        """Name of the variable, path of the file, or `namespace/name` of the Kubernetes Secret."""
        self.key: Final = match.groupdict().get("key") or ""
        """The key in the Kubernetes Secret, "*" for all of them, or ""."""
        self.needed: Final = needed
        self.lacking = ""
        """Why a Kubernetes Secret could not be read last."""
        self._given: str | None = None
        self._revealed = ""

    def __repr__(self) -> str:
        return f"<Secret {self.reference}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.reference == self.reference

    def __hash__(self) -> int:
        return hash(self.reference)

    def __reduce__(self) -> tuple[type[Secret], tuple[str, bool]]:
        """Copy and pickle the reference, not the value."""
        return type(self), (self.reference, self.needed)

    def reveal(self) -> str:
        """Return the present value, not empty. Raises Unavailable with the reference and the reason."""
        match self.place:
            case SecretPlace.ENVIRONMENT:
                if (text := os.environ.get(self.where)) is None:
                    raise Unavailable(f"environment variable {self.where} is not set")
            case SecretPlace.FILE:
                text = self._read_file()
            case SecretPlace.KUBERNETES:
                if (text := self._given) is None:
                    why = "only controllers of a cluster read its Secrets; elsewhere name env:NAME or file:/PATH"
                    raise Unavailable(self.lacking or f"key {self.key} of Secret {self.where} is not known: {why}")
        if not text:
            raise Unavailable(f"{self.reference} is empty")
        _hide(text)
        self._revealed = text
        return text

    def is_in(self, value: object) -> bool:
        """Tell whether a nested value contains the value revealed last. False if that has less than 8 characters."""
        return len(self._revealed) >= SHORTEST_FOUND and _holds(value, self._revealed)

    def give(self, text: str) -> None:
        """Set the value of a Kubernetes Secret. For volplane and for tests of backends."""
        self.lacking = ""
        self._given = text.removesuffix("\n").removesuffix("\r")

    def _read_file(self) -> str:
        try:
            with open(self.where, encoding="utf-8", newline="") as file:  # noqa: PTH123 - bounded
                text = file.read(LONGEST + 1)
        except OSError as error:
            raise Unavailable(f"file {self.where} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise Unavailable(f"file {self.where} is no UTF-8 text") from None
        if len(text) > LONGEST:
            raise Unavailable(f"file {self.where} is longer than {LONGEST} characters")
        return text.removesuffix("\n").removesuffix("\r")


# --- hiding -----------------------------------------------------------------------------------------------------

_NAME: Final = (
    r"(?:passw\w*|passphrase|(?<![a-z])pass(?![a-z])|pwd|secret(?![-_s]*(?:name|namespace|ref)\b)|token|credentials?"
    r"|private|dsn|connection.?string|(?:access|api|auth|account|secret)[-_.]?key)"
)
SECRET_NAME: Final = re.compile(_NAME, re.IGNORECASE)
"""What is found in the name of a field or option that is secret."""
_NAMED: Final = re.compile(
    rf"""
    ( {_NAME} (?: \\*["']?\s?=\s?b?          # password=x, PASSWORD = 'x'
                | \\*["']:\s?b?(?=\\*["'])   # "token": "x", 'X-Amz-Security-Token': b'x'
                | >(?=[^<>]*</)              # <SecretAccessKey>x</SecretAccessKey>
                | (?<=token):(?=\S) )        # x-amz-security-token:x
    | (?<![-\w])--?[-\w]{{0,40}}?{_NAME}\s   # --db-pass x
    | \bbearer\s(?=[-\w.~+/=]{{16}}) )
    (?!\\*["']?(?:env|file|secret):)         # a reference is no secret
    (?: (\\*["'])(?:(?!\2)[^\n])* | [^\s"'<>&,;]+ )
    """,
    re.IGNORECASE | re.VERBOSE,
)
_IN_URL: Final = re.compile(r"""(\w://[^\s/:@"'<>]{0,256}:)[^\s/"'<>]+(?=@)""")
_HINTS: Final = ("pass", "pwd", "secret", "token", "cred", "key", "://", "bearer")
"""In small letters; a text without any of these is not searched, because that takes 0.1 ms."""

_hiding = threading.Lock()
_revealed: dict[str, frozenset[str]] = {}
"""Revealed text -> the spellings of it that are redacted; the oldest comes first."""
_hidden: tuple[str, ...] = ()
"""All redacted spellings in lower case, the longest first. Replaced as a whole, so readers need no lock."""


def _hide(text: str) -> None:
    global _hidden  # noqa: PLW0603 - process-wide, as logging is
    if text in _revealed or len(text) < SHORTEST_HIDDEN:
        return
    with _hiding:
        _revealed[text] = frozenset(_spellings(text))
        for oldest in list(_revealed)[: max(0, len(_revealed) - MOST_HIDDEN)]:
            del _revealed[oldest]
        parts = {_lower(part) for parts in _revealed.values() for part in parts}
        _hidden = tuple(sorted(parts, key=len, reverse=True))


def _spellings(text: str) -> Iterator[str]:
    """Yield the secret and its lines as logs and messages show them, and as headers and URLs encode it."""
    for part in (text, *(line.strip() for line in text.splitlines())):
        if len(part) >= SHORTEST_HIDDEN:
            yield from (part, part.replace("\t", " "), sanitize(part), one_line(part))
            # As `repr` and JSON escape it.
            yield from (repr(part)[1:-1], json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1])
    if len(text) >= SHORTEST_ENCODED:
        data = text.encode("utf-8", "surrogateescape")
        yield from (data.hex(), quote(data), quote(data, safe=""), quote_plus(data))
        # The characters that the Base64 text of any longer data contains: there are three alignments.
        for before in range(3):
            whole = base64.b64encode(bytes(before) + data)
            inner = whole[-(-before * 8 // 6) : (before + len(data)) * 8 // 6].decode()
            yield from (inner, inner.replace("+", "-").replace("/", "_"))


def _lower(text: str) -> str:
    """Return the text in lower case, with the same number of characters."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := character.lower()) == 1 else character for character in text)


def redacted(text: str) -> str:
    """Replace by `***` what was revealed, in any case of letters, values beside names of secrets, passwords of URLs."""
    lowered = _lower(text)
    if any(hint in lowered for hint in _HINTS):
        text = _IN_URL.sub(rf"\1{HIDDEN}", _NAMED.sub(rf"\1\2{HIDDEN}", text))
        lowered = _lower(text)
    for part in _hidden:
        at = lowered.find(part)
        while at >= 0:
            text = f"{text[:at]}{HIDDEN}{text[at + len(part) :]}"
            lowered = f"{lowered[:at]}{HIDDEN}{lowered[at + len(part) :]}"
            at = lowered.find(part, at + len(HIDDEN))
    return text


def _holds(value: object, text: str) -> bool:
    if isinstance(value, str):
        return text in value
    if isinstance(value, bytes):
        return text.encode() in value
    if isinstance(value, Mapping):
        value = (*value.keys(), *value.values())
    elif is_dataclass(value):
        value = [getattr(value, each.name) for each in fields(value)]
    return isinstance(value, list | tuple | set | frozenset) and any(_holds(item, text) for item in value)
