"""What is left out of a support bundle: values that may be secrets, and what tenants keep in annotations.

Secrets themselves are never read. A value is hidden if its name says that it is one, unless it only refers to one
(`env:`, `file:`, `secret:`). Hidden values are replaced by "***", so that one sees that something was there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from volplane.secret import HIDDEN

__all__ = ["without_secrets"]

_SECRET_NAME: Final = re.compile(
    r"pass(word|wd|phrase)?$|secret(?![-_s]*(name|namespace|ref)$)|token$|credential|private.?key|access.?key|api.?key",
    re.IGNORECASE,
)
_REFERENCE: Final = re.compile(r"(env|file|secret):\S+")
_MOUNT_OPTION: Final = re.compile(r"\b(pass(?:word|wd)?|secret|token|cred(?:ential)?s?)=[^,\s]*", re.IGNORECASE)
_OUR_ANNOTATION: Final = re.compile(r"([a-z0-9-]+\.)*(volplane\.dev|kubernetes\.io|k8s\.io)/")
_LEFT_OUT: Final = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})
_REFERENCES: Final = frozenset({"secretRef", "secretKeyRef", "imagePullSecrets"})
"""Fields of Kubernetes objects that name a Secret and hold none."""


def without_secrets(value: Any, name: str = "") -> Any:
    """A copy of JSON data without what may be secret. name: under which the value stands."""
    if isinstance(value, Mapping):
        return {key: _member(name, key, each) for key, each in value.items() if key not in _LEFT_OUT}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [without_secrets(each, name) for each in value]
    if not isinstance(value, str):
        return value
    if _SECRET_NAME.search(name) and not _REFERENCE.fullmatch(value):
        return HIDDEN
    return _MOUNT_OPTION.sub(rf"\1={HIDDEN}", value)


def _member(parent: str, key: str, value: Any) -> Any:
    if parent == "annotations" and not _OUR_ANNOTATION.match(key):
        return HIDDEN
    if parent == "env" and key == "value":
        return HIDDEN
    if key in _REFERENCES:
        return value
    return without_secrets(value, key)
