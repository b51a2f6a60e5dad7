"""StatefulSets: pods with an ordinal and claims of their own, made and replaced in order.

Source: pkg/controller/statefulset and pkg/controller/history of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, Final

from volplane.controller.actions import Action, Create, Delete, LiveReads, Patch, Settled
from volplane.kube.kinds import CLAIMS, Kind
from volplane.kube.objects import Claim, Metadata
from volplane_embedded.informers import Informers
from volplane_embedded.objects import (
    CONTROLLER_REVISIONS,
    PODS,
    STATEFUL_SETS,
    ControllerRevision,
    Pod,
    Workload,
    available_in,
    controller_of,
    is_finished,
    is_ready,
)
from volplane_embedded.workloads.objects import (
    claimed,
    failed,
    fraction_of,
    hash_of,
    pod_from,
    reference_to,
    said,
    written,
)

_REVISION: Final = "controller-revision-hash"
_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
_POD_INDEX: Final = "apps.kubernetes.io/pod-index"

_Revisions = tuple[ControllerRevision, ControllerRevision]
"""The current one, and the one that pods are updated to."""
_Claims = Callable[[str], Claim | None]


class StatefulSets:
    """The controller's decisions. now: wall time."""

    def __init__(self, informers: Informers, now: Callable[[], datetime]) -> None:
        self._informers = informers
        self._now = now

    def decide(self, key: str, _reads: LiveReads) -> Action:
        caches = self._informers
        found = caches.stateful_sets.get(key)
        if found is None:
            return Settled()
        owned, orphans = (caches.pods.by_index("controller", each) for each in (found.uid, f"{found.namespace}/"))
        pods = [pod for pod in owned if _ordinal(found, pod.name) is not None]
        revisions = caches.revisions.by_index("controller", found.uid)
        if not found.terminating:
            free = caches.revisions.by_index("controller", f"{found.namespace}/")
            mine = (pod for pod in orphans if _ordinal(found, pod.name) is not None)
            for action in (
                *claimed(STATEFUL_SETS, found, CONTROLLER_REVISIONS, free, ()),
                *claimed(STATEFUL_SETS, found, PODS, mine, owned),
            ):
                return action
        revisions.sort(key=lambda each: (each.revision, each.metadata.creation_timestamp or "", each.name))
        update = _revision_of(found, revisions)
        if not isinstance(update, ControllerRevision):
            if not found.terminating:
                return update
            # Its revisions may be gone already, or let go: only the status is kept up.
            update = ControllerRevision(metadata=Metadata(name=str(found.status.get("updateRevision") or "")))
        current = next((each for each in revisions if each.name == found.status.get("currentRevision")), update)
        turn = _Turn(found, pods, (current, update), caches.claims.get, self._now())
        for action in () if found.terminating else turn.actions():
            return action
        ended = written(STATEFUL_SETS, found, turn.status(), turn.again)
        kept = {current.name, update.name, *map(_revision_label, pods)}
        history = [each for each in revisions if each.name not in kept]
        if isinstance(ended, Patch) or len(history) <= int(found.spec.get("revisionHistoryLimit", 10)):
            return ended
        return Delete(kind=CONTROLLER_REVISIONS, target=history[0], why="above revisionHistoryLimit", exact=False)


