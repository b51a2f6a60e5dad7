"""Ends a hook in its middle: at the n-th line of the backend's own code."""

from __future__ import annotations

import ast
import inspect
import math
import os
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from volplane.hookspecs import BackendSpec
from volplane_testing.conformance.violations import HungCall

__all__ = ["CallWatch", "Crash", "OwnCode", "call_in_thread", "crash_at", "die_at", "watch_calls"]

_DIED: Final = 91
_POLL: Final = 0.005
OURS: Final = ("volplane", "volplane_testing")
"""Packages in which a backend may stand beside what is no backend: of these only its module is its own code."""


class Crash(BaseException):
    """The end of the process, as far as the backend's code is concerned."""


class OwnCode:
    """Which lines are the backend's: the files of its packages, but not those that play the storage.

    spare: leave out the lines on which something is released (`with` and `finally`): an exception there would keep a
    lock of this process for ever, which no real crash does.
    """

    def __init__(self, backend: object, storage_modules: tuple[str, ...] = (), *, spare: bool = False) -> None:
        kinds = [kind for kind in type(backend).__mro__ if kind not in (object, BackendSpec)]
        self._places = {place for kind in kinds if (place := _place(kind.__module__)) is not None}
        self._storage = {place for name in storage_modules if (place := _place(name, whole=False)) is not None}
        self._known: dict[str, bool] = {}
        self._spare = spare
        self._spared: dict[str, frozenset[int]] = {}

    def counts(self, file: str, line: int) -> bool:
        """Whether a crash may happen at this line of a file that is one of ours."""
        if not self._spare:
            return True
        if file not in self._spared:
            self._spared[file] = _releasing_lines(file)
        return line not in self._spared[file]

    def __contains__(self, file: str) -> bool:
        if file not in self._known:
            self._known[file] = _within(file, self._places) and not _within(file, self._storage)
        return self._known[file]


def _place(module: str, *, whole: bool = True) -> str | None:
    """File or directory (with a slash) of a module; whole: of its whole distribution package."""
    top = module.partition(".")[0]
    loaded = sys.modules.get(top if whole and top not in OURS else module)
    if loaded is None:
        return None
    for directory in getattr(loaded, "__path__", ()):
        return f"{Path(directory)}{os.sep}"
    return getattr(loaded, "__file__", None)


def _releasing_lines(file: str) -> frozenset[int]:
    try:
        tree = ast.parse(Path(file).read_text("utf-8"))
    except (OSError, SyntaxError):
        return frozenset()
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            lines.update(range(node.lineno, node.body[0].lineno))
        elif isinstance(node, ast.Try):
            for step in node.finalbody:
                lines.update(range(step.lineno, (step.end_lineno or step.lineno) + 1))
    return frozenset(lines)


def _within(file: str, places: set[str]) -> bool:
    return any(file == place or (place.endswith(os.sep) and file.startswith(place)) for place in places)


class _Tracer:
    """Counts lines of own code; calls `end` at line number `step` (0: never)."""

    def __init__(self, own: OwnCode, step: int, end: Callable[[], None]) -> None:
        self.lines = 0
        self._own = own
        self._step = step
        self._end = end

    def trace(self, frame: types.FrameType, event: str, _: Any) -> Any:
        return self.line if event == "call" and frame.f_code.co_filename in self._own else None

    def line(
        self, frame: types.FrameType, event: Literal["call", "line", "return", "exception", "opcode"], __: Any
    ) -> Any:
        if event == "line" and self._own.counts(frame.f_code.co_filename, frame.f_lineno):
            self.lines += 1
            if self.lines == self._step:
                self._end()
        return self.line

    def run(self, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            return call()
        finally:
            sys.settrace(before)


def _crash() -> None:
    raise Crash


def crash_at(step: int, call: Callable[[], Any], own: OwnCode, patience: float | None, what: str = "a hook") -> int:
    """Run `call` until the `step`-th line of own code, where Crash is raised; 0 lets it finish. How many lines ran.

    The call's result or error is dropped, as by the end of the process.
    """
    tracer = _Tracer(own, step, _crash)

    def run() -> None:
        try:
            tracer.run(call)
        except (Crash, Exception):  # noqa: BLE001 - a dead process returns nothing
            return

    call_in_thread(run, patience, what)
    return tracer.lines


def die_at(step: int, call: Callable[[], Any], own: OwnCode, patience: float | None, what: str = "a hook") -> bool:
    """Run `call` in a child process that ends without a trace at the `step`-th line of own code; whether it got
    there. Raises HungCall if it takes too long; the child is killed then, and when this call is interrupted.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; the child uses none of them
        child = os.fork()
    if child == 0:
        _live_and_die(step, call, own)
    end = math.inf if patience is None else time.monotonic() + patience
    status = (0, 0)
    try:
        while status == (0, 0):
            if time.monotonic() > end:
                raise HungCall(what, f"{what} did not return within {patience:g} s in a child process")
            time.sleep(_POLL)
            status = os.waitpid(child, os.WNOHANG)
    finally:
        if status == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status[1]) == _DIED


def _live_and_die(step: int, call: Callable[[], Any], own: OwnCode) -> None:
    try:
        _Tracer(own, step, lambda: os._exit(_DIED)).run(call)
    finally:
        os._exit(0)


class CallWatch:
    """Is told of each call that `call_in_thread` makes in this process. This one ignores it."""

    def begun(self, what: str, patience: float | None) -> int:
        """A call begins; a number for it."""
        return 0

    def over(self, number: int) -> None:
        """The call has returned, or is not waited for any more."""


_watch = CallWatch()


def watch_calls(watch: CallWatch) -> None:
    """Tell `watch` of all calls from now on. For a process that does nothing but judge."""
    global _watch  # noqa: PLW0603 - one process judges for one parent
    _watch = watch


def call_in_thread(call: Callable[[], Any], patience: float | None, what: str) -> Any:
    """What `call` returns or raises in a thread of its own, as hooks are called. Raises HungCall if it takes too long.

    patience: real seconds; None = no limit, and no thread.
    """
    number = _watch.begun(what, patience)
    try:
        return call() if patience is None else _returned(call, patience, what)
    finally:
        _watch.over(number)


def _returned(call: Callable[[], Any], patience: float, what: str) -> Any:
    values: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            values.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again for the caller
            errors.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(patience)
    if errors:
        raise errors.pop()
    if not values:
        raise HungCall(what, f"{what} did not return within {patience:g} s{_where(thread)}")
    return values.pop()


def _where(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the only way to say where it hangs
    if frame is None:
        return ""
    place = inspect.getframeinfo(frame, context=0)
    return f"; it waits in {place.function}, {place.filename} line {place.lineno}"
