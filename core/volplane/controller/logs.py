"""Logs as text or JSON, with fields of the running task.

Fields (operation, driver, object, controller, trace, span) are bound to the running task and its children, and are
added to every message that is logged there, by whatever module. Secrets of drivers are replaced in every line.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Literal, TextIO

import msgspec

from volplane._messages import escaped_json, sanitize
from volplane.secret import redacted

__all__ = ["bind", "bound", "configure", "fields", "log_stray_errors", "rebind"]

_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("volplane_log_fields")
_NONE: Mapping[str, str] = MappingProxyType({})
_COLOURS = {"DEBUG": "\x1b[2m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}
_RESET = "\x1b[0m"
_IDS = ("trace", "span")
"""Fields for programs, which text leaves out."""
_QUIET = ("aiohttp.access", "asyncio", "kubernetes", "botocore", "urllib3", "google")


def fields() -> Mapping[str, str]:
    """The fields bound to the running task."""
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


def bind(**more: str) -> Token[Mapping[str, str]]:
    """Add fields to everything logged from here on in this context. Empty values are left out."""
    given = more if all(more.values()) else {name: value for name, value in more.items() if value}
    return _FIELDS.set({**fields(), **given})


def rebind(base: Mapping[str, str], **more: str) -> None:
    """As `bind`, with `base` and nothing else of what was bound before: what a task does next."""
    _FIELDS.set({**base, **(more if all(more.values()) else {name: value for name, value in more.items() if value})})


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
    """Log what ends a thread, and errors that nobody can catch. Python prints them as they are, secrets included."""
    log = logging.getLogger("volplane")

    def in_thread(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_type is not SystemExit:
            name = failed.thread.name if failed.thread is not None else "unknown"
            log.error("thread %s has ended with an error", name, exc_info=_known(failed.exc_value))

    def uncaught(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
        log.critical("the process ends with an error", exc_info=error)

    def unraisable(failed: sys.UnraisableHookArgs) -> None:
        log.error(
            "%s: %r",
            failed.err_msg or "an error that cannot be raised",
            failed.object,
            exc_info=_known(failed.exc_value),
        )

    threading.excepthook = in_thread
    sys.excepthook = uncaught
    sys.unraisablehook = unraisable


def _known(error: BaseException | None) -> BaseException | bool:
    return error if error is not None else False


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
        told = {name: value for name, value in getattr(record, "fields", _NONE).items() if name not in _IDS}
        extra = " ".join(f"{name}={sanitize(value)}" for name, value in told.items())
        if extra:
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
