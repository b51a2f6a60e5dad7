"""What several of the workload controllers ask.

Source: pkg/controller/controller_utils.go of Kubernetes 1.36.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

import msgspec

from volplane.controller.actions import Action, EventRecord, Patch, Settled, Wait, warning
from volplane.kube.kinds import Kind
from volplane.kube.objects import KubeObject
from volplane_embedded.objects import Workload

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


def reference_to(kind: Kind[Any], owner: KubeObject) -> dict[str, Any]:
    """Return the reference of an object to the owner that manages it."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def hash_of(value: Any, collisions: int = 0) -> str:
    """Return a short text in the letters of the stock controllers, which differs where the value does."""
    digest = hashlib.sha256(msgspec.json.encode([value, collisions], order="deterministic")).digest()
    return "".join(_LETTERS[ord(digit) % len(_LETTERS)] for digit in str(int.from_bytes(digest[:4], "big")))


def pod_from(template: Mapping[str, Any], owner_kind: Kind[Any], owner: Workload) -> dict[str, Any]:
    """Return the body of a pod by the template of its owner."""
    meta = template.get("metadata") or {}
    kept = {key: deepcopy(meta[key]) for key in ("labels", "annotations", "finalizers") if meta.get(key)}
    metadata = {
        "generateName": f"{owner.name}-",
        "namespace": owner.namespace,
        "labels": {},
        **kept,
        "ownerReferences": [reference_to(owner_kind, owner)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": deepcopy(dict(template.get("spec") or {}))}


def fraction_of(amount: Any, total: int, *, up: bool) -> int:
    """Return a number or a percentage of `total` pods as a number, rounded up or down."""
    if not isinstance(amount, str):
        return int(amount or 0)
    percent = int(amount.removesuffix("%")) * total
    return -(-percent // 100) if up else percent // 100


def claimed(
    owner_kind: Kind[Any], owner: Workload, kind: Kind[Any], orphans: Iterable[KubeObject], owned: Iterable[KubeObject]
) -> Iterator[Action]:
    """Take over what matches and has no owner; let go of what matches no more."""
    for each in orphans:
        if owner.selects(each) and not each.terminating and not each.metadata.owner_references:
            body = {"metadata": {"ownerReferences": [reference_to(owner_kind, owner)]}}
            yield Patch(kind=kind, target=each, body=body, why=f"adopt {each.key}")
    for each in owned:
        if not owner.selects(each) and not each.terminating:
            yield Patch(kind=kind, target=each, body={"metadata": {"ownerReferences": None}}, why="it matches no more")


def said(kind: Kind[Any], about: Workload, reason: str, message: str) -> EventRecord:
    return EventRecord(kind, about, "Normal", reason, message)


def failed(kind: Kind[Any], about: Workload, what: str) -> EventRecord:
    """Return the event of a create that is refused; the server's words are added."""
    return warning(kind, about, "FailedCreate", f"{what} failed error")


def written(kind: Kind[Any], found: Workload, status: Mapping[str, Any], again: float | None) -> Action:
    """Write the status if it is not true, else wait. again: seconds until something becomes true by itself."""
    if status == found.status:
        return Settled() if again is None else Wait(reason="pods become available with time", seconds=again)
    body = {"status": {**dict.fromkeys(found.status), **status}}
    return Patch(kind=kind, target=found, body=body, why="its status", subresource="status")
