"""Ids that join log lines: the trace of a claim's whole life, and the span of one pass with what it began.

Both have the form of the W3C Trace Context (trace-id, parent-id), so that a backend can hand them on to its storage.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import secrets
from collections.abc import Mapping
from typing import Any

from volplane.controller import logs
from volplane.kube.cache import Cache
from volplane.kube.objects import KubeObject, Volume, VolumeAttachment

__all__ = ["new_span", "trace_of", "traceparent"]

_NONE = "0" * 32
_LAST = 1 << 64
_SPANS = itertools.count(secrets.randbits(62))
"""From a random start: two processes do not use the same ones."""


def trace_of(found: KubeObject | None, caches: Mapping[str, Cache[Any]]) -> str:
    """32 hex digits that all objects of a claim's life share; "" for none.

    Those of the claim's uid, without its dashes: of the claim that a volume is bound to or was made for, and that of
    the volume of an attachment. An object without a claim has its own uid.
    """
    if isinstance(found, VolumeAttachment):
        volumes = caches.get("persistentvolumes")
        volume = volumes.get(found.spec.source.persistent_volume_name or "") if volumes is not None else None
        return trace_of(volume, caches) if volume is not None else _of_uid(found.uid)
    if isinstance(found, Volume) and found.spec.claim_ref is not None and found.spec.claim_ref.uid:
        return _of_uid(found.spec.claim_ref.uid)
    return _of_uid(found.uid) if found is not None else ""


def new_span() -> str:
    """16 hex digits that nothing else has."""
    return f"{next(_SPANS) % _LAST:016x}"


def traceparent() -> str:
    """The header of this name for calls of the running task; "" outside of a pass and its operation.

    Source: W3C Trace Context, 3.2.
    """
    bound = logs.fields()
    trace, span = bound.get("trace"), bound.get("span")
    return f"00-{trace}-{span}-01" if trace and span else ""


@functools.lru_cache(maxsize=4096)
def _of_uid(uid: str) -> str:
    """A uid of Kubernetes is a UUID, which is as long as a trace id; other text is digested."""
    digits = uid.replace("-", "")
    if len(digits) == len(_NONE) and digits != _NONE and not digits.strip("0123456789abcdef"):
        return digits
    return hashlib.sha256(uid.encode()).hexdigest()[: len(_NONE)] if uid else ""
