"""Whose an intent is: the term that is written on a claim, and who may go on with what another term began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, storage_class
from unit.deciding import DRIVER, GIB, decide_claim, disk, read, state_with, told
from unit.provision.test_decide import HELD, INTENT
from volplane.controller.actions import LiveReads, Patch, Read, Run, Wait
from volplane.kube.kinds import LEASES
from volplane.kube.objects import Lease
from volplane.state.cluster_state import ClusterState
from volplane.state.records import INTENT_VERSION, ClaimIntent

OURS, FORMER = "3/us/lease-b", "7/them/lease-a"
LEASE = "volplane-system/volplane"


def leading(
    term: str = FORMER,
    *,
    fence: str = OURS,
    elected: str = LEASE,
    finalizers: Sequence[str] = (HELD,),
    **more: Any,
) -> ClusterState:
    """The state of a process that leads, as far as it knows, with a claim for which this term has begun something."""
    made = state_with(storage_class(), **{"drivers": (disk(),), "lease": elected, **more})
    made.fence = lambda: fence
    sealed = made.sealer.seal("uid-c", ClaimIntent(v=INTENT_VERSION, driver=DRIVER, segment={}, fence=term))
    made.claims.observe(claim("c", storageClassName="fast", annotations={INTENT: sealed}, finalizers=finalizers))
    return made


def lease(transitions: int = 3, holder: str = "us", uid: str = "lease-b") -> Lease:
    spec = {"holderIdentity": holder, "leaseTransitions": transitions}
    meta = {"name": "volplane", "namespace": "volplane-system", "uid": uid, "resourceVersion": "9"}
    return msgspec.convert({"metadata": meta, "spec": spec}, Lease)


def decided(made: ClusterState, reads: LiveReads | None = None) -> Any:
    return decide_claim("default/c", made, reads or LiveReads())


def written(made: ClusterState, step: Any) -> ClaimIntent:
    assert isinstance(step, Patch), step
    intent = made.sealer.open("uid-c", step.body["metadata"]["annotations"][INTENT])
    assert intent is not None
    return intent


@pytest.mark.parametrize("binder", [True, False])
def test_before_a_claim_is_taken_over_our_lease_is_read_live(binder: bool) -> None:
    made = leading(binder=binder)
    assert decided(made) == Read(LEASES, LEASE, why="is this process still the leader?")


def test_a_leader_takes_a_claim_over_whatever_term_began_it() -> None:
    """The Lease was made anew: its count of leaders is lower than the one that began the asset."""
    made = leading()
    taken = written(made, decided(made, read(LEASES, LEASE, lease())))
    assert taken == ClaimIntent(v=INTENT_VERSION, driver=DRIVER, segment={}, fence=OURS, size=GIB)


@pytest.mark.parametrize("found", [None, lease(holder="them"), lease(transitions=4), lease(uid="lease-c")])
def test_who_does_not_lead_any_more_writes_nothing(found: Lease | None) -> None:
    step = decided(leading(), read(LEASES, LEASE, found))
    assert step == Wait(reason="another process leads now", seconds=1.0)


def test_without_election_what_an_elected_leader_began_is_taken_over() -> None:
    made = leading(fence="", elected="")
    assert written(made, decided(made)).fence == ""


def test_a_leader_puts_the_finalizer_back_that_a_tenant_has_removed() -> None:
    """Found by the simulation: without it nobody took the intent over, and what another driver had made stayed."""
    made = leading(finalizers=("a/b",))
    step = decided(made, read(LEASES, LEASE, lease()))
    assert written(made, step).fence == OURS
    assert step.body["metadata"]["finalizers"] == ["a/b", HELD]


@pytest.mark.parametrize(("fence", "reads_first"), [(FORMER, True), (OURS, False)])
def test_who_began_restores_over_the_record_of_another_term_only_while_it_leads(fence: str, reads_first: bool) -> None:
    made = leading(fence, finalizers=("a/b",))
    made.progress.claims.track("uid-c").provision_began()
    assert isinstance(decided(made), Read if reads_first else Patch)
    step = decided(made, read(LEASES, LEASE, lease(holder="them")))
    assert step == Wait(reason="another process leads now", seconds=1.0) or not reads_first
    assert written(made, decided(made, read(LEASES, LEASE, lease()))).fence == OURS


def test_an_own_intent_goes_on_without_a_look_at_the_lease() -> None:
    assert isinstance(decided(leading(OURS)), Run)


def test_an_intent_of_a_driver_that_is_not_configured_here_is_another_process_s() -> None:
    step = decided(leading(drivers=()))
    assert isinstance(step, Patch)
    assert INTENT not in step.body["metadata"]["annotations"]


def test_the_first_record_names_the_term() -> None:
    made = leading(OURS)
    made.claims.observe(claim("c", storageClassName="fast", resourceVersion="2"))
    assert written(made, decided(made)).fence == OURS


# --- two processes with one key, of which one was not elected ----------------------------------------------------


def taken_from_us(made: ClusterState, times: int, *, apart: float = 0.0) -> None:
    """Let another process write over our record so often, `apart` seconds after it."""
    now = [1000.0]
    made.monotonic = lambda: now[0]
    made.claims.subscribe(made.record_conflicts.claim_changed)
    version = 10
    for _ in range(times):
        for term in (OURS, FORMER):
            now[0] += apart
            sealed = made.sealer.seal("uid-c", ClaimIntent(v=INTENT_VERSION, driver=DRIVER, segment={}, fence=term))
            fields: Any = {"annotations": {INTENT: sealed}, "resourceVersion": str(version), "finalizers": [HELD]}
            made.claims.observe(claim("c", storageClassName="fast", **fields))
            version += 1


def test_a_record_that_another_process_takes_once_is_taken_back_at_once() -> None:
    made = leading()
    taken_from_us(made, 1)
    assert written(made, decided(made, read(LEASES, LEASE, lease()))).fence == OURS


@pytest.mark.parametrize(("times", "seconds"), [(2, 1.0), (3, 2.0), (6, 16.0), (20, 300.0)])
def test_a_record_that_does_not_stay_is_taken_back_ever_later(times: int, seconds: float) -> None:
    made = leading()
    taken_from_us(made, times)
    step = decided(made, read(LEASES, LEASE, lease()))
    assert isinstance(step, Wait), step
    assert step.seconds == seconds
    assert told(step)[1] == "IntentOverwritten"


def test_a_record_that_stood_for_a_while_counts_as_one_that_stays() -> None:
    made = leading()
    taken_from_us(made, 5, apart=31.0)
    assert written(made, decided(made, read(LEASES, LEASE, lease()))).fence == OURS


def test_nobody_waits_for_a_conflict_that_has_ended() -> None:
    made = leading()
    taken_from_us(made, 20)
    made.claims.observe(claim("c", storageClassName="fast", resourceVersion="100"))
    assert written(made, decided(made)).fence == OURS