class _Turn:
    """One look at a StatefulSet with its pods at two revisions."""

    def __init__(self, found: Workload, pods: Sequence[Pod], at: _Revisions, claim: _Claims, now: datetime) -> None:
        self._set = found
        self._current, self._update = at
        self._claim = claim
        self._now = now
        self._pods = pods
        self._monotonic = found.spec.get("podManagementPolicy") != "Parallel"
        self._retention: dict[str, str] = found.spec.get("persistentVolumeClaimRetentionPolicy") or {}
        self._strategy: dict[str, Any] = found.spec.get("updateStrategy") or {}
        self._rolling: dict[str, Any] = self._strategy.get("rollingUpdate") or {}
        start = int((found.spec.get("ordinals") or {}).get("start") or 0)
        by_ordinal = {_ordinal(found, pod.name) or 0: pod for pod in pods}
        self._wanted = range(start, start + found.replicas)
        self._replicas = {ordinal: by_ordinal.get(ordinal) for ordinal in self._wanted}
        self._condemned = [by_ordinal[each] for each in sorted(by_ordinal, reverse=True) if each not in self._wanted]
        self.again: float | None = None
        """Seconds until a ready pod is available."""

    def actions(self) -> list[Action]:
        """Return what is to be written; with ordered pods it concerns one pod."""
        writes: list[Action] = []
        for ordinal, pod in self._replicas.items():
            made, stops = self._of_replica(ordinal, pod)
            writes += made
            if stops and self._monotonic:
                return writes
        writes += [each for pod in self._condemned for each in self._retain(pod, _ordinal(self._set, pod.name) or 0)]
        everyone = (*self._replicas.values(), *self._condemned[::-1])
        first = next((pod for pod in everyone if not self._available(pod)), None)
        for pod in self._condemned:
            if not pod.terminating and not (self._monotonic and not self._available(pod) and pod is not first):
                writes.append(self._delete(pod))
            if self._monotonic:
                return writes
        return writes or list(self._replaced())

    def _of_replica(self, ordinal: int, pod: Pod | None) -> tuple[list[Action], bool]:
        """Return the writes for a pod that should be there, and whether the next ones wait for it."""
        if pod is None:
            owners = (controller_of(claim) for claim in self._claims(ordinal))
            if any(owner is not None and owner.kind == "Pod" for owner in owners):
                return [], True  # a claim of its predecessor's, which goes
            return [*self._missing_claims(ordinal), self._create(ordinal), *self._retain(None, ordinal)], True
        if is_finished(pod):
            return [] if pod.terminating else [self._delete(pod)], True
        writes = self._missing_claims(ordinal) if pod.status.phase == "Pending" else []
        if self._monotonic and (pod.terminating or not self._available(pod)):
            return [*writes, *self._retain(pod, ordinal)] if not pod.terminating else writes, True
        labels = {_POD_NAME: pod.name, _POD_INDEX: str(ordinal)}
        if any((pod.metadata.labels or {}).get(key) != value for key, value in labels.items()):
            why = f"update Pod {pod.name} in StatefulSet {self._set.name}"
            writes.append(Patch(kind=PODS, target=pod, body={"metadata": {"labels": labels}}, why=why))
        return [*writes, *self._retain(pod, ordinal)], False

    def _replaced(self) -> Iterator[Action]:
        """Delete pods of another revision, the highest ordinal first."""
        if self._strategy.get("type") == "OnDelete":
            return
        most = max(1, fraction_of(self._rolling.get("maxUnavailable", 1), self._set.replicas, up=False))
        left = most - sum(not self._available(pod) for pod in self._replicas.values())
        for ordinal in reversed(self._wanted):
            pod = self._replicas[ordinal]
            if left <= 0 or ordinal < int(self._rolling.get("partition") or 0) or pod is None:
                return
            if _revision_label(pod) != self._update.name and not pod.terminating:
                left -= 1
                yield self._delete(pod)

    def _create(self, ordinal: int) -> Create:
        revision = self._current if ordinal < int(self._rolling.get("partition") or 0) else self._update
        template = self._set.spec["template"] if revision is self._update else revision.data["spec"]["template"]
        body = pod_from(template, STATEFUL_SETS, self._set)
        name = f"{self._set.name}-{ordinal}"
        body["metadata"]["name"] = name
        body["metadata"]["labels"] |= {_POD_NAME: name, _POD_INDEX: str(ordinal), _REVISION: revision.name}
        claimed = [each["metadata"]["name"] for each in self._set.spec.get("volumeClaimTemplates") or ()]
        volumes = [{"name": each, "persistentVolumeClaim": {"claimName": f"{each}-{name}"}} for each in claimed]
        others = [each for each in body["spec"].get("volumes") or () if each["name"] not in claimed]
        body["spec"] |= {"hostname": name, "subdomain": self._set.spec.get("serviceName") or ""}
        if volumes or others:
            body["spec"]["volumes"] = [*volumes, *others]
        why = f"create Pod {name} in StatefulSet {self._set.name}"
        return self._made(PODS, body, why, f"{why} successful")

    def _made(self, kind: Kind[Any], body: dict[str, Any], why: str, message: str) -> Create:
        events = (said(STATEFUL_SETS, self._set, "SuccessfulCreate", message),)
        return Create(kind=kind, body=body, why=why, events=events, failure_event=failed(STATEFUL_SETS, self._set, why))

    def _delete(self, pod: Pod) -> Delete:
        why = f"delete Pod {pod.name} in StatefulSet {self._set.name}"
        event = said(STATEFUL_SETS, self._set, "SuccessfulDelete", f"{why} successful")
        return Delete(kind=PODS, target=pod, why=why, exact=False, events=(event,))

    def _claims(self, ordinal: int) -> Iterator[Claim]:
        for template in self._set.spec.get("volumeClaimTemplates") or ():
            name = f"{template['metadata']['name']}-{self._set.name}-{ordinal}"
            if (claim := self._claim(f"{self._set.namespace}/{name}")) is not None:
                yield claim

    def _missing_claims(self, ordinal: int) -> list[Action]:
        writes: list[Action] = []
        there = {claim.name for claim in self._claims(ordinal)}
        for template in self._set.spec.get("volumeClaimTemplates") or ():
            pod = f"{self._set.name}-{ordinal}"
            meta = template["metadata"]
            name = f"{meta['name']}-{pod}"
            if name in there:
                continue
            labels = {**(meta.get("labels") or {}), **(self._set.spec["selector"].get("matchLabels") or {})}
            metadata = {"name": name, "namespace": self._set.namespace, "labels": labels}
            if meta.get("annotations"):
                metadata["annotations"] = meta["annotations"]
            body = CLAIMS.body(metadata=metadata, spec=deepcopy(template["spec"]))
            why = f"create Claim {name} Pod {pod} in StatefulSet {self._set.name}"
            writes.append(self._made(CLAIMS, body, why, f"{why} success"))
        return writes

    def _retain(self, pod: Pod | None, ordinal: int) -> Iterator[Action]:
        """Give the claims of a pod the owner with which they go, by the retention policy."""
        for claim in self._claims(ordinal):
            owners = claim.metadata.owner_references or []
            kept = [each for each in owners if each.kind not in (STATEFUL_SETS.kind, "Pod")]
            wanted: dict[str, Any] | None = None
            if ordinal not in self._wanted and self._retention.get("whenScaled") == "Delete":
                wanted = reference_to(PODS, pod) if pod is not None else None
            elif self._retention.get("whenDeleted") == "Delete":
                wanted = reference_to(STATEFUL_SETS, self._set)
            held = [each.uid for each in owners if each not in kept]
            if kept or held == ([wanted["uid"]] if wanted is not None else []):
                continue  # claims with other owners are theirs
            body = {"metadata": {"ownerReferences": [wanted] if wanted is not None else None}}
            yield Patch(kind=CLAIMS, target=claim, body=body, why="the retention policy of its StatefulSet")

    def status(self) -> dict[str, Any]:
        """Return the status as it should be."""
        living = [pod for pod in self._pods if not pod.terminating]
        ready = [pod for pod in self._pods if is_ready(pod) and pod.status.phase == "Running"]
        counts = {
            "replicas": len(self._pods),
            "readyReplicas": len(ready),
            "availableReplicas": sum(self._ready_for(pod) for pod in ready),
            "currentReplicas": sum(_revision_label(pod) == self._current.name for pod in living),
            "updatedReplicas": sum(_revision_label(pod) == self._update.name for pod in living),
        }
        current = self._current.name
        done = {counts[name] for name in ("updatedReplicas", "readyReplicas", "replicas")} == {self._set.replicas}
        if done and self._strategy.get("type") == "RollingUpdate":
            current, counts["currentReplicas"] = self._update.name, counts["updatedReplicas"]
        always = ("replicas", "availableReplicas")
        return {
            **{key: value for key, value in self._set.status.items() if key == "conditions"},
            **{name: count for name, count in counts.items() if count or name in always},
            "observedGeneration": self._set.metadata.generation,
            "currentRevision": current,
            "updateRevision": self._update.name,
            "collisionCount": self._set.count("collisionCount"),
        }

    def _ready_for(self, pod: Pod) -> bool:
        """Tell whether a ready pod has been so for long enough."""
        left = available_in(pod, int(self._set.spec.get("minReadySeconds") or 0), self._now)
        if left:
            self.again = min(left, self.again) if self.again is not None else left
        return left == 0.0

    def _available(self, pod: Pod | None) -> bool:
        runs = pod is not None and not pod.terminating and pod.status.phase == "Running"
        return runs and pod is not None and self._ready_for(pod)


