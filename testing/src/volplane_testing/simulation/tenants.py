"""A tenant who writes what may be written to a claim at any moment, while its volume is made and later."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from volplane.kube import names
from volplane_testing.simulation.cluster_view import Json, annotations_of, finalizers_of
from volplane_testing.simulation.run_context import RunContext

__all__ = ["OWN_FINALIZER", "Tenant", "write_hostility"]

_CLAIMS: Final = "/api/v1/namespaces/default/persistentvolumeclaims"
OWN_FINALIZER: Final = "example.com/mine"
_WRITES: Final = (
    "bare",
    "bare",
    "gone",
    "gone",
    "own volume",
    "another volume",
    "held",
    "another node",
    "provisioner",
    "huge",
    "labels",
)


class Tenant:
    """Its `actions` are the `what` of actions. hidden: gets the uids of claims whose record was removed."""

    def __init__(self, run_context: RunContext, hidden: set[str]) -> None:
        self.actions: Mapping[str, Callable[..., None]] = {"write_claim": self.write_claim, "end_claim": self.end_claim}
        self._view = run_context.view
        self._safety = run_context.safety
        self._happened = run_context.trace.happened
        self._hidden = hidden

    def write_claim(self, claim: str, thing: str) -> None:
        """Write one of the things that a tenant may write to a claim that is not bound yet."""
        found = self._view.claims.get(f"default/{claim}")
        if found is None or names.BIND_COMPLETED in annotations_of(found):
            return
        self._happened[f"user: writes a claim ({thing})"] += 1
        uid = found["metadata"]["uid"]
        bare = {"finalizers": None, "annotations": {names.INTENT: None}}
        if thing in ("bare", "gone", "own volume", "another volume", "held"):
            self._hidden.add(uid)
            self._safety.forged.setdefault(uid, 0.0)
        match thing:
            case "gone":
                self._patch(claim, {"metadata": bare})
                self.end_claim(claim)
            case "held":
                self._patch(claim, {"metadata": {**bare, "finalizers": [OWN_FINALIZER]}})
                self._send("DELETE", f"{_CLAIMS}/{claim}")
            case "own volume" | "another volume":
                taken = f"pvc-{uid}" if thing == "own volume" else "elsewhere"
                self._patch(claim, {"metadata": bare, "spec": {"volumeName": taken}})
            case "another node":
                self._safety.moved.add(uid)
                self._patch(claim, {"metadata": {"annotations": {names.SELECTED_NODE: "nowhere"}}})
            case "provisioner":
                named = dict.fromkeys((names.STORAGE_PROVISIONER, names.BETA_STORAGE_PROVISIONER), "other.example.com")
                self._patch(claim, {"metadata": {"annotations": named}})
            case "huge":
                self._patch(claim, {"spec": {"resources": {"requests": {"storage": "1e30"}}}})
            case "labels":
                self._patch(
                    claim, {"metadata": {"labels": {names.NODE: "0" * 16}, "annotations": {"notes": "x" * 999}}}
                )
            case _:
                self._patch(claim, {"metadata": bare})

    def end_claim(self, claim: str) -> None:
        """Delete the claim, and take away what would hold it: the tenant wants its name, and its quota, back."""
        self._send("DELETE", f"{_CLAIMS}/{claim}")
        found = self._view.claims.get(f"default/{claim}")
        if found is not None and OWN_FINALIZER in finalizers_of(found):
            self._hidden.add(found["metadata"]["uid"])
            self._patch(claim, {"metadata": {"finalizers": None}})

    def _patch(self, claim: str, body: Json) -> None:
        self._send("PATCH", f"{_CLAIMS}/{claim}", body)

    def _send(self, method: str, path: str, body: Json | None = None) -> None:
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        self._view.send("user", method, path, json.dumps(body or {}).encode(), headers={"content-type": media})


def write_hostility(do: Callable[..., None], about: str, claims: list[str], share: float, end: float) -> None:
    """Write actions of `Tenant` for a share of the claims, all of which are deleted in the end.

    do: adds an action. about: what the draws depend on. end: virtual second before which they begin.
    """
    random = Random(f"{about} hostility")  # noqa: S311 -- schedules, not secrets
    for claim in claims:
        if random.random() >= share:
            continue
        for _ in range(random.randint(2, 8)):
            at = random.uniform(0.0, end) if random.random() < 0.5 else random.uniform(0.0, 8.0)
            do(at, "write_claim", claim=claim, thing=random.choice(_WRITES))
        do(end + random.uniform(1.0, 60.0), "end_claim", claim=claim)
