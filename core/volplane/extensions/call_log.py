"""Writes a line of JSON for every call of a hook that changes something, with outcome and duration."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from volplane import BackendError, Param, ParameterSchema, hookimpl, read_parameters, redacted

log = logging.getLogger(__name__)

LOGGED: Final = (
    *("provision", "delete", "find", "recycle", "attach", "detach", "expand", "modify", "adopt"),
    *("create_snapshot", "find_snapshot", "delete_snapshot"),
    *("create_group_snapshot", "find_group_snapshot", "delete_group_snapshot"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    path: Annotated[str, Param("File that the lines are appended to.")]
    hooks: Annotated[
        tuple[str, ...], Param("Hooks to log; those that only ask are not in the default.", choices=LOGGED)
    ] = LOGGED


class CallLog:
    """Appends one line per call to a file.

    Fields: time (RFC 3339, UTC), driver, hook, asset, snapshot, claim, node, seconds, outcome ("ok" or the error's
    class), result (its type), code and message of an error. Parameters and options are never written. If the file
    cannot be written, a warning is logged once and the call goes on. The file is opened for every line, so it may be
    rotated.
    """

    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Options)

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        given = read_parameters(Options, options)
        self._path, self.hooks = Path(given.path), frozenset(given.hooks)
        self._now = now
        self.monotonic = monotonic
        self._lock = threading.Lock()
        self._failing = False

    def write(self, hook: str, request: Any, began: float, end: Mapping[str, object]) -> None:
        """Append the line of a call that `end` describes. began: monotonic time."""
        line = {"time": self._now().isoformat(timespec="milliseconds"), "driver": request.context.driver, "hook": hook}
        volume, claim, node = (getattr(request, name, None) for name in ("volume", "claim", "node"))
        if volume is not None:
            line["asset"] = volume.handle
        name = getattr(request, "handle", None) or getattr(request, "name", None)
        if name and "snapshot" in hook:
            line["snapshot"] = name
        elif name:
            line["asset"] = name
        if claim is not None:
            line["claim"] = f"{claim.namespace}/{claim.name}"
        if node is not None:
            line["node"] = node.name
        line |= {"seconds": round(self.monotonic() - began, 3), **end}
        shown = {key: redacted(value) if isinstance(value, str) else value for key, value in line.items()}
        text = json.dumps(shown, ensure_ascii=False) + "\n"
        with self._lock:
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(text)
                self._failing = False
            except OSError as error:
                if not self._failing:
                    log.warning("call log %s cannot be written: %s", self._path, error)
                self._failing = True


def _logging(hook: str) -> Callable[..., Generator[None, Any, Any]]:
    """Return the wrapper of a hook, which logs the call if the options name the hook."""

    @hookimpl(wrapper=True)
    def wrapper(self: CallLog, request: Any) -> Generator[None, Any, Any]:
        if hook not in self.hooks:
            return (yield)
        began = self.monotonic()
        try:
            result = yield
        except Exception as error:
            end = {"outcome": type(error).__name__, "message": " ".join(str(error).split())}
            if isinstance(error, BackendError) and error.code:
                end["code"] = error.code
            self.write(hook, request, began, end)
            raise
        self.write(hook, request, began, {"outcome": "ok", "result": type(result).__name__})
        return result

    return wrapper


for _hook in LOGGED:
    setattr(CallLog, _hook, _logging(_hook))
