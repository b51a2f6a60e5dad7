"""What no pass is spent on: the predicates refuse nothing about which there is something to decide."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import DRIVER, disk, state_with
from volplane.controller.actions import LiveReads, Settled
from volplane.kube import names
from volplane.kube.objects import Claim, Volume
from volplane.reconcile.claims import ClaimReconciler
from volplane.reconcile.volumes import VolumeReconciler
from volplane.state.cluster_state import ClusterState
from volplane.state.records import INTENT_VERSION, ClaimIntent, RecycleIntent, write_intent

DYING = "2026-01-01T00:00:00Z"
OURS = [names.RECLAIM_FINALIZER]
SCRUBBED = write_intent(RecycleIntent(v=INTENT_VERSION, claim="c"))

CLAIMS = list(
    product(
        (None, "v"),
        (None, DYING),
        (None, [names.PROVISIONING_FINALIZER], [names.CLAIM_PROTECTION]),
        ("", "a record", "no record at all"),
        ({}, {names.STORAGE_PROVISIONER: DRIVER}, {names.BIND_COMPLETED: "yes"}),
        ("Pending", "Bound", "Lost"),
    )
)
VOLUMES = list(
    product(
        ("Pending", "Available", "Bound", "Released", "Failed"),
        (None, DYING),
        (None, OURS, [names.VOLUME_PROTECTION], [*OURS, names.VOLUME_PROTECTION]),
        (None, DRIVER, "another.example.com"),
        ("Delete", "Retain", "Recycle"),
        (None, SCRUBBED),
        (True, False),
    )
)


def cluster(*objects: Claim | Volume) -> ClusterState:
    return state_with(*objects, storage_class("fast", DRIVER), drivers=(disk(),), binder=False)


def judged(decide: Any, key: str) -> bool:
    """Whether the predicate lets a pass begin. Where it does not, there is nothing to decide."""
    if decide.may_act(key):
        return True
    action = decide(key, LiveReads())
    assert isinstance(action, Settled)
    assert not action.events
    return False


def test_every_claim_beside_another_binder_that_is_not_settled_gets_its_pass() -> None:
    refused = 0
    for pointer, dying, finalizers, record, notes, phase in CLAIMS:
        item = claim(
            storageClassName="fast",
            volumeName=pointer,
            deletionTimestamp=dying,
            finalizers=finalizers,
            annotations=notes,
            status={"phase": phase},
        )
        made = cluster(item, *([volume("v", claim=item)] if pointer else []))
        if record:
            intent = ClaimIntent(v=INTENT_VERSION, driver=DRIVER)
            text = made.sealed(item, intent) if record == "a record" else record
            item = claim(
                storageClassName="fast",
                volumeName=pointer,
                deletionTimestamp=dying,
                finalizers=finalizers,
                annotations={**notes, names.INTENT: text},
                status={"phase": phase},
                resourceVersion="2",
            )
            made.claims.observe(item)
        refused += not judged(ClaimReconciler(made, lambda _key: None), item.key)
    assert refused > len(CLAIMS) // 10


def test_every_volume_beside_another_binder_that_is_not_settled_gets_its_pass() -> None:
    refused = 0
    for phase, dying, finalizers, maker, policy, record, bound in VOLUMES:
        annotations = {names.PROVISIONED_BY: maker, names.INTENT: record}
        item = volume(
            "v",
            claim=claim() if bound else None,
            deletionTimestamp=dying,
            finalizers=finalizers,
            annotations={name: text for name, text in annotations.items() if text},
            persistentVolumeReclaimPolicy=policy,
            status={"phase": phase},
        )
        refused += not judged(VolumeReconciler(cluster(item)), "v")
    assert refused >= len(VOLUMES) // 12


@pytest.mark.parametrize("binder", [True, False])
def test_a_claim_that_is_gone_gets_no_pass(binder: bool) -> None:
    made = state_with(drivers=(disk(),), binder=binder)
    assert not judged(ClaimReconciler(made, lambda _key: None), "default/c")


def test_a_binder_decides_about_every_claim_and_volume_that_exists() -> None:
    item = claim(volumeName="v", status={"phase": "Bound"}, annotations={names.BIND_COMPLETED: "yes"})
    made = state_with(item, volume("v", claim=item, status={"phase": "Bound"}))
    assert ClaimReconciler(made, lambda _key: None).may_act(item.key)
    assert VolumeReconciler(made).may_act("v")
