"""The loop of every controller: decide, take one step, put the answer into the cache, decide again.

Many keys are in flight, and one worker has a key at a time. A pass over a key ends with `Wait`, `Settled` or a started
operation, or with an error; after an error the key is queued again with a delay. No error of one key ends a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from volplane import _delays as backoff
from volplane._delays import Backoff
from volplane.controller import logs
from volplane.controller.actions import (
    Action,
    Create,
    Decide,
    Delete,
    EventRecord,
    Flow,
    LiveReads,
    Patch,
    Predicate,
    Read,
    Recorder,
    Run,
    Settled,
    Wait,
    started,
    warning,
)
from volplane.controller.clock import LoopTime
from volplane.controller.logs import new_span, trace_of
from volplane.controller.steps import NothingChanged, Steps
from volplane.controller.workqueue import AdaptiveConcurrency, ControllerMetrics, WorkQueue
from volplane.errors import (
    ApiConflict,
    ApiError,
    ApiNotFound,
    ApiUnavailable,
    BackoffError,
    OperationError,
    OperationInProgress,
)
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject

__all__ = ["Dispatcher", "Runner"]

_LOG = logging.getLogger(__name__)

_MOST_STEPS = 50
_SHARE = 2
"""A flow has at most one in so many of the workers."""
_FEWEST = 4
"""Workers that a flow keeps however busy the loop is: one waits for the server, one for the loop, one for a hook."""
_MOST_CONFLICTS = 5
_YIELD_EVERY = 16
"""Passes without an API call after which a worker yields to the loop."""
_WARN_EVERY = 5.0
"""Seconds between two warnings that the API server gives no answers."""
_TRIES_UNREPORTED = 5
"""Answers of 500 in a row after which a create records its failure event."""


class Dispatcher(Protocol):
    """Starts operations (see `volplane.operations.Dispatcher`)."""

    def start(self, run: Run, requeue: Callable[[], None]) -> None:
        """Start the operation, and call `requeue` when it has ended or its back-off has.

        Raises OperationInProgress while another holds the asset and BackoffError; requeue is called after either.
        """
        ...


class Runner:
    """Keeps the objects of one kind as they should be."""

    def __init__(
        self,
        name: str,
        decide: Decide,
        *,
        kind: Kind[Any],
        caches: Mapping[str, Cache[Any]],
        client: Client,
        recorder: Recorder,
        dispatcher: Dispatcher,
        workers: int = 64,
        flow: Flow | None = None,
        predicate: Predicate | None = None,
        may_begin: Callable[[], bool] = lambda: True,
        metrics: ControllerMetrics | None = None,
    ) -> None:
        """name: for logs and metrics. kind: what keys are of; events about a refused call go there. caches: by plural;
        what is written or read live goes into them. workers: keys in flight at once. flow: flows are served in turns,
        and one has at most half of the workers, fewer while the loop is busy (see `AdaptiveConcurrency`).
        predicate: asked when a key is added: no pass is spent on what it refuses.
        may_begin: asked before each step; while it is false none is taken.
        """
        self.name = name
        self._decide = decide
        self._predicate = predicate
        self._may_begin = may_begin
        self._kind = kind
        self._caches = caches
        self._steps = Steps(client, caches)
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._workers = workers
        self._metrics = metrics
        concurrency = None if flow is None else AdaptiveConcurrency(maximum=max(1, workers // _SHARE), minimum=_FEWEST)
        self._queue = WorkQueue(name, flow=flow or (lambda _key: ""), concurrency=concurrency, metrics=metrics)
        self._now = LoopTime()
        self._reasons: dict[str, str] = {}
        self._stopping = False
        self._passes = 0
        self._warned_at = float("-inf")
        self._failure_events: dict[str, EventRecord] = {}

    def enqueue(self, key: str, after: float = 0.0) -> None:
        """Decide about `key` soon, or after so many seconds, unless all is well by the predicate. May be called before
        `run`.
        """
        if self._predicate is not None and not self._queue.in_work(key) and not self._predicate(key):
            self._reasons.pop(key, None)
        elif after > 0:
            self._queue.add_after(key, after)
        else:
            self._queue.add(key)

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why each key waits, or what failed, in plain words; keys that are as they should be are absent."""
        return MappingProxyType(self._reasons)

    @property
    def idle(self) -> bool:
        """Whether no key is queued, in work or due now. Operations in flight are the registry's."""
        return self._queue.idle

    @property
    def next_due(self) -> float | None:
        """Loop time at which a key comes back by itself."""
        return self._queue.next_due

    async def run(self) -> None:
        """Work until `stop` (returns once the steps being taken are finished) or until cancelled."""
        for cache in self._caches.values():
            await cache.wait_synced()
        async with asyncio.TaskGroup() as workers:
            for number in range(self._workers):
                workers.create_task(self._work(), name=f"{self.name}-{number}")

    def stop(self) -> None:
        """Let each worker finish its current step, and no more."""
        self._stopping = True
        self._queue.close()

    async def _work(self) -> None:
        logs.bind(controller=self.name)
        ours = logs.fields()
        while (key := await self._queue.get()) is not None:
            logs.rebind(ours, object=key, trace=trace_of(self._about(key), self._caches), span=new_span())
            try:
                await self._process(key)
            finally:
                self._queue.done(key)
            self._passes += 1
            if self._passes >= _YIELD_EVERY:
                # A pass without a call never waits: 100,000 of them (after a list) would delay leases and answers.
                self._passes = 0
                await asyncio.sleep(0)

    async def _process(self, key: str) -> None:
        """Make one pass, and queue the key again after one that failed."""
        self._failure_events.pop(key, None)
        try:
            result = await self._reconcile(key)
            self._queue.forget(key)
        except ApiConflict as error:
            result = "conflict"
            self._retry(key, error, backoff.RECONCILE_FAILED, level=logging.INFO)
            self._report_lasting(key, "ApiCallRefused", f"The Kubernetes API reports conflicts without end: {error}")
        except ApiUnavailable as error:
            result = "unavailable"
            level = self._unavailable_level()
            self._retry(key, error, backoff.API_UNAVAILABLE, asked=error.retry_after, level=level)
            if error.status == 500 and "failed calling webhook" in error.message:
                # It concerns this object, not the whole server, and each try may last as long as the webhook's timeout.
                if not self._report_failure(key, str(error), "; trying again"):
                    self._warn(key, "ApiCallFailed", f"The Kubernetes API failed a call: {error}", "; trying again")
            elif error.status == 500 and self._queue.failures(key) >= _TRIES_UNREPORTED:
                self._report_failure(key, str(error), "; trying again")
        except ApiError as error:
            result = "refused"
            self._refused(key, error)
        except (NothingChanged, _Unsettled) as error:
            result = "unsettled"
            self._retry(key, error, backoff.RECONCILE_FAILED, level=logging.ERROR)
            advice = "does an admission webhook or another controller undo it?"
            self._report_lasting(key, "ApiWriteUndone", f"What volplane writes does not stay: {error}; {advice}")
        except Exception as error:  # noqa: BLE001 -- a decision that fails may not stop the other keys
            result = "error"
            seconds = self._queue.retry(key, backoff.RECONCILE_FAILED)
            self._reasons[key] = f"an internal error: {type(error).__name__}: {error}"
            _LOG.exception("deciding failed; trying again in %.3g s", seconds)
        if self._metrics is not None:
            self._metrics.pass_ended(self.name, result)

    async def _reconcile(self, key: str) -> str:
        """Decide and take steps until nothing is left to do for now; return how the pass ended, for metrics."""
        reads = LiveReads()
        conflicts = 0
        action: Action | None = None
        written = False
        for _ in range(_MOST_STEPS):
            if self._stopping:
                return "stopped"
            if not self._may_begin():
                self._reasons[key] = "the lease is over, or nearly"
                self._queue.add_after(key, backoff.LIVE_STATE_FORBIDS.delay())
                return "stopped"
            if not reads:
                # This decision sees our own writes, which have added the key too; live reads may be older than they
                # are.
                self._queue.seen(key)
            action = self._decide(key, reads)
            if isinstance(action, Wait | Settled | Run):
                return self._end_pass(key, action, written=written)
            try:
                await self._perform(key, action, reads)
                written = isinstance(action, Patch | Delete) and action.kind is self._kind and action.target.key == key
            except _StaleCache as stale:
                written = False
                _LOG.debug("read again: %s", stale)
                reads.forget()
                conflicts += 1
                if conflicts > _MOST_CONFLICTS:
                    raise ApiConflict(f"{conflicts} conflicts in a row, the last: {stale}", status=409) from stale
        raise _Unsettled(f"{_MOST_STEPS} steps did not settle it, the last: {_describe(action)}")

    async def _perform(self, key: str, action: Patch | Create | Delete | Read, reads: LiveReads) -> None:
        """Take one step. Raises _StaleCache if the cache, now refreshed, misled the decision."""
        match action:
            case Patch() | Delete():
                try:
                    await (self._steps.patch(action) if isinstance(action, Patch) else self._steps.delete(action))
                except (ApiConflict, ApiNotFound) as error:
                    await self._steps.refresh(action.kind, action.target.key)
                    raise _StaleCache(f"{_describe(action)}: {error}") from error
            case Create():
                if action.failure_event is not None:
                    self._failure_events[key] = action.failure_event
                if not await self._steps.create(action):
                    raise _StaleCache(f"{_describe(action)}: it exists already")
                self._failure_events.pop(key, None)
            case Read():
                await self._steps.read(action.kind, action.key, reads)
                return
        _LOG.debug("%s", action.why)
        self._record(action.events)

    def _end_pass(self, key: str, action: Wait | Settled | Run, *, written: bool) -> str:
        """Perform what ends a pass; return how it ended, for metrics.

        written: whether the last step was a write of this object, which the server answered.
        """
        if isinstance(action, Run):
            self._start(key, msgspec.structs.replace(action, live=True) if written else action)
            return "operation"
        self._record(action.events)
        if isinstance(action, Settled):
            self._reasons.pop(key, None)
            return "done"
        self._reasons[key] = action.reason
        if action.seconds is not None:
            self._queue.add_after(key, action.seconds)
        return "wait"

    def _start(self, key: str, action: Run) -> None:
        try:
            self._dispatcher.start(action, lambda: self._queue.add(key))
        except OperationInProgress:
            self._reasons[key] = f"another operation holds {action.asset}"
        except BackoffError as error:
            self._reasons[key] = str(error)
        except OperationError as error:
            self._reasons[key] = str(error)
            self._queue.retry(key, backoff.REGISTRY_CLOSED)
        else:
            self._reasons[key] = started(action.name)

    def _record(self, events: tuple[EventRecord, ...]) -> None:
        for event in events:
            self._recorder.record(event)

    def _retry(self, key: str, error: Exception, row: Backoff, *, asked: float | None = None, level: int) -> float:
        """Queue a key that failed again, log the error, keep it as the reason, and return the delay in seconds."""
        seconds = self._queue.retry(key, row, asked=asked)
        self._reasons[key] = str(error)
        _LOG.log(level, "trying again in %.3g s: %s", seconds, error)
        return seconds

    def _refused(self, key: str, error: ApiError) -> None:
        """Record an event on the object: the server will answer the same until a user changes something."""
        seconds = self._retry(key, error, backoff.API_REFUSED, level=logging.ERROR)
        text = f"The Kubernetes API refused a call ({f'{error.status} {error.reason}'.strip()}): {error.message}"
        if not self._report_failure(key, str(error), again := f"; trying again in {seconds:.3g} s"):
            self._warn(key, "ApiCallRefused", text, again)

    def _report_lasting(self, key: str, reason: str, text: str) -> None:
        """Record an event about a failure that usually ends by itself, once it has lasted."""
        if self._queue.failures(key) >= _TRIES_UNREPORTED and not self._report_failure(key, text, ""):
            self._warn(key, reason, text)

    def _warn(self, key: str, reason: str, text: str, again: str = "") -> None:
        """Record an event on the object. again: when it is tried again, which makes no other event of it."""
        if (about := self._about(key)) is not None:
            self._record((warning(self._kind, about, reason, text + again, same_as=text),))

    def _about(self, key: str) -> KubeObject | None:
        cache = self._caches.get(self._kind.plural)
        return None if cache is None else cache.get(key)

    def _report_failure(self, key: str, what: str, again: str) -> bool:
        """Record the event that the failed step has for its failure, with `what` and when it is tried `again` added.

        Returns whether it has one.
        """
        event = self._failure_events.get(key)
        if event is None:
            return False
        text = f"{event.message}: {what}"
        self._record((msgspec.structs.replace(event, message=text + again, same_as=text),))
        return True

    def _unavailable_level(self) -> int:
        """Return the log level of a failure that concerns every key: one warning every few seconds, the rest debug."""
        now = self._now()
        if now < self._warned_at + _WARN_EVERY:
            return logging.DEBUG
        self._warned_at = now
        return logging.WARNING


class _StaleCache(Exception):
    """The server knows more than the cache did. The cache has been refreshed."""


class _Unsettled(Exception):
    """Too many steps were taken in one pass."""


def _describe(action: Action | None) -> str:
    match action:
        case Patch() | Delete():
            return f"{type(action).__name__.lower()} {action.kind.plural} {action.target.key} ({action.why})"
        case Create():
            return f"create {action.kind.plural} ({action.why})"
        case Read():
            return f"read {action.kind.plural} {action.key} ({action.why})"
    return type(action).__name__.lower()
