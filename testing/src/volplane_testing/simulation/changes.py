"""Users who change what their claims ask for, the node that grows file systems, and the invariants over sizes.

A claim grows, asks for more than there is and then for less again, and names another VolumeAttributesClass; also while
the one before is still being worked on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from volplane.kube import names
from volplane.kube.quantity import parse
from volplane_testing.simulation.backends import SimulatedBackend
from volplane_testing.simulation.changing_backend import (
    BROKEN_CLASS,
    CHANGED_CLASSES,
    LARGEST_GIB,
    SPEED,
    ChangingBackend,
)
from volplane_testing.simulation.cluster_view import Commit, Json, annotations_of, key_of, reference_of
from volplane_testing.simulation.run_context import RunContext

__all__ = ["Changes", "write_changes"]

_ME: Final = "user"
_NODE: Final = "cluster"
_MERGE: Final = {"content-type": "application/merge-patch+json"}
_JSON: Final = {"content-type": "application/json"}
_ATTRIBUTES: Final = "/apis/storage.k8s.io/v1/volumeattributesclasses"
_GIB: Final = 2**30


def write_changes(do: Callable[..., None], seed: str, claims: Sequence[str], end: float) -> None:
    """Add actions to a schedule: for some claims, at moments until shortly after its end."""
    random = Random(f"{seed} changes")  # noqa: S311 -- of its own, so that its draws change nothing else
    for claim in claims:
        at = random.uniform(0.0, max(end / 2, 2.0))
        for _ in range(random.choice((0, 1, 2, 4))):
            what = random.choice(("grow", "grow", "ask_too_much", "ask_for_less", "set_attributes"))
            if what == "grow":
                do(at, "grow", claim=claim, more=random.choice((1, 1, 2)))
            elif what == "set_attributes":
                named = random.choice((*CHANGED_CLASSES, *CHANGED_CLASSES, BROKEN_CLASS))
                do(at, "set_attributes", claim=claim, attributes=named)
            else:
                do(at, what, claim=claim)
                if random.random() < 0.6:
                    do(at + random.choice((0.5, 5.0, 40.0)), "ask_for_less", claim=claim)
            at += random.choice((0.02, random.uniform(0.0, 1.0), random.uniform(0.0, 20.0)))


class Changes:
    """Carries out the actions of `write_changes`, and reports broken invariants."""

    def __init__(self, run_context: RunContext, backends: Mapping[str, SimulatedBackend]) -> None:
        self._view = run_context.view
        self._chance = run_context.chance
        self._happened = run_context.trace.happened
        self._violations = run_context.violations
        self._backends = [each for each in backends.values() if isinstance(each, ChangingBackend)]
        self._node_turns = 0
        self.actions: Mapping[str, Callable[..., None]] = {
            "grow": self._grow,
            "ask_too_much": self._ask_too_much,
            "ask_for_less": self._ask_for_less,
            "set_attributes": self._set_attributes,
        }
        run_context.view.listeners.append(self._committed)
        for backend in self._backends:
            backend.asked_while_attached = self._deletes_attached
        self._excused = run_context.safety.excused

    def _deletes_attached(self, handle: str, node: str) -> None:
        if not self._excused():
            self._violations.report("nothing-attached-is-deleted", f"{handle} is to be deleted, and is at {node}")

    def prepare(self) -> None:
        """Make the VolumeAttributesClasses."""
        for backend in self._backends:
            for name, speed in (*CHANGED_CLASSES.items(), (BROKEN_CLASS, "none")):
                body = {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "VolumeAttributesClass",
                    "metadata": {"name": name},
                    "driverName": backend.name,
                    "parameters": {SPEED: speed},
                }
                self._view.send(_ME, "POST", _ATTRIBUTES, json.dumps(body).encode(), headers=_JSON)

    def recover(self) -> None:
        """Users ask for what can be had: nothing is refused for ever."""
        for claim in list(self._view.claims.values()):
            if self._bound(claim["metadata"]["name"]) is None:
                continue
            if _asked(claim) > LARGEST_GIB * _GIB:
                self._ask(claim, _held(claim) // _GIB + 1)
            if claim["spec"].get("volumeAttributesClassName") == BROKEN_CLASS:
                self._patch(claim, {"volumeAttributesClassName": next(iter(CHANGED_CLASSES))})

    # --- users --------------------------------------------------------------------------------------------------

    def _grow(self, claim: str, more: int) -> None:
        found = self._bound(claim)
        if found is not None:
            wanted = min(_asked(found) // _GIB + more, LARGEST_GIB - 1)
            if wanted * _GIB > _asked(found) and self._ask(found, wanted):
                self._happened["user: grows a claim"] += 1

    def _ask_too_much(self, claim: str) -> None:
        found = self._bound(claim)
        if found is not None and self._ask(found, LARGEST_GIB + 3):
            self._happened["user: asks for more than there is"] += 1

    def _ask_for_less(self, claim: str) -> None:
        """Down to just above what it has."""
        found = self._bound(claim)
        if found is not None and _asked(found) > _held(found) + _GIB and self._ask(found, _held(found) // _GIB + 1):
            self._happened["user: asks for less again"] += 1

    def _set_attributes(self, claim: str, attributes: str) -> None:
        found = self._bound(claim)
        if found is not None and self._patch(found, {"volumeAttributesClassName": attributes}):
            self._happened[f"user: names attributes {attributes}"] += 1

    def _bound(self, claim: str) -> Json | None:
        if not self._backends:
            return None  # An external storage has limits of its own.
        found = self._view.claims.get(f"default/{claim}")
        bound = found is not None and names.BIND_COMPLETED in annotations_of(found)
        volume = self._view.volumes.get(found["spec"].get("volumeName", "")) if found is not None else None
        if volume is None or "csi" not in volume["spec"]:
            return None  # The other storage cannot grow anything.
        return found if bound and found is not None and "deletionTimestamp" not in found["metadata"] else None

    def _ask(self, claim: Json, gib: int) -> bool:
        return self._patch(claim, {"resources": {"requests": {"storage": f"{gib}Gi"}}})

    def _patch(self, claim: Json, spec: Json) -> bool:
        return self._send(_ME, claim, {"spec": spec})

    def _send(self, who: str, claim: Json, body: Json, subresource: str = "") -> bool:
        meta = claim["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}{subresource}"
        return self._view.send(who, "PATCH", path, json.dumps(body).encode(), headers=_MERGE).status < 300

    # --- the node -----------------------------------------------------------------------------------------------

    def _committed(self, commit: Commit) -> None:
        if commit.kind == "volume" and commit.old is not None and commit.new is not None:
            self._check_volume(commit.name, commit.old, commit.new)
        elif commit.kind == "claim" and commit.old is not None and commit.new is not None:
            self._check_claim(commit.name, commit.old, commit.new)
        if commit.kind in ("claim", "pod") and commit.new is not None:
            for claim in [commit.new] if commit.kind == "claim" else self._claims_of(commit.new):
                if _node_is_due(claim) and self._running(claim):
                    self._node_turns += 1
                    later = self._chance.between(0.01, 3.0, f"node grows {key_of(claim)} {self._node_turns}")
                    asyncio.get_running_loop().call_later(later, self._grow_file_system, key_of(claim))

    def _grow_file_system(self, key: str) -> None:
        """Write what a kubelet writes when the file system has the size of its disk."""
        claim = self._view.claims.get(key)
        volume = self._view.volumes.get(claim["spec"].get("volumeName", "")) if claim is not None else None
        if claim is None or volume is None or not _node_is_due(claim) or not self._running(claim):
            return
        conditions = [
            each for each in claim["status"].get("conditions") or () if each["type"] != "FileSystemResizePending"
        ]
        status = {
            "capacity": volume["spec"]["capacity"],
            "allocatedResourceStatuses": None,
            "conditions": conditions or None,
        }
        self._send(_NODE, claim, {"status": status}, "/status")

    def _claims_of(self, pod: Json) -> Iterator[Json]:
        for volume in pod["spec"].get("volumes") or ():
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            claim = self._view.claims.get(f"{pod['metadata']['namespace']}/{name}")
            if claim is not None:
                yield claim

    def _running(self, claim: Json) -> bool:
        return any(
            pod.get("status", {}).get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
            and any(each is claim or key_of(each) == key_of(claim) for each in self._claims_of(pod))
            for pod in self._view.pods.values()
        )

    # --- invariants ---------------------------------------------------------------------------------------------

    def _check_volume(self, name: str, old: Json, new: Json) -> None:
        before, after = _size(old["spec"].get("capacity")), _size(new["spec"].get("capacity"))
        if old["metadata"]["uid"] == new["metadata"]["uid"] and after < before:
            self._violations.report("capacity-never-shrinks", f"volume {name} has {after} bytes, and had {before}")
        there = self._stored(new)
        if after > before and there is not None and after > there:
            self._violations.report("no-more-than-there-is", f"volume {name} has {after} bytes, its asset {there}")

    def _check_claim(self, name: str, old: Json, new: Json) -> None:
        before, after = _held(old), _held(new)
        if not _stays_bound(old, new) or after == before:
            return
        volume = self._view.volumes.get(new["spec"].get("volumeName", ""))
        if after < before:
            self._violations.report("capacity-never-shrinks", f"claim {name} has {after} bytes, and had {before}")
        elif volume is not None and after > _size(volume["spec"].get("capacity")):
            self._violations.report("no-more-than-there-is", f"claim {name} has {after} bytes, its volume less")

    def _stored(self, volume: Json) -> int | None:
        handle = (volume["spec"].get("csi") or {}).get("volumeHandle", "")
        found = [backend.assets[handle].capacity for backend in self._backends if handle in backend.assets]
        return found[0] if found else None

    def check(self, reasons: Mapping[str, str]) -> None:
        """Check a run at rest: every claim has what it asks for."""
        for key, claim in sorted(self._view.claims.items()):
            volume = self._view.volumes.get(claim["spec"].get("volumeName", ""))
            ours = volume is not None and reference_of(volume).get("uid") == claim["metadata"]["uid"]
            if self._bound(claim["metadata"]["name"]) is None or not ours or volume is None:
                continue
            why = " / ".join(text for about, text in reasons.items() if about.endswith(f" {key}"))
            for text in self._wrong(claim, volume):
                self._violations.report("what-is-asked-for-comes", f"claim {key} {text}; {why}")

    def _wrong(self, claim: Json, volume: Json) -> Iterator[str]:
        # What was begun is finished first, and no node grows a file system that no pod uses.
        waits = _node_is_due(claim) and not self._running(claim)
        if _size(volume["spec"]["capacity"]) < _asked(claim) and not waits:
            yield f"asks for {_asked(claim)} bytes, and its volume has {volume['spec']['capacity']}"
        elif _held(claim) < _asked(claim) and not waits:
            yield f"has {_held(claim)} of {_asked(claim)} bytes: {claim['status']}"
        named = claim["spec"].get("volumeAttributesClassName") or ""
        handle = (volume["spec"].get("csi") or {}).get("volumeHandle", "")
        if named not in CHANGED_CLASSES:
            return
        speeds = [backend.speeds.get(handle, "") for backend in self._backends if handle in backend.assets]
        shown = claim["status"].get("currentVolumeAttributesClassName")
        if shown != named or claim["status"].get("modifyVolumeStatus") is not None:
            yield f"names attributes {named}, and its status says {claim['status']}"
        if speeds and speeds != [CHANGED_CLASSES[named]]:
            yield f"has attributes {named}, and its asset has the speed {speeds[0]!r}"


def _stays_bound(old: Json, new: Json) -> bool:
    """Tell whether the claim was and is bound to the same volume. A lost one has no size."""
    both = (old, new)
    return len({(each["metadata"]["uid"], each["spec"].get("volumeName")) for each in both}) == 1 and all(
        each.get("status", {}).get("phase") == "Bound" for each in both
    )


def _size(capacity: Any) -> int:
    return parse((capacity or {}).get("storage", "0")).as_bytes()


def _asked(claim: Json) -> int:
    return _size(claim["spec"]["resources"].get("requests"))


def _held(claim: Json) -> int:
    return _size(claim.get("status", {}).get("capacity"))


def _node_is_due(claim: Json) -> bool:
    states = claim.get("status", {}).get("allocatedResourceStatuses") or {}
    return states.get("storage") == "NodeResizePending"
