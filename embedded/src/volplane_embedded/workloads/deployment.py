"""Deployments: a ReplicaSet for each template, scaled against each other when the template changes.

Source: pkg/controller/deployment and its util/deployment_util.go of Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, Final

from volplane.controller.actions import Action, Create, Delete, EventRecord, LiveReads, Patch, Settled
from volplane_embedded.informers import Informers
from volplane_embedded.objects import DEPLOYMENTS, REPLICA_SETS, Workload, is_finished, timestamp
from volplane_embedded.workloads.objects import claimed, failed, fraction_of, hash_of, reference_to, said, written

_HASH: Final = "pod-template-hash"
_REVISION: Final = "deployment.kubernetes.io/revision"
_HISTORY: Final = "deployment.kubernetes.io/revision-history"
_DESIRED: Final = "deployment.kubernetes.io/desired-replicas"
_MAXIMUM: Final = "deployment.kubernetes.io/max-replicas"
_NOT_COPIED: Final = (
    *("kubectl.kubernetes.io/last-applied-configuration", "deprecated.deployment.rollback.to"),
    *(_REVISION, _HISTORY, _DESIRED, _MAXIMUM),
)
Json = dict[str, Any]
_AVAILABLE: Final = "NewReplicaSetAvailable"
_TIMED_OUT: Final = "ProgressDeadlineExceeded"


class Deployments:
    """The controller's decisions. now: wall time."""

    def __init__(self, informers: Informers, now: Callable[[], datetime]) -> None:
        self._informers = informers
        self._now = now

    def decide(self, key: str, _reads: LiveReads) -> Action:
        found = self._informers.deployments.get(key)
        if found is None:
            return Settled()
        owned = self._informers.replica_sets.by_index("controller", found.uid)
        rollout = _Rollout(found, owned, self._informers, self._now())
        if not found.terminating:
            orphans = self._informers.replica_sets.by_index("controller", f"{found.namespace}/")
            for action in (*claimed(DEPLOYMENTS, found, REPLICA_SETS, orphans, owned), *rollout.writes()):
                return action
        return written(DEPLOYMENTS, found, rollout.status(), rollout.again)


