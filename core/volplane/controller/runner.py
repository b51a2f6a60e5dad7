"""The loop of every controller: decide, take one step, put the answer into the cache, decide again.

Many keys are in flight, and one worker has a key at a time. A pass over a key ends with `Wait`, `Settled` or a started
operation, or with an error; after an error the key is queued again with a delay. No error of one key ends a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec

from volplane import _delays as backoff
from volplane import errors
from volplane._delays import Backoff
from volplane.controller import logs
from volplane.controller.actions import (
    Action,
    Create,
    Decide,
    Delete,
    Ending,
    EventRecord,
    Flow,
    LiveReads,
    Patch,
    Predicate,
    Read,
    Recorder,
    Run,
    Settled,
    started,
    warning,
)
from volplane.controller.logs import new_span, trace_of
from volplane.controller.workqueue import NO_METRICS, AdaptiveConcurrency, ControllerMetrics, WorkQueue
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject

_LOG = logging.getLogger(__name__)

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


def _starts_nothing(run: Run, _requeue: Callable[[], None]) -> None:
    raise AssertionError(run)


@dataclass(eq=False, repr=False)
class Runner:
    """Keeps the objects of one kind as they should be."""

    name: str
    decide: Decide
    _: KW_ONLY
    kind: Kind[Any]
    """What keys are of. Events about a refused call go there."""
    caches: Mapping[str, Cache[Any]]
    """By plural; what is written or read live goes into them."""
    client: Client
    recorder: Recorder
    start_operation: Callable[[Run, Callable[[], None]], None] = _starts_nothing
    """Starts an operation, and calls the function when that has ended or its back-off has. Raises OperationInProgress
    while another holds the asset, and BackoffError; the function is called after either.
    """
    workers: int = 64
    """Keys in flight at once. A worker is started with the first key for which none is idle."""
    flow: Flow | None = None
    """Flows are served in turns, and one has at most half of the workers, fewer while the loop is busy (see
    `AdaptiveConcurrency`).
    """
    predicate: Predicate | None = None
    """Asked when a key is added: no pass is spent on what it refuses."""
    may_begin: Callable[[], bool] = lambda: True
    """Asked before each step; while it is false none is taken."""
    most_steps: int = 50
    """Of a pass. What needs more is never settled."""
    metrics: ControllerMetrics = NO_METRICS
    pure: Decide | None = None
    """What `decide` decides, without its memory; None = it has none."""
    follows: bool = field(init=False, default=False)
    """Another process works: decisions are made, so that all is known when this one leads, and no step is taken."""
    unsettled: dict[str, None] = field(init=False, default_factory=dict)
    """Keys to decide once it leads, for which there was something to do, or to wait for, while it followed; before
    `run`, all that were added.
    """
    reasons: dict[str, str] = field(init=False, default_factory=dict)
    """Why each key waits, or what failed, in plain words; keys that are as they should be are absent."""

    def __post_init__(self) -> None:
        most = max(1, self.workers // _SHARE)
        concurrency = None if self.flow is None else AdaptiveConcurrency(maximum=most, minimum=_FEWEST)
        flow = self.flow or (lambda _key: "")
        self.queue = WorkQueue(self.name, flow=flow, concurrency=concurrency, metrics=self.metrics)
        self._steps = Steps(self.client, self.caches)
        self._passes, self._synced = 0, False
        self._warned_at = float("-inf")
        self._failure_events: dict[str, EventRecord] = {}

    def enqueue(self, key: str, after: float = 0.0) -> None:
        """Decide about `key` soon, or after so many seconds, unless all is well by the predicate. What is added before
        the caches are filled is decided then: they do not tell yet whether all is well.
        """
        if not self._synced:
            self.unsettled[key] = None
        elif self.predicate is not None and key not in self.queue.working and not self.predicate(key):
            self._rest(key)
        else:
            self.queue.add_after(key, after)

    def _rest(self, key: str) -> None:
        self.reasons.pop(key, None)
        self.unsettled.pop(key, None)

    async def run(self) -> None:
        """Work until `stop` (returns once the steps being taken are finished) or until cancelled."""
        for cache in self.caches.values():
            await cache.listed.wait()
        self._synced = True
        async with asyncio.TaskGroup() as workers:
            workers.create_task(self.take_up())
            for number in range(self.workers):
                if (key := await self.queue.get()) is None:
                    break
                workers.create_task(self._work(key), name=f"{self.name}-{number}")

    async def take_up(self) -> None:
        """Queue what was left until the caches are filled, or this process leads."""
        for number, key in enumerate(list(self.unsettled) if self._synced else ()):
            self.unsettled.pop(key, None)
            self.enqueue(key)
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def stop(self) -> None:
        """Let each worker finish its current step, and no more."""
        self.queue.close()

    async def _work(self, key: str | None) -> None:
        logs.bind(controller=self.name)
        ours = logs.fields()
        while key is not None:
            logs.bind(ours, object=key, trace=trace_of(self._about(key), self.caches), span=new_span())
            try:
                await self._process(key)
            finally:
                self.queue.done(key)
            self._passes += 1
            if self._passes >= _YIELD_EVERY:
                # A pass without a call never waits: 100,000 of them (after a list) would delay leases and answers.
                self._passes = 0
                await asyncio.sleep(0)
            key = await self.queue.get()

    async def _process(self, key: str) -> None:
        """Make one pass, and queue the key again after one that failed."""
        self._failure_events.pop(key, None)
        try:
            result = self._follow(key) if self.follows else await self._reconcile(key)
            self.queue.forget(key)
        except errors.ApiConflict as error:
            result = "conflict"
            self._retry(key, error, backoff.RECONCILE_FAILED, level=logging.INFO)
            text = f"The Kubernetes API reports conflicts without end: {error}"
            self._report(key, "ApiCallRefused", text, lasting=True)
        except errors.ApiUnavailable as error:
            result = "unavailable"
            # It concerns every key: one warning every few seconds, the rest at the level of debug.
            now, level = asyncio.get_running_loop().time(), logging.DEBUG
            if now >= self._warned_at + _WARN_EVERY:
                self._warned_at, level = now, logging.WARNING
            self._retry(key, error, backoff.API_UNAVAILABLE, asked=error.retry_after, level=level)
            if error.status == 500 and "failed calling webhook" in error.message:
                # It concerns this object, not the whole server; each try may last as long as the webhook's timeout.
                text = f"The Kubernetes API failed a call: {error}"
                self._report(key, "ApiCallFailed", text, what=str(error), again="; trying again")
            elif error.status == 500:
                self._report(key, "", "", what=str(error), again="; trying again", lasting=True)
        except errors.ApiError as error:
            result = "refused"
            # The server will answer the same until a user changes something: the event says so on the object.
            seconds = self._retry(key, error, backoff.API_REFUSED, level=logging.ERROR)
            text = f"The Kubernetes API refused a call ({f'{error.status} {error.reason}'.strip()}): {error.message}"
            self._report(key, "ApiCallRefused", text, what=str(error), again=f"; trying again in {seconds:.3g} s")
        except Unsettled as error:
            result = "unsettled"
            self._retry(key, error, backoff.RECONCILE_FAILED, level=logging.ERROR)
            advice = "does an admission webhook or another controller undo it?"
            text = f"What volplane writes does not stay: {error}; {advice}"
            self._report(key, "ApiWriteUndone", text, lasting=True)
        except Exception as error:  # noqa: BLE001 -- a decision that fails may not stop the other keys
            result = "error"
            seconds = self.queue.retry(key, backoff.RECONCILE_FAILED)
            self.reasons[key] = f"an internal error: {type(error).__name__}: {error}"
            _LOG.exception("deciding failed; trying again in %.3g s", seconds)
        self.metrics.count("pass ended", self.name, result)

    def _follow(self, key: str) -> str:
        self._rest(key)
        if not isinstance((self.pure or self.decide)(key, LiveReads()), Settled):
            self.unsettled[key] = None
        return "followed"

    async def _reconcile(self, key: str) -> str:
        """Decide and take steps until nothing is left to do for now; return how the pass ended, for metrics."""
        reads = LiveReads()
        conflicts = 0
        action: Action | None = None
        written = False  # whether the last step was a write of this object, which the server answered
        for _ in range(self.most_steps):
            if self.queue.closed:
                return "stopped"
            if not self.may_begin():
                # Another process may lead by now: what this one decides is no longer to be written.
                self.reasons[key] = "the lease is over, or nearly"
                self.queue.add_after(key, backoff.LIVE_STATE_FORBIDS.delay())
                return "stopped"
            if not reads:
                # This decision sees our own writes, which have added the key too; live reads may be older than they
                # are.
                self.queue.seen(key)
            action = self.decide(key, reads)
            if isinstance(action, Run) and written:
                action = msgspec.structs.replace(action, live=True)
            if isinstance(action, Ending):
                return self._end_pass(key, action)
            try:
                await self._perform(key, action, reads)
                written = isinstance(action, Patch | Delete) and action.kind is self.kind and action.target.key == key
            except _StaleCache as stale:
                # The decision rests on objects that have changed: what was read live in this pass is outdated, too.
                written = False
                _LOG.debug("read again: %s", stale)
                reads = LiveReads()
                conflicts += 1
                if conflicts > _MOST_CONFLICTS:
                    text = f"{conflicts} conflicts in a row, the last: {stale}"
                    raise errors.ApiConflict(text, status=409) from stale
        self.queue.seen(key)  # The key has to wait now: our own writes, which have added it, must not end that.
        raise Unsettled(f"{self.most_steps} steps did not settle it, the last: {_describe(action)}")

    async def _perform(self, key: str, action: Patch | Create | Delete | Read, reads: LiveReads) -> None:
        """Take one step. Raises _StaleCache if the cache, now refreshed, misled the decision."""
        match action:
            case Patch() | Delete():
                try:
                    if isinstance(action, Delete):
                        await self._steps.delete(action)
                    else:
                        reads.written(action.kind, await self._steps.patch(action))
                except (errors.ApiConflict, errors.ApiNotFound) as error:
                    # The object is another one than was decided upon: nothing is forced, the decision is made again.
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
        for event in action.events:
            self.recorder.record(event)

    def _end_pass(self, key: str, action: Ending) -> str:
        """Perform what ends a pass; return how it ended, for metrics."""
        if isinstance(action, Run):
            try:
                self.start_operation(action, lambda: self.queue.add(key))
            except errors.OperationInProgress:
                self.reasons[key] = f"another operation holds {action.asset}"
            except errors.BackoffError as error:
                self.reasons[key] = str(error)
            except errors.OperationError as error:
                self.reasons[key] = str(error)
                self.queue.retry(key, backoff.REGISTRY_CLOSED)
            else:
                self.reasons[key] = started(action.name)
            return "operation"
        for event in action.events:
            self.recorder.record(event)
        if isinstance(action, Settled):
            self.reasons.pop(key, None)
            return "done"
        self.reasons[key] = action.reason
        if action.seconds is not None:
            self.queue.add_after(key, action.seconds)
        return "wait"

    def _retry(self, key: str, error: Exception, row: Backoff, *, asked: float | None = None, level: int) -> float:
        """Queue a key that failed again, log the error, keep it as the reason, and return the delay in seconds."""
        seconds = self.queue.retry(key, row, asked=asked)
        self.reasons[key] = str(error)
        _LOG.log(level, "trying again in %.3g s: %s", seconds, error)
        return seconds

    def _report(
        self, key: str, reason: str, text: str, *, what: str = "", again: str = "", lasting: bool = False
    ) -> None:
        """Record the event that the failed step has for its failure, with `what` (or `text`) added. If it has none,
        record a warning about the object, unless `reason` is empty.

        again: when it is tried again, which makes no other event of it. lasting: the failure usually ends by itself,
        and is reported once it has lasted.
        """
        if lasting and self.queue.failures.get(key, 0) < _TRIES_UNREPORTED:
            return
        if (event := self._failure_events.get(key)) is not None:
            text = f"{event.message}: {what or text}"
            self.recorder.record(msgspec.structs.replace(event, message=text + again, same_as=text))
        elif reason and (about := self._about(key)) is not None:
            self.recorder.record(warning(self.kind, about, reason, text + again, same_as=text))

    def _about(self, key: str) -> KubeObject | None:
        cache = self.caches.get(self.kind.plural)
        return None if cache is None else cache.get(key)


@dataclass(frozen=True, eq=False)
class Steps:
    """Performs steps and puts the answers into `caches` (by plural). Kinds without a cache can be used too, and other
    structs than a cache holds.
    """

    client: Client
    caches: Mapping[str, Cache[Any]]

    async def patch(self, step: Patch) -> KubeObject:
        """Patch the object, and return it. Raises Unsettled if that changed nothing, or an Api error."""
        target = step.target
        metadata = {**step.body.get("metadata", {}), "resourceVersion": target.metadata.resource_version}
        body = {**step.body, "metadata": metadata}
        answer: KubeObject = await self.client.patch(step.kind, target.key, body, subresource=step.subresource)
        gone = self._learn(step.kind, answer)
        if answer.version == target.version and not gone:
            raise Unsettled(f"the patch of {step.kind.plural} {target.key} ({step.why}) changed nothing")
        return answer

    async def create(self, step: Create) -> bool:
        """Create the object and return True; False if it existed already, and was read into the cache instead."""
        try:
            answer = await self.client.create(step.kind, step.body)
        except errors.ApiError as error:
            if not error.already_exists:
                raise
            metadata = step.body.get("metadata", {})
            name, namespace = metadata.get("name", ""), metadata.get("namespace", "")
            await self.refresh(step.kind, f"{namespace}/{name}" if namespace and step.kind.namespaced else name)
            return False
        self._learn(step.kind, answer)
        return True

    async def delete(self, step: Delete) -> None:
        """Delete the object. Raises ApiConflict if it is not the one that was decided upon."""
        target = step.target
        version = target.metadata.resource_version if step.exact else None
        left = await self.client.delete(
            step.kind, target.key, uid=target.uid, resource_version=version, grace_seconds=step.grace_seconds
        )
        if left is not None:
            self._learn(step.kind, left)
        elif (cache := self._cache_of(step.kind)) is not None:
            cache.observe_deleted(target.key, target.uid)

    async def read(self, kind: Kind[Any], key: str, reads: LiveReads) -> None:
        """Read live into the cache and into `reads`: the newest of what the server and the cache know of this object.

        Another object of that name in the cache does not count: after a restore from a backup it no longer exists.
        """
        try:
            live = await self.refresh(kind, key)
        except errors.ApiError as error:
            # It says nothing of an object, and is no proof of anything: whoever reads this kind only waits for it.
            if error.status != HTTPStatus.NOT_FOUND or not kind.optional:
                raise
            reads.unserved.add(kind.plural)
            return
        cache = self._cache_of(kind)
        cached = cache.get(key) if cache is not None else None
        if live is not None and cached is not None and cached.uid == live.uid and cached.version > live.version:
            live = cached
        reads.put(kind, key, live)

    async def refresh(self, kind: Kind[Any], key: str) -> KubeObject | None:
        """Read live into the cache; None if the object does not exist."""
        cache = self._cache_of(kind)
        return await (self.client.find(kind, key) if cache is None else self.client.refresh(cache, key))

    def _cache_of(self, kind: Kind[Any]) -> Cache[Any] | None:
        cache = self.caches.get(kind.plural)
        return cache if cache is not None and cache.kind.struct is kind.struct else None

    def _learn(self, kind: Kind[Any], answer: KubeObject) -> bool:
        """Put an answer into the cache; return True if its last finalizer was removed, and the object with it."""
        meta = answer.metadata
        # The API server answers with the object as it was when the last finalizer was removed; a watch event follows.
        gone = answer.terminating and not meta.finalizers and not meta.deletion_grace_period_seconds
        cache = self._cache_of(kind)
        if cache is not None and gone:
            cache.observe_deleted(answer.key, answer.uid)
        elif cache is not None:
            cache.observe(answer)
        return gone


class _StaleCache(Exception):
    """The server knows more than the cache did. The cache has been refreshed."""


class Unsettled(errors.VolplaneError):
    """A pass took too many steps, or a patch left the object as it was: the same decision would follow without end."""


def _describe(action: Action | None) -> str:
    match action:
        case Patch() | Delete():
            return f"{type(action).__name__.lower()} {action.kind.plural} {action.target.key} ({action.why})"
        case Create():
            return f"create {action.kind.plural} ({action.why})"
        case Read():
            return f"read {action.kind.plural} {action.key} ({action.why})"
    return type(action).__name__.lower()
