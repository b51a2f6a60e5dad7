"""`kubernetes.io/pv-protection`: the cases of pv_protection_controller_test.go of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from unit.binding.objects import claim, volume
from unit.deciding import DRIVER, disk, state_with
from volplane.controller.actions import LiveReads, Patch, Settled, Wait
from volplane.controller.workqueue import LateQueue
from volplane.kube.kinds import VOLUMES
from volplane.kube.names import PROVISIONED_BY, RECLAIM_FINALIZER
from volplane.kube.names import VOLUME_PROTECTION as GUARD
from volplane.kube.objects import Claim, Volume
from volplane.protection.finalizers import Protection

DYING = "2026-01-01T00:00:00Z"
FOREIGN = "example.com/hold"


def decided(item: Volume | None, of: Claim | None = None, *, reclaims: bool = False) -> Any:
    cluster = state_with(*(each for each in (item, of) if each is not None), drivers=(disk(),))
    protection = Protection(cluster=cluster, claims=LateQueue(), volumes=LateQueue(), reclaims=reclaims)
    return protection.decide_volume("v", LiveReads())


def left(action: Any) -> list[str]:
    assert isinstance(action, Patch), action
    assert (action.kind, action.target.name, action.subresource) == (VOLUMES, "v", "")
    return action.body["metadata"]["finalizers"] or []


def test_a_living_volume_gets_the_finalizer_once() -> None:
    assert left(decided(volume())) == [GUARD]
    assert left(decided(volume(finalizers=[FOREIGN]))) == [FOREIGN, GUARD]
    assert decided(volume(finalizers=[GUARD])) == Settled()


@pytest.mark.parametrize("phase", ["", "Pending", "Available", "Released", "Failed"])
def test_a_dying_volume_that_is_not_bound_is_let_go_and_foreign_finalizers_stay(phase: str) -> None:
    item = volume(finalizers=[GUARD, FOREIGN], deletionTimestamp=DYING, status={"phase": phase})
    assert left(decided(item)) == [FOREIGN]


def test_a_dying_volume_stays_while_it_is_bound() -> None:
    item = volume(finalizers=[GUARD], deletionTimestamp=DYING, status={"phase": "Bound"})
    assert decided(item) == Wait(reason="bound to a claim")


def test_a_dying_volume_whose_reclaimer_removes_both_finalizers_is_left_to_it() -> None:
    made = {"annotations": {PROVISIONED_BY: DRIVER}, "finalizers": [GUARD, RECLAIM_FINALIZER]}
    item = volume(deletionTimestamp=DYING, status={"phase": "Released"}, **made)
    assert decided(item, reclaims=True) == Wait(reason="its asset is being deleted")
    assert left(decided(volume(), reclaims=True)) == [GUARD]


def test_a_dying_volume_whose_claim_is_gone_is_let_go() -> None:
    ref = {"namespace": "default", "name": "c", "uid": "u"}
    item = volume(finalizers=[GUARD], deletionTimestamp=DYING, status={"phase": "Released"}, claimRef=ref)
    assert left(decided(item)) == []


@pytest.mark.parametrize(
    ("uid", "volume_name", "stays"), [("u", "v", True), ("u", "", False), ("u", "w", False), ("newer", "v", False)]
)
def test_a_dying_volume_stays_while_it_and_its_claim_name_each_other_before_any_phase_says_so(
    uid: str, volume_name: str, stays: bool
) -> None:
    """As a claim from a backup names its volume, and is bound again."""
    ref = {"namespace": "default", "name": "c", "uid": "u"}
    item = volume(finalizers=[GUARD], deletionTimestamp=DYING, status={"phase": "Pending"}, claimRef=ref)
    action = decided(item, claim("c", uid=uid, volumeName=volume_name))
    assert (action == Wait(reason="bound to a claim")) == stays


def test_a_dying_volume_without_the_finalizer_and_one_that_is_gone_need_nothing() -> None:
    assert decided(volume(finalizers=[FOREIGN], deletionTimestamp=DYING)) == Settled()
    assert decided(None) == Settled()
