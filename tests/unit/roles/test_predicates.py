"""What no pass is spent on: the predicates refuse nothing about which there is something to decide."""

from __future__ import annotations

from itertools import product

import pytest

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import DRIVER, StateOfTest, disk, state_with
from volplane.controller.actions import Decide, LiveReads, Predicate, Settled, Wait
from volplane.controller.workqueue import LateQueue
from volplane.kube import names
from volplane.kube.objects import Claim, Volume
from volplane.protection.finalizers import Protection
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


def cluster(*objects: Claim | Volume) -> StateOfTest:
    return state_with(*objects, storage_class("fast", DRIVER), drivers=(disk(),), binder=False)


def judged(may_act: Predicate, decide: Decide, key: str) -> bool:
    """Whether the predicate lets a pass begin. Where it does not, there is nothing to decide."""
    if may_act(key):
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
        refused += not judged(made.decisions.claim_may_act, made.decisions.decide_claim, item.key)
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
        decided = cluster(item).decisions
        refused += not judged(decided.volume_may_act, decided.decide_volume, "v")
    assert refused >= len(VOLUMES) // 12


@pytest.mark.parametrize("binder", [True, False])
def test_a_claim_that_is_gone_gets_no_pass(binder: bool) -> None:
    made = state_with(drivers=(disk(),), binder=binder)
    assert not judged(made.decisions.claim_may_act, made.decisions.decide_claim, "default/c")


BOUND_VOLUMES = list(
    product(
        ("Pending", "Bound", "Released"),
        (None, DYING),
        (None, OURS, [names.IN_TREE_FINALIZER]),
        (None, DRIVER, "kubernetes.io/aws-ebs"),
        ("Delete", "Retain"),
        (None, SCRUBBED),
        ("", "v", "another"),
        (None, DYING),
        ("Filesystem", "Block"),
        ("uid-c", "another"),
    )
)


def test_every_volume_of_a_binder_that_does_not_rest_with_its_claim_gets_its_pass() -> None:
    refused = 0
    for phase, dying, finalizers, maker, policy, record, pointer, claim_dying, mode, uid in BOUND_VOLUMES:
        annotations = {names.PROVISIONED_BY: maker, names.INTENT: record}
        pair = claim(volumeName=pointer or None, deletionTimestamp=claim_dying, volumeMode="Filesystem")
        item = volume(
            "v",
            claim=pair,
            deletionTimestamp=dying,
            finalizers=finalizers,
            annotations={name: text for name, text in annotations.items() if text},
            persistentVolumeReclaimPolicy=policy,
            volumeMode=mode,
            status={"phase": phase},
        )
        item.spec.claim_ref.uid = uid
        made = state_with(item, pair, drivers=(disk(),))
        if made.decisions.volume_may_act("v"):
            continue
        refused += 1
        match made.decisions.decide_volume("v", LiveReads()):
            case Settled(events=()):
                pass
            case Wait(reason="claim default/c is being bound to it", seconds=None, events=()):
                pass  # The claim's side goes on, and wakes it.
            case action:
                pytest.fail(f"{action} is left to be done about {item}")
    assert refused > len(BOUND_VOLUMES) // 100


def test_a_volume_whose_claim_is_gone_or_unknown_gets_its_pass() -> None:
    item = volume("v", claim=claim(), status={"phase": "Bound"})
    assert state_with(item).decisions.volume_may_act("v")


def test_a_volume_that_its_reclaimer_lets_go_gets_no_pass_of_the_protection() -> None:
    made = {"finalizers": [*OURS, names.VOLUME_PROTECTION], "annotations": {names.PROVISIONED_BY: DRIVER}}
    dying, alive = (volume("v", deletionTimestamp=time, status={"phase": "Released"}, **made) for time in (DYING, None))

    def may_act(*objects: Volume, reclaims: bool) -> bool:
        state = state_with(*objects, drivers=(disk(),))
        protection = Protection(cluster=state, claims=LateQueue(), volumes=LateQueue(), reclaims=reclaims)
        return protection.volume_may_act("v")

    assert not may_act(dying, reclaims=True)
    assert may_act(dying, reclaims=False)
    assert may_act(alive, reclaims=True)
    assert not may_act(reclaims=False)
