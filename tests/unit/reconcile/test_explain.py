"""What `volplane explain` says of a claim: it follows from the decision that would be taken, and takes none."""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import disk, state_with
from volplane.controller.actions import Run
from volplane.kube.objects import Claim, KubeObject
from volplane.operations import OperationState, Phase
from volplane.reconcile.explain import Explanation, explain_claim

DRIVER = "disk.example.com"
KEY = "default/c"
BOUND = {"phase": "Bound"}
MARKED = {"pv.kubernetes.io/bind-completed": "yes"}


def explained(*objects: KubeObject, operations: tuple[OperationState, ...] = (), **more: Any) -> Explanation:
    return explain_claim(KEY, state_with(*objects, **more), operations, now=100.0)


def fast(**fields: Any) -> Claim:
    return claim(storageClassName="fast", **fields)


def operation(uid: str, **fields: Any) -> OperationState:
    run = Run(verb="provision", key=KEY, uid=uid, driver=DRIVER, asset="a")
    return OperationState.of(run, **{"failures": 0, "error": "", "since": 97.5, **fields})


def test_a_claim_that_does_not_exist() -> None:
    told = explained()
    assert told.situation == (f"there is no claim {KEY}",)
    assert told.next == ("nothing, until somebody creates it",)


def test_a_class_that_does_not_exist_is_named_with_what_would_help() -> None:
    told = explained(fast())
    assert "its class fast does not exist" in told.situation
    (then,) = told.next
    assert then == 'nothing until something changes: storageclass.storage.k8s.io "fast" not found'


def test_the_next_write_is_told_and_not_made() -> None:
    told = explained(claim(), volume())
    assert told.next[0].startswith("a write to PersistentVolume v: ")


def test_a_class_whose_driver_is_served_leads_to_the_intent() -> None:
    told = explained(fast(), storage_class(provisioner=DRIVER), drivers=(disk(DRIVER),))
    assert f"its class fast binds Immediate and is provisioned by {DRIVER}, which is served here" in told.situation
    assert told.next == (f"a write to PersistentVolumeClaim {KEY}: declare the intent to provision",)


def test_a_driver_that_is_broken_says_why() -> None:
    told = explained(fast(), storage_class(provisioner=DRIVER), broken={DRIVER: "the disk is gone"})
    assert any("which is not usable here: the disk is gone" in sentence for sentence in told.situation)


@pytest.mark.parametrize(
    ("made", "then"),
    [
        (
            fast(),
            f"nothing here: a volume for it is {DRIVER}'s to make, and the stock kube-controller-manager's to bind",
        ),
        (claim(), "nothing here: binding is the stock kube-controller-manager's work"),
    ],
    ids=["another's class", "static"],
)
def test_beside_a_stock_binder_it_says_whose_turn_it_is(made: Claim, then: str) -> None:
    told = explained(made, storage_class(provisioner=DRIVER), binder=False)
    assert told.next == (then,)


def test_a_bound_claim_is_as_it_should_be() -> None:
    status = {**BOUND, "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    bound = claim(volumeName="v", annotations=MARKED, status=status)
    reference = {"namespace": "default", "name": "c", "uid": bound.uid, "kind": "PersistentVolumeClaim"}
    told = explained(bound, volume(claimRef=reference, status=BOUND))
    assert "it and volume v (Bound) point at each other" in told.situation
    assert told.next == ("nothing: everything is as it should be",)


def test_a_running_operation_is_told_with_its_age_and_what_follows() -> None:
    made = fast()
    running = operation(made.uid, phase=Phase.RUNNING, next_try=None)
    told = explained(made, storage_class(provisioner=DRIVER), operations=(running,))
    assert told.tried == (f"{running.name} is running for 2.5 s on driver {DRIVER}",)
    assert told.next == (f"{running.name} ends, then this is decided anew",)


def test_a_failed_operation_is_told_with_its_error_and_the_time_of_the_next_try() -> None:
    made = fast()
    failed = operation(made.uid, phase=Phase.WAITING, failures=3, error="disk full", next_try=108.0)
    told = explained(made, storage_class(provisioner=DRIVER), operations=(failed,))
    assert told.tried == (f"{failed.name} failed 3 times, the last with: disk full",)
    assert told.next == (f"{failed.name} is tried again in 8.0 s",)
