"""Judges rules in a child process: one that hangs with the interpreter's lock, or dies, is reported like any violation.

A thread that holds the lock (a regular expression, a C library) stops every thread of its process, so no time limit
within the process can end it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from _thread import interrupt_main
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

from volplane.errors import PluginError, VolplaneError
from volplane_testing.conformance import crash_injection
from volplane_testing.conformance.report import Report, RuleResult, RuleStatus
from volplane_testing.conformance.rule import Rule
from volplane_testing.conformance.rules import RULES
from volplane_testing.conformance.running import run_rules
from volplane_testing.conformance.subject import MakeSubject, Subject
from volplane_testing.conformance.violations import Interrupted

__all__ = ["run_rules_apart"]

_log = logging.getLogger(__name__)

_BEAT: Final = 0.5
"""Seconds between two signs of life of the child."""
_GRACE: Final = 2.0
"""Seconds that the child has beyond a call's patience to report by itself that the call hangs."""
_SILENCE: Final = 120.0
"""Seconds that the child may be silent outside of calls."""
INTERRUPTED: Final = 128 + signal.SIGINT
_FAREWELL: Final = 2.0
"""Seconds that the child has to end."""
_CLEANING: Final = 15.0
"""Seconds that the child has to delete what a rule has made, after an interruption."""


def run_rules_apart(
    subject: Callable[[], Subject | MakeSubject],
    rules: Collection[Rule] = RULES,
    *,
    begin: Callable[[Rule], None] = lambda _rule: None,
    observe: Callable[[RuleResult], None] = lambda _result: None,
    slow_after: float = math.inf,
    slow: Callable[[str], None] = lambda _what: None,
) -> Report:
    """As `run_rules`, with `subject` called, and every rule judged, in a child process.

    A call that holds the interpreter's lock for longer than its patience is a violation, and so is one that ends the
    process; no other rule is judged then. Raises VolplaneError or OSError if `subject` or building the backend does,
    RuntimeError for its other exceptions, and PluginError if the process hangs or dies before the first rule. When this
    call is interrupted, the child cleans up and is ended, and it raises Interrupted.

    slow_after: real seconds after which a call that goes on is slow: `slow` is told which, once of each hook, and the
    rule is the last one that is judged.
    """
    child = _Child(subject, rules, slow_after)
    supervision = _Supervision(child, rules, begin, observe, slow)
    try:
        return supervision.report()
    except KeyboardInterrupt:
        raise Interrupted(supervision.left_behind()) from None
    finally:
        child.end()


class _Child:
    """The process that judges. messages: what it says, in tuples whose first item is their kind."""

    def __init__(
        self, subject: Callable[[], Subject | MakeSubject], rules: Collection[Rule], slow_after: float
    ) -> None:
        self.messages, told = multiprocessing.Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        # Until the child can end in order nothing interrupts it: it would go on with what its parent was doing.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; the child uses none
            self._pid = os.fork()
        if self._pid == 0:
            _judge_and_exit(self.messages, told, subject, rules, slow_after)
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        told.close()
        self._status: int | None = None

    def death(self) -> str:
        """Why it ended without a last word."""
        self._wait(_FAREWELL)
        if self._status is None:
            return "closed the connection to this process"
        code = os.waitstatus_to_exitcode(self._status)
        if code < 0:
            return f"ended the process by {signal.Signals(-code).name}"
        return f"ended the process with exit code {code}"

    def end(self) -> None:
        """Interrupt it, which lets it clean up, then kill it."""
        self.messages.close()
        if self._status is None:
            os.kill(self._pid, signal.SIGINT)
            self._wait(_FAREWELL)
        self.kill()

    def interrupt(self) -> None:
        """Let it clean up; a second interruption is ignored."""
        if self._status is None:
            os.kill(self._pid, signal.SIGINT)

    def kill(self) -> None:
        """End it at once."""
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            self._status = os.waitpid(self._pid, 0)[1]

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._status = status
            elif time.monotonic() > end:
                return
            else:
                time.sleep(0.01)


