"""The reconcilers of attach-detach, which keep state between pure decisions, record each Event once, and count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec.structs import replace

from volplane.attach.attach_detach import AttachDetachState, Decision, decide_node, decide_pair, report_differs
from volplane.attach.desired import Pair, csi_parts, may_share, pair_of_key, pairs_wanted, plugin_label
from volplane.controller.actions import Action, Create, Delete, LiveReads, Settled, Wait
from volplane.kube.objects import VolumeAttachment

__all__ = ["AttachMetrics", "NodeReconciler", "PairReconciler"]

_REPORT_TOGETHER: Final = 0.5
"""Seconds for which a volume's report waits at most for others that are about to be attached to its node.

A kubelet asks for a volume up to ten seconds after it was wanted.
"""
_WITHDRAW_TOGETHER: Final = 0.1
"""The same for one that is to be detached: the period of the stock controller's loop."""


class AttachMetrics(Protocol):
    """Counts what attach-detach does."""

    def detach_forced(self, reason: str) -> None: ...

    def attach_detach_ended(self, plugin: str, operation: str, seconds: float, *, failed: bool) -> None:
        """operation: "volume_attach" or "volume_detach". seconds: since it was asked for."""
        ...


class PairReconciler:
    """Decides pairs. Each Event is recorded once; the node is queued when its report is to change."""

    def __init__(
        self,
        state: AttachDetachState,
        wake_pair: Callable[[str], None],
        wake_node: Callable[[str, float], None],
        metrics: AttachMetrics | None = None,
    ) -> None:
        """wake_node: queues a node after so many seconds."""
        self._state = state
        self._cluster = state.cluster
        self._wake_pair = wake_pair
        self._wake_node = wake_node
        self._metrics = metrics
        self._awaited: dict[str, set[str]] = {}
        """Name of a node -> keys of pairs that are about to be attached."""
        self._recorded: dict[str, str] = {}
        """Key of a pair -> what was recorded or counted of it last."""
        self._detached_at: dict[str, float] = {}
        """Key of a pair -> loop time at which its attachment was deleted."""

    def __call__(self, key: str, reads: LiveReads) -> Action:
        pair = pair_of_key(key)
        released = self._state.creating.get(pair.volume) == key
        if released:
            del self._state.creating[pair.volume]
        decision = decide_pair(pair, self._state, reads)
        attachment = self._cluster.attachments.get(pair.attachment)
        self._remember(key, decision, attachment)
        if attachment is None or attachment.terminating:
            self._state.deleting.pop(key, None)
        self._await(pair, decision, attachment)
        if isinstance(decision.action, Create) and not may_share(pair.volume, self._cluster):
            self._state.creating[pair.volume] = key
        elif released:
            self._wake_waiting(pair)
        if report_differs(pair, self._state):
            self._state.reports.setdefault(pair.node, set()).add(pair.volume)
            # A report waits for others of its node, because each is a write.
            waits = _REPORT_TOGETHER if self._awaited.get(pair.node) else 0.0
            self._wake_node(pair.node, waits if decision.wanted else _WITHDRAW_TOGETHER)
        deletes = isinstance(decision.action, Delete)
        if deletes:
            self._state.deleting[key] = self._cluster.monotonic()
            self._detached_at.setdefault(key, self._cluster.monotonic())
            if decision.forced and self._metrics is not None:
                self._metrics.detach_forced(decision.forced)
        elif attachment is None and key in self._detached_at:
            self._count("volume_detach", pair, self._cluster.monotonic() - self._detached_at.pop(key))
        if decision.wanted and not deletes and (left := self._state.deletion_pending(pair)):
            return Wait(reason="its attachment may be about to be deleted", seconds=left)
        return self._once(key, pair, decision, attachment)

    def _remember(self, key: str, decision: Decision, attachment: VolumeAttachment | None) -> None:
        if decision.wanted or attachment is None:
            self._state.unwanted.pop(key, None)
            self._state.withdrawn.discard(key)
        else:
            self._state.unwanted.setdefault(key, self._cluster.monotonic())
        if not decision.wanted and not decision.about:
            self._recorded.pop(key, None)

    def _await(self, pair: Pair, decision: Decision, attachment: VolumeAttachment | None) -> None:
        waits = isinstance(decision.action, Wait) and attachment is not None and not attachment.status.attached
        if isinstance(decision.action, Create) or (waits and decision.wanted and not decision.failed):
            self._awaited.setdefault(pair.node, set()).add(pair.key)
        elif (awaited := self._awaited.get(pair.node)) is not None:
            awaited.discard(pair.key)
            if not awaited:
                del self._awaited[pair.node]

    def _wake_waiting(self, pair: Pair) -> None:
        """Queue the pairs that wait for the decision whether another node may have the volume."""
        for other in sorted(pairs_wanted(pair.volume, self._cluster) - {pair}):
            self._wake_pair(other.key)

    def _once(self, key: str, pair: Pair, decision: Decision, attachment: VolumeAttachment | None) -> Action:
        """Return the action without events that were recorded already. What is recorded is counted, too."""
        action = decision.action
        if not decision.about or not isinstance(action, Wait | Settled):
            return action
        if self._recorded.get(key) == decision.about:
            return replace(action, events=())
        self._recorded[key] = decision.about
        if attachment is None:
            return action
        since = attachment.metadata.deletion_timestamp or attachment.metadata.creation_timestamp
        operation = "volume_detach" if attachment.terminating and not decision.wanted else "volume_attach"
        self._count(operation, pair, self._cluster.seconds_since(since), failed=decision.failed)
        return action

    def _count(self, operation: str, pair: Pair, seconds: float, *, failed: bool = False) -> None:
        if self._metrics is not None:
            plugin = plugin_label(csi_parts(pair.volume)[0])
            self._metrics.attach_detach_ended(plugin, operation, seconds, failed=failed)


class NodeReconciler:
    """Decides the reports of nodes."""

    def __init__(self, state: AttachDetachState) -> None:
        self._state = state

    def __call__(self, key: str, reads: LiveReads) -> Action:
        action = decide_node(key, self._state)
        if isinstance(action, Settled):
            self._state.reports.pop(key, None)
        return action
