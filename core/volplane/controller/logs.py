"""Logs as text or JSON, with fields of the running task.

Fields (operation, driver, object, controller, trace, span) are bound to the running task and its children, and are
added to every message that is logged there, by whatever module. Secrets of drivers are replaced in every line.

A trace is common to all objects of a claim's life; a span is one pass over a key, with the operation that it starts.
Both have the form of the W3C Trace Context (trace-id, parent-id), so that a backend can hand them on to its storage.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, TextIO

import msgspec

from volplane._messages import escaped_json, sanitize
from volplane.kube.cache import Cache
from volplane.kube.objects import KubeObject, Volume, VolumeAttachment
from volplane.secret import redacted

_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("volplane_log_fields")
_NONE: Mapping[str, str] = MappingProxyType({})
_COLOURS = {"DEBUG": "\x1b[2m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}
_RESET = "\x1b[0m"
_IDS = ("trace", "span")
"""Fields for programs, which text leaves out."""
_NO_TRACE = "0" * 32
_SPANS = itertools.count(secrets.randbits(62))
"""From a random start: two processes do not use the same ones."""
_QUIET = ("aiohttp.access", "asyncio", "kubernetes", "botocore", "urllib3", "google")


def fields() -> Mapping[str, str]:
    return _FIELDS.get(_NONE)


@contextlib.contextmanager
def bound(**more: str) -> Iterator[None]:
    """Add fields to everything logged inside. Empty values are left out."""
    token = bind(**more)
    try:
        yield
    finally:
        # A task that was abandoned is closed from somewhere else, whose fields are not ours.
        with contextlib.suppress(ValueError):
            _FIELDS.reset(token)


def bind(base: Mapping[str, str] | None = None, /, **more: str) -> Token[Mapping[str, str]]:
    """Add fields to everything logged from here on in this context. Empty values are left out.

    base: the fields they are added to; None = those that are bound.
    """
    given = more if all(more.values()) else {name: value for name, value in more.items() if value}
    return _FIELDS.set({**(fields() if base is None else base), **given})


def configure(
    form: Literal["text", "json"] = "text", *, verbosity: int = 0, stream: TextIO | None = None
) -> logging.Handler:
    """Send the logs of the process to `stream` (default stderr). Returns the handler, so that it can be removed.

    verbosity: 0 = info, 1 = debug of volplane, 2 = debug of everything. Text is coloured only on a terminal.
    """
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.addFilter(_bind)
    handler.setFormatter(_Json() if form == "json" else _Text(colour=target.isatty()))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
    logging.getLogger("volplane").setLevel(logging.DEBUG if verbosity else logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if verbosity > 1 else logging.WARNING)
    return handler


def log_stray_errors() -> None:
    """Log what ends a thread, and errors that cannot be caught: Python would print them with the secrets in them."""
    log = logging.getLogger("volplane")

    def in_thread(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_type is not SystemExit:
            name = failed.thread.name if failed.thread is not None else "unknown"
            log.error("thread %s has ended with an error", name, exc_info=failed.exc_value or False)

    threading.excepthook = in_thread
    sys.excepthook = lambda _kind, error, _trace: log.critical("the process ends with an error", exc_info=error)
    sys.unraisablehook = lambda failed: log.error(
        "%s: %r", failed.err_msg or "an error that cannot be raised", failed.object, exc_info=failed.exc_value or False
    )


def _bind(record: logging.LogRecord) -> bool:
    """Keep the fields with the record: a handler may format it in another task."""
    if not hasattr(record, "fields"):
        record.fields = fields()
    return True


class _Text(logging.Formatter):
    """`20:15:04.123 W runner: message  object=default/data`."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        where = record.name.removeprefix("volplane.")
        text = f"{when} {record.levelname[0]} {where}: {sanitize(record.getMessage())}"
        shown = {name: value for name, value in getattr(record, "fields", _NONE).items() if name not in _IDS}
        if extra := " ".join(f"{name}={sanitize(value)}" for name, value in shown.items()):
            text += f"  {extra}"
        if record.exc_info:
            text += "\n" + "\n".join(map(sanitize, self.formatException(record.exc_info).splitlines()))
        text = redacted(text)
        start = _COLOURS.get(record.levelname, "") if self._colour else ""
        return f"{start}{text}{_RESET}" if start else text


class _Json(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message, the fields, error with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(sanitize(record.getMessage())),
            **{name: redacted(sanitize(value)) for name, value in getattr(record, "fields", _NONE).items()},
        }
        if record.exc_info:
            error = self.formatException(record.exc_info).encode("utf-8", "backslashreplace").decode()
            line["error"] = redacted(error)
        return escaped_json(msgspec.json.encode(line).decode())


def trace_of(found: KubeObject | None, caches: Mapping[str, Cache[Any]]) -> str:
    """Return the 32 hex digits that all objects of a claim's life share; "" for no object.

    They are the claim's uid without its dashes: of the claim that a volume is bound to or was made for, and of the
    claim of an attachment's volume. An object without a claim has its own uid.
    """
    if isinstance(found, VolumeAttachment):
        volumes = caches.get("persistentvolumes")
        volume = volumes.get(found.spec.source.persistent_volume_name or "") if volumes is not None else None
        return trace_of(volume, caches) if volume is not None else _of_uid(found.uid)
    if isinstance(found, Volume) and found.spec.claim_ref is not None and found.spec.claim_ref.uid:
        return _of_uid(found.spec.claim_ref.uid)
    return _of_uid(found.uid) if found is not None else ""


def new_span() -> str:
    """Return 16 hex digits that no other span has."""
    return f"{next(_SPANS) % (1 << 64):016x}"


def traceparent() -> str:
    """Return the header of W3C Trace Context 3.2 for calls of the running task; "" outside of a pass."""
    trace, span = fields().get("trace"), fields().get("span")
    return f"00-{trace}-{span}-01" if trace and span else ""


@functools.lru_cache(maxsize=4096)
def _of_uid(uid: str) -> str:
    """Return a trace id. A uid of Kubernetes is a UUID, which is as long as a trace id; other text is digested."""
    digits = uid.replace("-", "")
    if len(digits) == len(_NO_TRACE) and digits != _NO_TRACE and not digits.strip("0123456789abcdef"):
        return digits
    return hashlib.sha256(uid.encode()).hexdigest()[: len(_NO_TRACE)] if uid else ""