class _Supervision:
    """What is known of the child."""

    def __init__(
        self,
        child: _Child,
        rules: Collection[Rule],
        begin: Callable[[Rule], None],
        observe: Callable[[RuleResult], None],
        slow: Callable[[str], None],
    ) -> None:
        self._child = child
        self._rules = {rule.name: rule for rule in rules}
        self._begin = begin
        self._observe = observe
        self._slow = slow
        self._rule: Rule | None = None
        self._calls: dict[int, tuple[str, float | None]] = {}
        self._results: dict[str, RuleResult] = {}
        self._left: tuple[str, ...] = ()

    def left_behind(self) -> tuple[str, ...]:
        """Let the child clean up; what is on the storage then. A second interruption ends the cleaning."""
        try:
            self._child.interrupt()
            self._listen(_CLEANING)
        except KeyboardInterrupt:
            self._child.kill()
            self._listen(0.0)  # It may have said what is left, and was not heard yet.
        return self._left

    def _listen(self, seconds: float) -> None:
        """Take in what the child says until it has said all."""
        end = time.monotonic() + seconds
        with contextlib.suppress(EOFError, OSError):
            while self._child.messages.poll(max(0.0, end - time.monotonic())):
                self._heard(*self._child.messages.recv())

    def report(self) -> Report:
        """Follow the child to its end."""
        while True:
            limit = self._silence()
            if not self._child.messages.poll(limit):
                self._child.kill()
                self._give_up(
                    f"did not return within {(limit or 0.0) - _GRACE:g} s", "; it held the interpreter's lock"
                )
                break
            try:
                message = self._child.messages.recv()
            except (EOFError, OSError):
                self._give_up(self._child.death(), "")
                break
            if self._heard(*message):
                break
        return Report(tuple(self._results.values()))

    def _silence(self) -> float | None:
        """How long the child may say nothing; None: any time."""
        patiences = [patience for _, patience in self._calls.values()]
        if None in patiences:
            return None
        return max((each for each in patiences if each is not None), default=_SILENCE) + _GRACE

    def _heard(self, kind: str, *said: Any) -> bool:
        """Take a message in; whether it is the last one."""
        match kind, said:
            case "rule", (name,):
                self._rule = self._rules[name]
                self._begin(self._rule)
            case "call", (number, what, patience):
                self._calls[number] = (what, patience)
            case "returned", (number,):
                del self._calls[number]
            case "slow", (what,):
                self._slow(what)
            case "result", (name, *rest):
                self._add(RuleResult(self._rules[name], *rest))
            case "raised", (error,):
                raise error
            case "left", (names,):
                self._left = names
            case "end", ():
                return True
        return False

    def _add(self, result: RuleResult) -> None:
        self._results[result.rule.name] = result
        self._observe(result)

    def _give_up(self, end: str, how: str) -> None:
        calls = " and ".join(dict.fromkeys(what for what, _ in self._calls.values()))
        if self._rule is None:
            raise PluginError(f"{calls or 'making the subject'} {end}{how}")
        what = calls or "code of the backend outside of its calls"
        if self._rule.name not in self._results:
            self._add(RuleResult(self._rule, RuleStatus.VIOLATED, f"{what} {end}{how}", hung=what))
        for rule in self._rules.values():
            if rule.name not in self._results:
                self._add(RuleResult(rule, RuleStatus.NOT_JUDGED, f"{what} {end}"))


# --- in the child -------------------------------------------------------------------------------------------------


def _judge_and_exit(
    read: Connection,
    told: Connection,
    subject: Callable[[], Subject | MakeSubject],
    rules: Collection[Rule],
    slow_after: float = math.inf,
) -> NoReturn:
    """Judge, tell, and end the process: nothing of what the parent set up is cleaned up here. SIGINT is blocked.

    There is at most one interruption, and it comes before the last `finally`: see `_interrupted`.
    """
    code = 1
    try:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, _interrupted)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            read.close()
            voice = _Voice(told)
            threading.Thread(target=voice.beat, name="signs of life", daemon=True).start()
            crash_injection.watch_calls(voice)
            voice.say(*_judged(voice, subject, rules, slow_after))
            code = 0
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:  # noqa: BLE001 - the parent says what it saw
        _log.debug("the process that judges failed", exc_info=True)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _interrupted(_number: int, _frame: object) -> None:
    """The first interruption cleans up; a second one, from the terminal and from the parent, must not stop that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _judged(
    voice: _Voice, subject: Callable[[], Subject | MakeSubject], rules: Collection[Rule], slow_after: float
) -> tuple[str] | tuple[str, Exception]:
    """Judge and tell; the last message."""
    try:
        begin, leave = lambda rule: voice.say("rule", rule.name), lambda names: voice.say("left", names)
        made = subject()
        voice.slow_after = slow_after  # what was called so far is no hook
        run_rules(made, rules, begin=begin, observe=voice.tell, leave=leave, stop=voice.why_too_slow)
    except Interrupted as end:
        voice.say("left", end.left)
        raise
    except Exception as error:  # noqa: BLE001 - raised again in the parent
        _log.debug("judging failed", exc_info=True)
        return "raised", _sendable(error)
    return ("end",)


def _sendable(error: Exception) -> Exception:
    """The error as one that the parent knows: it has not imported the backend."""
    if isinstance(error, VolplaneError):
        return VolplaneError(str(error))
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror, error.filename)
    return RuntimeError(f"{type(error).__name__}: {error}")


class _Voice(crash_injection.CallWatch):
    """Tells the parent."""

    def __init__(self, told: Connection) -> None:
        self.slow_after = math.inf
        """Seconds that a call takes which is slow."""
        self._slowest = (0.0, "")
        self._told = told
        self._lock = threading.Lock()
        self._count = 0
        self._since: dict[int, tuple[str, float]] = {}
        self._told_slow: set[str] = set()

    def say(self, *message: object) -> None:
        with self._lock:
            self._told.send(message)

    def begun(self, what: str, patience: float | None) -> int:
        with self._lock:
            self._count += 1
            self._since[self._count] = (what, time.monotonic())
            self._told.send(("call", self._count, what, patience))
            return self._count

    def over(self, number: int) -> None:
        self.say("returned", number)
        what, since = self._since.pop(number)
        if (took := time.monotonic() - since) > self.slow_after:
            self._slowest = max(self._slowest, (took, what))

    def why_too_slow(self) -> str:
        """Why no further rule is judged, if a call was slow."""
        took, what = self._slowest
        return f"{what} took {took:.0f} s, and no --patience allows that" if what else ""

    def tell(self, result: RuleResult) -> None:
        """A result; its rule by name."""
        seen = (result.status, result.reason, result.calls, result.left, result.seconds, result.hung)
        self.say("result", result.rule.name, *seen)

    def beat(self) -> None:
        """Give signs of life until the parent is gone: then interrupt the process."""
        while True:
            time.sleep(_BEAT)
            try:
                self.say("alive")
                self._tell_slow()
            except OSError:
                interrupt_main()
                return

    def _tell_slow(self) -> None:
        for what, since in tuple(self._since.values()):
            if time.monotonic() - since > self.slow_after and what not in self._told_slow:
                self._told_slow.add(what)
                self.say("slow", what)