def _ordinal(found: Workload, name: str) -> int | None:
    """Return the ordinal in the name of a pod of the set; None if it is no name of one."""
    parent, _, number = name.rpartition("-")
    return int(number) if parent == found.name and number.isascii() and number.isdigit() else None


def _revision_label(pod: Pod) -> str:
    return (pod.metadata.labels or {}).get(_REVISION, "")


def _revision_of(found: Workload, revisions: Sequence[ControllerRevision]) -> ControllerRevision | Action:
    """Return the revision with the set's template, or the write that makes it the newest one."""
    data = {"spec": {"template": {**found.spec["template"], "$patch": "replace"}}}
    equal = next((each for each in reversed(revisions) if each.data == data), None)
    number = revisions[-1].revision + 1 if revisions else 1
    if equal is not None and equal is revisions[-1]:
        return equal
    if equal is not None:
        return Patch(kind=CONTROLLER_REVISIONS, target=equal, body={"revision": number}, why="a roll-back")
    digest = hash_of(data, found.count("collisionCount"))
    labels = found.spec["template"].get("metadata", {}).get("labels") or {}
    metadata = {
        "name": f"{found.name}-{digest}",
        "namespace": found.namespace,
        "labels": {**labels, "controller.kubernetes.io/hash": digest},
        "ownerReferences": [reference_to(STATEFUL_SETS, found)],
    }
    body = CONTROLLER_REVISIONS.body(metadata=metadata, data=data, revision=number)
    return Create(kind=CONTROLLER_REVISIONS, body=body, why=f"create revision {number} of StatefulSet {found.name}")
