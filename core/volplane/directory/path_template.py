"""For authors of backends whose volumes are directories: paths from a class parameter such as `pathTemplate`.

A path is safe whatever tenants write into names, labels and annotations. Every component consists of `[A-Za-z0-9._-]`,
has 1 to 255 bytes and starts with neither "." nor "-", so it cannot be "..", nor a hidden file, nor a driver's own
directory. The last component ends with the claim's uid or is the volume's name, so no two volumes share a path. Render
a path once and keep it with the volume: the class and the names may change.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from volplane.errors import InvalidArgument
from volplane.requests import ClaimIdentity

__all__ = ["PathTemplate"]

DEFAULT_TEMPLATE = "${namespace}/${claim}-${uid}"
PLACEHOLDERS = ("namespace", "claim", "volume", "uid", "label:KEY", "annotation:KEY")
MAXIMUM_COMPONENTS = 8
MAXIMUM_BYTES = 255
"""Bytes of a name: NAME_MAX of Linux file systems."""

_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
_LITERAL = re.compile(r"[A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEY = re.compile(r"(label|annotation):[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def _sanitized(value: str) -> str:
    if not _UNSAFE.search(value):
        return value
    return f"{_UNSAFE.sub('_', value)}-{_digest(value, 12)}"  # values that differ stay different


def _uid(value: str) -> str:
    # Each form has a fixed length, so that `<anything>-<uid>` is unambiguous.
    return value if _UUID.fullmatch(value) else _digest(value, 32)


def _component(raw: str) -> str:
    text = f"_{raw}" if not raw or raw[0] in ".-" else raw
    if len(text) <= MAXIMUM_BYTES:
        return text
    tail = _digest(text, 16)
    return f"{text[: MAXIMUM_BYTES - 1 - len(tail)]}-{tail}"


def _parsed(text: str, component: str) -> tuple[str, ...]:
    """Return the tokens of one component: literals at even indices, names of placeholders at odd ones."""
    tokens = tuple(_PLACEHOLDER.split(component))
    for literal in tokens[::2]:
        if not _LITERAL.fullmatch(literal):
            raise InvalidArgument(
                f"pathTemplate {text!r}: {literal!r} is not allowed; besides placeholders use letters, digits and . _ -"
            )
    for name in tokens[1::2]:
        if name not in PLACEHOLDERS[:4] and not _KEY.fullmatch(name):
            near = get_close_matches(name, PLACEHOLDERS, n=1)
            hint = f"did you mean ${{{near[0]}}}?" if near else f"known are {', '.join(PLACEHOLDERS)}"
            raise InvalidArgument(f"pathTemplate {text!r}: no placeholder ${{{name}}}; {hint}")
    if component.startswith((".", "-")):
        raise InvalidArgument(f"pathTemplate {text!r}: a directory name may not start with {component[0]!r}")
    return tokens


def _is_unique(tokens: tuple[str, ...]) -> bool:
    ends_with_uid = len(tokens) > 1 and tokens[-1] == "" and tokens[-2] == "uid"
    return ends_with_uid or tokens == ("", "volume", "")


@dataclass(frozen=True, slots=True)
class PathTemplate:
    """A checked template, such as "${namespace}/${claim}-${uid}"."""

    components: tuple[tuple[str, ...], ...]

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(text: str) -> PathTemplate:
        """Read a template; raises `InvalidArgument` naming what is wrong and what would be right.

        If the last component neither ends with `${uid}` nor is `${volume}`, `-${uid}` is appended.
        """
        parts = re.split(r"/(?![^{]*\})", text)  # keys of labels may hold a slash
        if not all(parts):
            raise InvalidArgument(f"pathTemplate {text!r}: no empty directory names, no / at the start or end")
        if len(parts) > MAXIMUM_COMPONENTS:
            raise InvalidArgument(f"pathTemplate {text!r}: at most {MAXIMUM_COMPONENTS} levels")
        components = [_parsed(text, part) for part in parts]
        if not _is_unique(components[-1]):
            components[-1] = (*components[-1][:-1], f"{components[-1][-1]}-", "uid", "")
        return PathTemplate(tuple(components))

    def render(self, claim: ClaimIdentity, volume: str) -> str:
        """Return the path below the root, without leading or trailing slash.

        volume: its name. `${uid}` is the claim's uid; a digest of the volume's name where that is not
        `pvc-<uid>`, because only the name is unique then. A label or annotation that the claim lacks is "none".
        """
        uid = _uid(claim.uid) if volume == f"pvc-{claim.uid}" else _digest(volume, 32)

        def value(placeholder: str) -> str:
            kind, _, key = placeholder.partition(":")
            if key:
                return _sanitized((claim.labels if kind == "label" else claim.annotations).get(key) or "none")
            known = {"namespace": claim.namespace, "claim": claim.name, "volume": volume}
            return uid if placeholder == "uid" else _sanitized(known[placeholder])

        names: list[str] = []
        for tokens in self.components:
            parts = list(tokens)
            parts[1::2] = map(value, tokens[1::2])
            names.append(_component("".join(parts)))
        return "/".join(names)