class _Rollout:
    """One look at a Deployment with its ReplicaSets."""

    def __init__(self, found: Workload, owned: Sequence[Workload], informers: Informers, now: datetime) -> None:
        self._deployment = found
        self._informers = informers
        self._now = now
        self._all = sorted(owned, key=lambda each: (each.metadata.creation_timestamp or "", each.name))
        template = _bare(found.spec["template"])
        self._new = next((each for each in self._all if _bare(each.spec["template"]) == template), None)
        self._old = [each for each in self._all if each is not self._new]
        strategy = found.spec.get("strategy") or {}
        self._rolling = strategy.get("type") == "RollingUpdate"
        rolling = strategy.get("rollingUpdate") or {}
        surge = fraction_of(rolling.get("maxSurge"), found.replicas, up=True)
        unavailable = fraction_of(rolling.get("maxUnavailable"), found.replicas, up=False)
        if not surge and not unavailable:
            unavailable = 1
        self._surge = surge if self._rolling and found.replicas else 0
        self._unavailable = min(unavailable, found.replicas) if self._rolling else 0
        self.again: float | None = None
        """Seconds until the deadline for progress."""

    def writes(self) -> Iterator[Action]:
        """Return the next writes of a roll-out, if there are any."""
        found, new = self._deployment, self._new
        if new is not None and (changes := self._annotations(new)):
            body: Json = {"metadata": {"annotations": changes}}
            yield Patch(kind=REPLICA_SETS, target=new, body=body, why="it is the newest one")
        if new is not None and (number := new.annotation(_REVISION)) != found.annotation(_REVISION):
            body = {"metadata": {"annotations": {_REVISION: number}}}
            if new.annotation(_HISTORY) is None:
                made = ("True", "NewReplicaSetCreated", f'Created new replica set "{new.name}"')
                body["status"] = {"conditions": self._with(found.status.get("conditions") or [], "Progressing", *made)}
            yield Patch(kind=DEPLOYMENTS, target=found, body=body, why="its revision", subresource="status")
        paused = bool(found.spec.get("paused"))
        resized = any(_number(each, _DESIRED) not in (None, found.replicas) for each in self._all if each.replicas)
        yield from self._resized() if paused or resized else self._rolled()
        if paused or (not resized and self._is_complete(self._counts())):
            yield from self._cleaned()

    def _rolled(self) -> Iterator[Action]:
        if not self._rolling and any(each.replicas for each in self._old):
            yield from (self._scaled(each, 0) for each in self._old if each.replicas)
        elif not self._rolling and self._old_pods_run():
            return
        elif self._new is None:
            yield from self._create()
        elif self._new.replicas != (size := self._size_of_new(self._new.replicas)):
            yield self._scaled(self._new, size)
        elif self._rolling:
            yield from self._shrunk(self._new)

    def _create(self) -> Iterator[Action]:
        found = self._deployment
        digest = hash_of(_bare(found.spec["template"]), found.count("collisionCount"))
        template = deepcopy(found.spec["template"])
        labels = {**(template.get("metadata", {}).get("labels") or {}), _HASH: digest}
        template.setdefault("metadata", {})["labels"] = labels
        selector = deepcopy(found.spec["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), _HASH: digest}
        number = str(self._newest_number() + 1)
        metadata = {
            "name": f"{found.name}-{digest}",
            "namespace": found.namespace,
            "labels": labels,
            "annotations": {**self._copied(), _REVISION: number, **self._sizes()},
            "ownerReferences": [reference_to(DEPLOYMENTS, found)],
        }
        least = {key: found.spec[key] for key in ("minReadySeconds",) if key in found.spec}
        spec = {"replicas": self._size_of_new(0), "selector": selector, "template": template, **least}
        body = REPLICA_SETS.body(metadata=metadata, spec=spec)
        events = (_scaling(found, "up", str(metadata["name"]), 0, spec["replicas"]),) if spec["replicas"] else ()
        why = f"create ReplicaSet {metadata['name']}"
        failure = failed(DEPLOYMENTS, found, why)
        yield Create(kind=REPLICA_SETS, body=body, why=why, events=events, failure_event=failure)

    def _annotations(self, new: Workload) -> dict[str, str]:
        """Return the annotations that the newest ReplicaSet lacks."""
        have = new.metadata.annotations or {}
        changes = {key: value for key, value in self._copied().items() if have.get(key) != value}
        before, number = _number(new, _REVISION) or 0, self._newest_number() + 1
        if before < number:
            changes[_REVISION] = str(number)
            if before:
                former = [each for each in have.get(_HISTORY, "").split(",") if each]
                changes[_HISTORY] = ",".join([*former, str(before)])
        return changes

    def _copied(self) -> dict[str, str]:
        held = self._deployment.metadata.annotations or {}
        return {key: value for key, value in held.items() if key not in _NOT_COPIED}

    def _sizes(self) -> dict[str, str]:
        wanted = self._deployment.replicas
        return {_DESIRED: str(wanted), _MAXIMUM: str(wanted + self._surge)}

    def _newest_number(self) -> int:
        return max((_number(each, _REVISION) or 0 for each in self._old), default=0)

    def _size_of_new(self, now: int) -> int:
        """Return how large the newest ReplicaSet may be: no more than maxSurge pods too many."""
        wanted = self._deployment.replicas
        if not self._rolling or now > wanted:
            return wanted
        room = wanted + self._surge - sum(each.replicas for each in self._all)
        return now + max(0, min(room, wanted - now))

    def _shrunk(self, new: Workload) -> Iterator[Action]:
        """Scale old ReplicaSets down: pods that are unavailable first, then as many as may be missed."""
        least = self._deployment.replicas - self._unavailable
        most = sum(each.replicas for each in self._all) - least - (new.replicas - new.count("availableReplicas"))
        spare = sum(each.count("availableReplicas") for each in self._all) - least
        sizes = {each.name: each.replicas for each in self._old}
        for room, useless in ((most, True), (spare, False)) if most > 0 else ():
            left = room
            for each in self._old:
                cut = max(0, min(left, sizes[each.name] - (each.count("availableReplicas") if useless else 0)))
                sizes[each.name] -= cut
                left -= cut
        yield from (self._scaled(each, sizes[each.name]) for each in self._old if sizes[each.name] != each.replicas)

    def _resized(self) -> Iterator[Action]:
        """Bring the ReplicaSets to a new number of pods in proportion to their sizes."""
        wanted = self._deployment.replicas
        active = [each for each in self._all if each.replicas]
        if len(active) <= 1:
            only = active[0] if active else self._new or (self._old[-1] if self._old else None)
            if only is not None and (only.replicas != wanted or self._outdated(only)):
                yield self._scaled(only, wanted)
            return
        new = self._new
        sizes_of_new = (new.replicas, new.count("availableReplicas"), _number(new, _DESIRED)) if new else ()
        if {*sizes_of_new} == {wanted}:
            yield from (self._scaled(each, 0) for each in self._old if each.replicas)
            return
        if not self._rolling:
            return
        total = wanted + self._surge if wanted else 0
        to_add = total - sum(each.replicas for each in active)
        active.sort(key=lambda each: (each.metadata.creation_timestamp or "", each.name), reverse=to_add > 0)
        active.sort(key=lambda each: each.replicas, reverse=True)
        added, sizes = 0, []
        for each in active:
            base = _number(each, _MAXIMUM) or self._deployment.count("replicas") or 1
            share = (2 * each.replicas * (wanted + self._surge) + base) // (2 * base) if wanted else 0
            left = to_add - added
            part = min(share - each.replicas, left) if to_add > 0 else max(share - each.replicas, left)
            added += part
            sizes.append(each.replicas + part)
        sizes[0] = max(0, sizes[0] + to_add - added)
        for each, size in zip(active, sizes, strict=True):
            if size != each.replicas or self._outdated(each):
                yield self._scaled(each, size)

    def _outdated(self, each: Workload) -> bool:
        held = each.metadata.annotations or {}
        return any(held.get(key) != value for key, value in self._sizes().items())

    def _scaled(self, each: Workload, size: int) -> Action:
        body: dict[str, Any] = {"metadata": {"annotations": self._sizes()}}
        events: tuple[EventRecord, ...] = ()
        if size != each.replicas:
            body["spec"] = {"replicas": size}
            direction = "up" if size > each.replicas else "down"
            events = (_scaling(self._deployment, direction, each.name, each.replicas, size),)
        return Patch(kind=REPLICA_SETS, target=each, body=body, why="a roll-out", events=events)

    def _old_pods_run(self) -> bool:
        pods = (pod for each in self._old for pod in self._informers.pods.by_index("controller", each.uid))
        return any(not is_finished(pod) for pod in pods)

    def _cleaned(self) -> Iterator[Action]:
        """Delete the oldest ReplicaSets above the limit, if they are empty."""
        limit = int(self._deployment.spec.get("revisionHistoryLimit", 10))
        alive = [each for each in self._old if not each.terminating]
        alive.sort(key=lambda each: _number(each, _REVISION) or 0)
        for each in alive[: max(0, len(alive) - limit)]:
            observed = each.metadata.generation <= each.count("observedGeneration")
            if not each.replicas and not each.count("replicas") and observed:
                yield Delete(kind=REPLICA_SETS, target=each, why="above revisionHistoryLimit", exact=False)

    def status(self) -> dict[str, Any]:
        """Return the status as it should be."""
        found = self._deployment
        counts = self._counts()
        conditions = self._conditions(counts)
        said = {"collisionCount": found.status.get("collisionCount"), "conditions": conditions}
        return {
            "observedGeneration": found.metadata.generation,
            **{name: count for name, count in counts.items() if count or name == "terminatingReplicas"},
            **{name: value for name, value in said.items() if value},
        }

    def _counts(self) -> dict[str, int]:
        summed = ("replicas", "readyReplicas", "availableReplicas", "terminatingReplicas")
        counts = {name: sum(each.count(name) for each in self._all) for name in summed}
        missing = sum(each.replicas for each in self._all) - counts["availableReplicas"]
        updated = self._new.count("replicas") if self._new is not None else 0
        return {**counts, "updatedReplicas": updated, "unavailableReplicas": max(0, missing)}

    def _is_complete(self, counts: Mapping[str, int]) -> bool:
        said = [counts[name] for name in ("updatedReplicas", "replicas", "availableReplicas")]
        found = self._deployment
        return {*said} == {found.replicas} and found.count("observedGeneration") >= found.metadata.generation

    def _conditions(self, counts: Mapping[str, int]) -> list[Json]:
        found = self._deployment
        conditions: list[Json] = list(found.status.get("conditions") or ())
        if counts["availableReplicas"] >= found.replicas - self._unavailable:
            said = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        else:
            said = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        conditions = self._with(conditions, "Available", *said)
        if (progress := self._progress(counts)) is None:
            return conditions
        return self._with(conditions, "Progressing", *progress, renew=progress[1] == "ReplicaSetUpdated")

    def _progresses(self, counts: Mapping[str, int]) -> bool:
        before = {name: self._deployment.count(name) for name in counts}
        if counts["replicas"] - counts["updatedReplicas"] < before["replicas"] - before["updatedReplicas"]:
            return True
        return any(counts[name] > before[name] for name in ("updatedReplicas", "readyReplicas", "availableReplicas"))

    def _progress(self, counts: Mapping[str, int]) -> tuple[str, str, str] | None:
        """Return status, reason and message of the condition Progressing; None where it stays."""
        found = self._deployment
        held: list[Json] = found.status.get("conditions") or []
        former = next((each for each in held if each["type"] == "Progressing"), Json())
        reason = former.get("reason")
        if found.spec.get("paused"):
            return None if reason == _TIMED_OUT else ("Unknown", "DeploymentPaused", "Deployment is paused")
        if reason == "DeploymentPaused":
            return ("Unknown", "DeploymentResumed", "Deployment is resumed")
        if counts["replicas"] == counts["updatedReplicas"] and reason == _AVAILABLE:
            return None
        name = f'ReplicaSet "{self._new.name}"' if self._new is not None else f'Deployment "{found.name}"'
        if {counts[each] for each in ("updatedReplicas", "replicas", "availableReplicas")} == {found.replicas}:
            return ("True", _AVAILABLE, f"{name} has successfully progressed.")
        if self._progresses(counts):
            return ("True", "ReplicaSetUpdated", f"{name} is progressing.")
        since = datetime.fromisoformat(former.get("lastUpdateTime") or timestamp(self._now))
        left = (since - self._now).total_seconds() + int(found.spec.get("progressDeadlineSeconds") or 600)
        if reason == _AVAILABLE or left > 0:
            self.again = left if reason != _AVAILABLE else None
            return None
        return ("False", _TIMED_OUT, f"{name} has timed out progressing.")

    def _with(self, conditions: list[Json], kind: str, *said: str, renew: bool = False) -> list[Json]:
        """Return the list with this condition set. One with the same status and reason stays, unless it is renewed."""
        status, reason, message = said
        former = next((each for each in conditions if each["type"] == kind), {})
        same = former.get("status") == status
        if same and former.get("reason") == reason and not renew:
            return conditions
        now = timestamp(self._now)
        condition = {
            "type": kind,
            "status": status,
            "lastUpdateTime": now,
            "lastTransitionTime": former["lastTransitionTime"] if same else now,
            "reason": reason,
            "message": message,
        }
        return [*(each for each in conditions if each["type"] != kind), condition]


def _scaling(found: Workload, direction: str, name: str, *sizes: int) -> EventRecord:
    message = f"Scaled {direction} replica set {name} from {sizes[0]} to {sizes[1]}"
    return said(DEPLOYMENTS, found, "ScalingReplicaSet", message)


def _bare(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a template without the hash that ReplicaSets have in theirs."""
    meta = template.get("metadata") or {}
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key != _HASH}
    return {**template, "metadata": {**meta, "labels": labels}}


def _number(found: Workload, name: str) -> int | None:
    text = found.annotation(name) or ""
    return int(text) if text.isascii() and text.isdigit() else None
