"""Backends that fail on demand: a wrapper around any backend, with a script of faults by hook and call.

    FaultyBackend(backend, {"provision": [FailBefore(Throttled("slow down")), FailAfter()], "delete": {2: Hang()}})

The first `provision` is throttled, the second makes the asset but its answer is lost; the second `delete` hangs. What
the script does not name goes through. Works with every driver, and in a `Cluster`, where its delays pass in virtual
time.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from volplane.drivers.contract import HOOKS, marks
from volplane.errors import ConfigurationError
from volplane.hookspecs import hookimpl
from volplane.schemas import ParameterSchema

__all__ = [
    "Answer",
    "FailAfter",
    "FailBefore",
    "Fault",
    "FaultyBackend",
    "FaultyCall",
    "Hang",
    "Pause",
    "Script",
    "Slow",
    "Twice",
]


Pause = Callable[[float], None]
"""Waits so many seconds; infinity: until the backend is released."""


@dataclass(frozen=True, slots=True)
class FailBefore:
    """The call raises `error` and has no effect."""

    error: BaseException

    def play(self, call: Callable[[], Any], pause: Pause) -> Any:
        """Make one call with this fault."""
        raise self.error


@dataclass(frozen=True, slots=True)
class FailAfter:
    """The call takes effect, and raises `error` (None: a TimeoutError) instead of its answer: a lost answer."""

    error: BaseException | None = None

    def play(self, call: Callable[[], Any], pause: Pause) -> Any:
        """Make one call with this fault."""
        call()
        raise self.error or TimeoutError("the answer was lost")


@dataclass(frozen=True, slots=True)
class Hang:
    """The call does not return until `FaultyBackend.release`; then it takes effect.

    In a `Cluster` it never does.
    """

    def play(self, call: Callable[[], Any], pause: Pause) -> Any:
        """Make one call with this fault."""
        pause(math.inf)
        return call()


@dataclass(frozen=True, slots=True)
class Slow:
    """The call takes effect after `before` seconds and returns `after` seconds later."""

    before: float = 0.0
    after: float = 0.0

    def play(self, call: Callable[[], Any], pause: Pause) -> Any:
        """Make one call with this fault."""
        pause(self.before)
        result = call()
        pause(self.after)
        return result


@dataclass(frozen=True, slots=True)
class Answer:
    """The call returns `value`, of whatever type; effect: it also takes effect."""

    value: object
    effect: bool = True

    def play(self, call: Callable[[], Any], pause: Pause) -> Any:
        """Make one call with this fault."""
        if self.effect:
            call()
        return self.value


@dataclass(frozen=True, slots=True)
class Twice:
    """The call is delivered twice, one after the other; the second answer counts."""

    def play(self, call: Callable[[], Any], pause: Pause) -> Any:
        """Make one call with this fault."""
        call()
        return call()


Fault = FailBefore | FailAfter | Hang | Slow | Answer | Twice
"""What goes wrong with one call of a hook."""

Script = Mapping[str, Sequence[Fault | None] | Mapping[int, Fault]]
"""Hook -> the faults of its calls in order (None: none), or by number, from 1."""


@dataclass(frozen=True, slots=True)
class FaultyCall:
    """One call that was made. number: which of its hook, from 1. error: what it raised, else `result` was returned."""

    hook: str
    number: int
    request: Any
    fault: Fault | None
    result: object = None
    error: BaseException | None = None


class FaultyBackend:
    """A backend instance with the hooks of `backend` and the faults of `script`.

    `calls` are the finished calls in the order in which they ended; `asked` counts begun calls by hook. Thread-safe.
    """

    def __init__(self, backend: object, script: Script | None = None) -> None:
        """Raises ConfigurationError for a hook or a call number that is none."""
        self.backend = backend
        self.calls: list[FaultyCall] = []
        self.asked: dict[str, int] = defaultdict(int)
        self.options_schema = getattr(backend, "options_schema", ParameterSchema())
        self.default_driver_name = getattr(backend, "default_driver_name", "")
        self._script: dict[str, dict[int, Fault]] = defaultdict(dict)
        self._planned: WeakKeyDictionary[object, tuple[int, Fault | None]] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._released = threading.Event()
        self.hooks = frozenset(mark.hook for mark in marks(backend))
        """The hooks of the wrapped backend."""
        for mark in marks(backend):
            setattr(self, mark.hook, hookimpl(self._hook(mark.hook, getattr(backend, mark.attribute))))
        for hook, faults in (script or {}).items():
            numbered = faults if isinstance(faults, Mapping) else dict(enumerate(faults, 1))
            self.fail(hook, {number: fault for number, fault in numbered.items() if fault is not None})

    def __repr__(self) -> str:
        return f"FaultyBackend({self.backend!r})"

    def fail(self, hook: str, faults: Mapping[int, Fault] | Sequence[Fault] | Fault) -> None:
        """Add to the script: faults by call number, counted from the first call of all; or those of the next calls."""
        if hook not in HOOKS:
            raise ConfigurationError(f"hook {hook!r} is none; known are {', '.join(sorted(HOOKS))}")
        with self._lock:
            if not isinstance(faults, Mapping):
                following = faults if isinstance(faults, Sequence) else [faults]
                faults = dict(enumerate(following, self.asked[hook] + 1))
            for number, fault in faults.items():
                if number < 1:
                    raise ConfigurationError(f"call {number} of {hook} is none; the first is 1")
                self._script[hook][number] = fault

    def release(self) -> None:
        """Release all calls that hang, and those that will."""
        self._released.set()

    def errors(self, hook: str) -> list[BaseException]:
        """Return the errors of the calls of a hook, in order."""
        return [call.error for call in self.calls if call.hook == hook and call.error is not None]

    def plan(self, hook: str) -> tuple[float, float]:
        """Begin a call that this task will make, and whose delays it makes itself: seconds before the effect and after
        it.

        For executors in virtual time (`InlineExecutor.latency`): hooks may not block there.
        """
        task = asyncio.current_task()
        with self._lock:
            number, fault = self._begin(hook)
            if task is not None:
                self._planned[task] = (number, fault)
        if isinstance(fault, Hang):
            return math.inf, 0.0
        return (fault.before, fault.after) if isinstance(fault, Slow) else (0.0, 0.0)

    def _begin(self, hook: str) -> tuple[int, Fault | None]:
        self.asked[hook] += 1
        number = self.asked[hook]
        return number, self._script[hook].get(number)

    def _hook(self, hook: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(request: Any) -> Any:
            with self._lock:
                plan = self._planned.pop(_task(), None)
                number, fault = plan if plan is not None else self._begin(hook)
            pause = self._pause if plan is None else _no_pause
            result: object = None
            error: BaseException | None = None

            def effect() -> Any:
                return _called(inner, request)

            try:
                result = fault.play(effect, pause) if fault is not None else effect()
            except BaseException as raised:
                error = raised
                raise
            finally:
                self.calls.append(FaultyCall(hook, number, request, fault, result, error))
            return result

        return call

    def _pause(self, seconds: float) -> None:
        if seconds == math.inf:
            self._released.wait()
        else:
            time.sleep(seconds)


def _no_pause(_seconds: float) -> None:
    """Do not wait: the executor makes the delay."""


def _task() -> object:
    """Return the calling task, or the thread if no loop runs in it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task if task is not None else threading.current_thread()


def _called(inner: Callable[..., Any], request: Any) -> Any:
    """Hooks may leave the request out of their arguments."""
    return inner(request) if "request" in inspect.signature(inner).parameters else inner()
