"""The loop of the scheduler: one pod at a time, so that each decision sees the ones before it.

Source: pkg/scheduler/schedule_one.go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from volplane.controller.actions import Action, LiveReads, Recorder, Run, Settled
from volplane.controller.runner import Runner
from volplane.errors import ApiError
from volplane.kube.client import Client
from volplane.kube.objects import Claim, VolumeAttachment
from volplane_embedded.informers import Informers, unsubscribing
from volplane_embedded.objects import PODS, Now, Pod, claim_names, is_finished, needs_node, timestamp
from volplane_embedded.scheduler.scheduling import Bind, SchedulerState, decide
from volplane_embedded.scheduler.volume_binding import StorageState
from volplane_embedded.scheduler.volume_limits import LimitState

_LOG = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0


class Scheduler:
    """Finds nodes for the pods of `default-scheduler`, again whenever an object changes that a decision depends on."""

    def __init__(self, client: Client, informers: Informers, *, recorder: Recorder, now: Now) -> None:
        self._client = client
        self._informers = informers
        self._recorder = recorder
        self._now = now
        self._assumed: dict[str, str] = {}
        self._binding: dict[str, str] = {}
        """Uids, by key, of pods whose binding is being written, or is written but not in the cache yet."""
        self._steps: dict[str, Bind] = {}
        """By uid of the pod: the bindings that were decided and not begun yet."""
        self._bindings = _Bindings(self._bind)
        self._runner = Runner(
            "scheduler",
            self._decide,
            kind=PODS,
            caches=informers.caches,
            client=client,
            recorder=recorder,
            start_operation=self._bindings.start,
            workers=1,
        )

    async def run(self) -> None:
        """Schedule until cancelled."""
        informers = self._informers
        with unsubscribing(
            informers.pods.subscribe(self._pod_changed),
            informers.nodes.subscribe(lambda _old, _new: self._wake()),
            informers.classes.subscribe(lambda _old, _new: self._wake()),
            informers.claims.subscribe(self._claim_changed),
            informers.volumes.subscribe(lambda _old, _new: self._wake(with_claims=True)),
            informers.csi_drivers.subscribe(lambda _old, _new: self._wake(with_claims=True)),
            informers.capacities.subscribe(lambda _old, _new: self._wake(with_claims=True)),
            informers.csi_nodes.subscribe(lambda _old, _new: self._wake(with_claims=True)),
            informers.attachments.subscribe(self._attachment_changed),
        ):
            self._wake()
            async with asyncio.TaskGroup() as tasks:
                self._bindings.tasks = tasks
                tasks.create_task(self._runner.run(), name="scheduler")

    def _wake(self, *, with_claims: bool = False) -> None:
        """Enqueue waiting pods: all of them, or those that have claims."""
        for pod in self._informers.pending():
            if not with_claims or claim_names(pod):
                self._runner.enqueue(pod.key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and needs_node(new):
            self._runner.enqueue(new.key)
            return
        gone = old is not None and (new is None or (is_finished(new) and not is_finished(old)))
        if old is not None:
            self._assumed.pop(old.key, None)
            self._binding.pop(old.key, None)
        if gone:
            self._wake()

    def _attachment_changed(self, _old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        if new is None:
            self._wake(with_claims=True)

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        claim = new or old
        if claim is not None:
            for pod in self._informers.users(claim.key):
                self._runner.enqueue(pod.key)

    def _decide(self, key: str, _reads: LiveReads) -> Action:
        pod = self._informers.pods.get(key)
        if pod is None or not needs_node(pod) or self._binding.get(key) == pod.uid:
            return Settled()
        placement = decide(pod, self._state())
        if placement.node:
            self._assumed[key] = placement.node
        else:
            self._assumed.pop(key, None)
        step = placement.step
        if isinstance(step, Bind):
            self._binding[key] = pod.uid
            self._steps[pod.uid] = step
            return Run(verb="bind", key=key, uid=pod.uid, driver="", asset=key)
        return step

    def _state(self) -> SchedulerState:
        informers = self._informers
        nodes = {node.name: node for node in informers.nodes.values()}
        storage = StorageState(
            claims=informers.claims.get,
            volumes=informers.volumes.get,
            classes=informers.classes.get,
            candidates=informers.candidates,
            reserved=informers.reserved,
            csi_drivers=informers.csi_drivers.get,
            room=informers.room,
            nodes=nodes,
        )
        return SchedulerState(
            pods=informers.pods.values,
            users=informers.users,
            nodes=nodes,
            storage=storage,
            limits=LimitState(informers.csi_nodes.get, informers.attachments.values, informers.provisioned),
            now=timestamp(self._now()),
            assumed=self._assumed,
        )

    async def _bind(self, run: Run) -> None:
        bind = self._steps.pop(run.uid)
        pod = bind.pod
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node},
        }
        try:
            await self._client.post(PODS, pod.key, "binding", body)
        except ApiError:
            self._binding.pop(pod.key, None)
            raise
        for event in bind.events:
            self._recorder.record(event)


class _Bindings:
    """Runs each binding in a task. After a failure its pod is enqueued again one second later."""

    def __init__(self, bind: Callable[[Run], Awaitable[None]]) -> None:
        self._bind = bind
        self.tasks: asyncio.TaskGroup | None = None

    def start(self, run: Run, requeue: Callable[[], None]) -> None:
        if self.tasks is not None:
            self.tasks.create_task(self._run(run, requeue), name=run.name)

    async def _run(self, run: Run, requeue: Callable[[], None]) -> None:
        try:
            await self._bind(run)
        except ApiError as error:
            _LOG.info("%s: %s; trying again in %g s", run.name, error, _RETRY_SECONDS)
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, requeue)
