"""The next step for a volume: as syncVolume of pv_controller.go, but for the listed differences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from unit.deciding import decide_volume, disk, read, state_with
from volplane.binding.decide import is_promised
from volplane.controller.actions import Delete, LiveReads, Patch, Read, Run, Settled, Wait
from volplane.kube.kinds import CLAIMS, LEASES, VOLUMES
from volplane.kube.objects import KubeObject, Lease, Volume
from volplane.state.naming import asset_key
from volplane.state.progress import Deleted

DYING = "2026-01-01T00:00:00Z"
CHOSEN = {"pv.kubernetes.io/bound-by-controller": "yes"}
MADE = {"pv.kubernetes.io/provisioned-by": "disk.example.com"}
GONE = claim("gone")
DISK = disk()


def decided(item: Volume, *others: KubeObject, reads: LiveReads | None = None, **more: Any) -> Any:
    return decide_volume(item.name, state_with(item, *others, **more), reads or LiveReads())


def without_claim(item: Volume, **more: Any) -> Any:
    """The same once a live read has shown that the claim is gone."""
    return decided(item, reads=read(CLAIMS, "default/gone"), **more)


def phase(action: Any) -> str:
    assert isinstance(action, Patch), action
    assert action.subresource == "status"
    return str(action.body["status"]["phase"])


def test_of_two_processes_that_lead_at_once_the_one_with_the_lease_says_why_a_volume_failed() -> None:
    """They know different reasons, and would write over each other's without end."""
    lease = "volplane-system/volplane"
    held: Any = {"finalizers": ["volplane.dev/reclaim"], "deletionTimestamp": DYING}
    status = {"phase": "Failed", "message": "the other process says so"}
    item = volume(claim=GONE, status=status, persistentVolumeReclaimPolicy="Delete", **held)
    made = state_with(item, drivers=(DISK,), lease=lease)
    made.progress.volumes.track(item.uid).unreported_failure = "the disk is busy"
    made.fence = lambda: "1/us/uid-lease"
    reads = read(CLAIMS, "default/gone")
    assert decide_volume(item.name, made, reads) == Read(LEASES, lease, why="is this process still the leader?")
    for holder in ("them", "us"):
        spec = {"holderIdentity": holder, "leaseTransitions": 1}
        reads.put(
            LEASES, lease, msgspec.convert({"metadata": {"name": "volplane", "uid": "uid-lease"}, "spec": spec}, Lease)
        )
        assert isinstance(decide_volume(item.name, made, reads), Patch if holder == "us" else Wait)


def test_a_volume_that_does_not_exist_needs_nothing() -> None:
    assert decide_volume("v", state_with(), LiveReads()) == Settled()


@pytest.mark.parametrize("before", ["", "Pending", "Bound", "Released", "Failed"])
@pytest.mark.parametrize("spec", [{}, {"reserved": "nobody"}])
def test_without_reference_or_with_one_without_uid_it_is_available(before: str, spec: Any) -> None:
    assert phase(decided(volume(status={"phase": before}, **spec))) == "Available"


def test_an_available_volume_stays_so_without_a_write() -> None:
    assert decided(volume()) == Settled()


def test_the_phase_is_left_to_the_claim_that_is_about_to_be_bound() -> None:
    """Item 21.3: both sides would write it, and one would lose."""
    action = decided(volume(reserved="c", status={"phase": "Pending"}), claim())
    assert isinstance(action, Wait)
    restored = claim(volumeName="v", annotations={"pv.kubernetes.io/bind-completed": "yes"})
    assert isinstance(decided(volume(reserved="c", status={"phase": "Pending"}), restored), Wait)


def test_a_dying_claim_will_not_be_bound() -> None:
    action = decided(volume(reserved="c", status={"phase": "Pending"}), claim(deletionTimestamp=DYING))
    assert phase(action) == "Available"


# --- the claim exists --------------------------------------------------------------------------------------------


def test_while_the_claim_points_nowhere_yet_the_claim_goes_on() -> None:
    assert isinstance(decided(volume(claim=claim()), claim()), Wait)


def test_two_that_can_never_match_by_mode_are_told_so_on_both_sides() -> None:
    waits = decided(volume(claim=claim(), volumeMode="Block"), claim())
    assert [(n.about.name, n.type, n.reason) for n in waits.events] == [
        ("v", "Warning", "VolumeMismatch"),
        ("c", "Warning", "VolumeMismatch"),
    ]


def test_a_pair_that_points_at_each_other_is_bound() -> None:
    assert phase(decided(volume(claim=claim()), claim(volumeName="v"))) == "Bound"
    assert decided(volume(claim=claim(), status={"phase": "Bound"}), claim(volumeName="v")) == Settled()


def test_a_surplus_volume_that_was_chosen_loses_its_reference_and_a_reserved_one_its_uid() -> None:
    elsewhere = claim(volumeName="other")
    chosen = decided(volume(claim=claim(), annotations=CHOSEN), elsewhere)
    assert chosen.body["spec"] == {"claimRef": None}
    reserved = decided(volume(claim=claim()), elsewhere)
    assert reserved.body["spec"]["claimRef"]["uid"] is None


def test_a_surplus_volume_that_was_made_for_the_claim_is_released() -> None:
    surplus = volume(claim=claim(), annotations=MADE, persistentVolumeReclaimPolicy="Delete")
    assert phase(decided(surplus, claim(volumeName="other"))) == "Released"


def test_a_surplus_volume_that_a_person_made_is_offered_again_though_its_policy_is_delete() -> None:
    surplus = volume(claim=claim(), persistentVolumeReclaimPolicy="Delete")
    action = decided(surplus, claim(volumeName="other"), drivers=(DISK,))
    assert isinstance(action, Patch)
    assert action.body["spec"]["claimRef"]["uid"] is None


def test_a_volume_chosen_for_a_claim_that_is_deleted_before_the_bind_is_taken_back() -> None:
    """Item 21.6: it was never used, so its policy has no say."""
    item = volume(claim=claim(), annotations=CHOSEN, status={"phase": "Bound"}, persistentVolumeReclaimPolicy="Delete")
    action = decided(item, claim(deletionTimestamp=DYING))
    assert action.body["spec"] == {"claimRef": None}


def test_until_then_the_claim_is_kept() -> None:
    """Item 21.6."""
    dying = claim(deletionTimestamp=DYING)
    assert is_promised(dying, state_with(dying, volume(claim=claim())))
    assert not is_promised(dying, state_with(dying, volume(reserved="c")))
    assert not is_promised(dying, state_with(dying, volume(claim=claim(), annotations=MADE)))
    bound = claim(deletionTimestamp=DYING, volumeName="v")
    assert not is_promised(bound, state_with(bound, volume(claim=claim())))


def test_the_uid_finds_the_claim_behind_a_wrong_name() -> None:
    """Item 21.8."""
    item = volume(claimRef={"namespace": "default", "name": "misspelt", "uid": "uid-c"}, status={"phase": "Bound"})
    assert decided(item, claim(volumeName="v")) == Settled()


# --- the claim seems to be gone ----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["Available", "Bound", "Released", "Failed"])
@pytest.mark.parametrize("policy", ["Delete", "Recycle"])
def test_before_anything_is_destroyed_the_claim_is_read_live(before: str, policy: str) -> None:
    """Item 21.5: whatever the phase says, and though the cache knows of no claim."""
    action = decided(volume(claim=GONE, status={"phase": before}, persistentVolumeReclaimPolicy=policy))
    assert action == Read(CLAIMS, "default/gone", action.why)


def test_the_first_release_is_confirmed_live_under_every_policy_and_a_later_look_is_not() -> None:
    """Item 20.7: a retained volume costs no read each time it is looked at."""
    assert isinstance(decided(volume(claim=GONE, status={"phase": "Bound"})), Read)
    assert decided(volume(claim=GONE, status={"phase": "Released"})) == Settled()
    namesake = claim("gone", uid="another")
    assert isinstance(decided(volume(claim=GONE, status={"phase": "Bound"}), namesake), Read)
    assert decided(volume(claim=GONE, status={"phase": "Released"}), namesake) == Settled()


def test_what_looks_at_the_claim_itself_or_finds_nothing_left_to_lose_is_preceded_by_no_read() -> None:
    """An operation reads the claim live before its hook; when it is over, the asset is gone."""
    dying = released(
        persistentVolumeReclaimPolicy="Delete", finalizers=["volplane.dev/reclaim"], deletionTimestamp=DYING
    )
    state = state_with(dying, drivers=(DISK,))
    assert isinstance(decide_volume("v", state, LiveReads()), Run)
    state.progress.volumes.track(dying.uid).succeeded(Deleted())
    assert decide_volume("v", state, LiveReads()).body == {"metadata": {"finalizers": None}}


def test_what_the_server_has_said_of_the_claim_is_not_asked_again() -> None:
    """Its uid is never given again. That it left a selection, or is not in a list, is no such answer."""
    item = volume(claim=GONE, status={"phase": "Bound"}, persistentVolumeReclaimPolicy="Delete")
    watched = state_with(item, GONE)
    watched.claims.observe_deleted(GONE.key, GONE.uid, 99, may_return=True)
    assert isinstance(decide_volume("v", watched, LiveReads()), Read)
    answered = state_with(item, GONE)
    answered.claims.observe_deleted(GONE.key, GONE.uid)
    assert phase(decide_volume("v", answered, LiveReads())) == "Released"
    answered.claims.clear()  # the server was restored from a backup
    assert isinstance(decide_volume("v", answered, LiveReads()), Read)


@pytest.mark.parametrize("policy", ["Retain", "Delete", "Recycle"])
def test_a_claim_that_the_server_shows_is_not_gone_whatever_newer_one_a_cache_holds(policy: str) -> None:
    """Found by the simulation: the server was restored from a backup made before the claim was made anew."""
    item = volume(claim=GONE, status={"phase": "Bound"}, persistentVolumeReclaimPolicy=policy)
    namesake = claim("gone", uid="another", resourceVersion="90")
    step = decided(item, namesake, reads=read(CLAIMS, "default/gone", GONE), drivers=(DISK,))
    assert step == Wait(reason="claim default/gone is there, unlike in the cache", seconds=1.0)


def test_a_claim_that_the_server_shows_is_not_gone_though_no_cache_holds_one() -> None:
    item = volume(claim=GONE, status={"phase": "Bound"})
    step = decided(item, reads=read(CLAIMS, "default/gone", GONE), drivers=(DISK,))
    assert step == Wait(reason="claim default/gone is there, unlike in the cache", seconds=1.0)


@pytest.mark.parametrize("policy", ["Retain", "Delete", "Recycle"])
def test_a_volume_whose_claim_is_gone_is_released_first(policy: str) -> None:
    item = volume(claim=GONE, status={"phase": "Bound"}, persistentVolumeReclaimPolicy=policy)
    assert phase(without_claim(item, drivers=(DISK,))) == "Released"


@pytest.mark.parametrize("uid", ["", "uid-gone"])
def test_a_reference_that_matches_no_claim_for_want_of_a_namespace_destroys_nothing(uid: str) -> None:
    """Item 22.7."""
    item = volume(claimRef={"name": "gone", "uid": uid}, persistentVolumeReclaimPolicy="Delete")
    waits = decided(item, drivers=(DISK,))
    assert isinstance(waits, Wait)
    assert waits.events[0].reason == "VolumeMismatch"


# --- reclaim -----------------------------------------------------------------------------------------------------


def released(**fields: Any) -> Volume:
    return volume(claim=GONE, **{"status": {"phase": "Released"}, **fields})


def test_retain_keeps_everything() -> None:
    assert without_claim(released(), drivers=(DISK,)) == Settled()


def test_a_migrated_volume_is_left_to_its_csi_driver() -> None:
    marks = {"pv.kubernetes.io/migrated-to": "pd.csi.storage.gke.io"}
    marks["pv.kubernetes.io/provisioned-by"] = "kubernetes.io/gce-pd"
    item = released(annotations=marks, persistentVolumeReclaimPolicy="Delete")
    assert without_claim(item, drivers=(DISK,)) == Settled()


def test_an_unknown_policy_is_a_failure() -> None:
    action = without_claim(released(persistentVolumeReclaimPolicy="Burn"))
    assert phase(action) == "Failed"
    assert action.events[0].reason == "VolumeUnknownReclaimPolicy"


def test_delete_goes_by_finalizer_object_hook_and_finalizer() -> None:
    """From the second step on no binder can use the volume."""
    item = released(persistentVolumeReclaimPolicy="Delete")
    held = without_claim(item, drivers=(DISK,))
    assert held.body == {"metadata": {"finalizers": ["volplane.dev/reclaim"]}}
    finalizers = ["volplane.dev/reclaim"]
    item = released(persistentVolumeReclaimPolicy="Delete", finalizers=finalizers)
    gone = without_claim(item, drivers=(DISK,))
    assert isinstance(gone, Delete)
    assert gone.exact
    item = released(persistentVolumeReclaimPolicy="Delete", finalizers=finalizers, deletionTimestamp=DYING)
    run = without_claim(item, drivers=(DISK,))
    assert run == Run(
        verb="delete",
        key="v",
        uid="uid-v",
        driver=DISK.name,
        asset=asset_key(item),
        group=f"delete {item.spec.storage_class_name}",
    )
    after = state_with(item, drivers=(DISK,))
    after.progress.volumes.track(item.uid).succeeded(Deleted())
    freed = decide_volume("v", after, read(CLAIMS, "default/gone"))
    assert freed.body == {"metadata": {"finalizers": None}}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "no volume plugin matched"),
        ({"annotations": {"pv.kubernetes.io/provisioned-by": "kubernetes.io/nobody"}}, "no volume plugin matched"),
    ],
)
def test_nobody_to_delete_it_is_a_failure_that_names_the_volume(fields: Any, why: str) -> None:
    item = released(persistentVolumeReclaimPolicy="Delete", finalizers=["kubernetes.io/pv-controller"], **fields)
    action = without_claim(item)
    assert phase(action) == "Failed"
    assert action.body["status"]["message"] == f'error getting deleter volume plugin for volume "v": {why}'
    assert action.events[0].reason == "VolumeFailedDelete"


def test_beside_a_binder_what_it_released_is_deleted_though_its_claim_lives_with_another_volume() -> None:
    """The reference is read live before that, as it is where the claim is gone."""
    taken = claim("gone", volumeName="another")
    item = released(persistentVolumeReclaimPolicy="Delete", annotations=MADE, finalizers=["volplane.dev/reclaim"])
    world = state_with(item, taken, drivers=(DISK,), binder=False)
    assert decide_volume("v", world, LiveReads()) == Read(CLAIMS, "default/gone", why="is the claim really gone?")
    assert isinstance(decide_volume("v", world, read(CLAIMS, "default/gone", taken)), Delete)


@pytest.mark.parametrize("reference", [{}, {"reserved": "c"}], ids=["nobody", "a name"])
def test_beside_a_binder_a_deleted_volume_that_no_claim_had_is_kept_for_its_neighbour_at_once(reference: Any) -> None:
    fields = {"annotations": MADE, "deletionTimestamp": DYING, "finalizers": ["volplane.dev/reclaim"]}
    item = volume(hostPath={"path": "/data"}, persistentVolumeReclaimPolicy="Delete", **fields, **reference)
    neighbour = volume("w", hostPath={"path": "/data/below"})
    waits = decided(item, neighbour, drivers=(DISK,), binder=False)
    assert isinstance(waits, Wait)
    assert 'volume "w"' in waits.events[0].message


@pytest.mark.parametrize(
    "fields",
    [
        {"annotations": {"pv.kubernetes.io/provisioned-by": "somebody.example.com"}},
        {"hostPath": None, "csi": {"driver": "x.example.com", "volumeHandle": "h"}},
    ],
)
def test_what_an_external_driver_deletes_is_left_to_it(fields: Any) -> None:
    waits = without_claim(released(persistentVolumeReclaimPolicy="Delete", **fields))
    assert isinstance(waits, Wait)
    assert waits.events == ()


def test_a_broken_driver_is_named() -> None:
    item = released(persistentVolumeReclaimPolicy="Delete", annotations=MADE, finalizers=["volplane.dev/reclaim"])
    action = without_claim(item, broken={"disk.example.com": "its root is not mounted"})
    assert "its root is not mounted" in action.body["status"]["message"]


def test_a_volume_deleted_by_a_person_goes_with_its_asset_if_we_made_it_and_without_if_not() -> None:
    made = released(persistentVolumeReclaimPolicy="Delete", annotations=MADE, deletionTimestamp=DYING)
    assert isinstance(without_claim(made, drivers=(DISK,)), Run)
    static = released(persistentVolumeReclaimPolicy="Delete", deletionTimestamp=DYING)
    assert without_claim(static, drivers=(DISK,)) == Settled()


def test_a_dying_volume_under_another_policy_is_let_go() -> None:
    item = released(annotations=MADE, deletionTimestamp=DYING, finalizers=["volplane.dev/reclaim"])
    assert without_claim(item, drivers=(DISK,)).body == {"metadata": {"finalizers": None}}
    assert without_claim(released(annotations=MADE, deletionTimestamp=DYING), drivers=(DISK,)) == Settled()


def test_nobody_deletes_while_the_reclaimer_is_switched_off() -> None:
    item = released(persistentVolumeReclaimPolicy="Delete")
    assert without_claim(item, drivers=(DISK,), reclaimer=False) == Settled()


def test_recycle_begins_with_an_intent_that_forbids_binding() -> None:
    action = without_claim(released(persistentVolumeReclaimPolicy="Recycle"), drivers=(DISK,))
    assert isinstance(action, Patch)
    assert action.kind is VOLUMES
    assert list(action.body["metadata"]["annotations"]) == ["volplane.dev/intent"]


def test_nobody_to_recycle_it_is_a_failure() -> None:
    action = without_claim(released(persistentVolumeReclaimPolicy="Recycle"))
    assert phase(action) == "Failed"
    assert action.body["status"]["message"] == "No recycler plugin found for the volume!"
    assert action.events[0].reason == "VolumeFailedRecycle"


def test_a_scrub_is_given_up_for_a_claim_only_after_a_live_read() -> None:
    """Found by the simulation: a leader whose cache was behind took back what another one had rightly begun."""
    bound = claim(volumeName="v", annotations={"pv.kubernetes.io/bind-completed": "yes"})
    intent = '{"v":1,"claim":"uid-c","pod":"p"}'
    item = volume(claim=bound, persistentVolumeReclaimPolicy="Recycle", annotations={"volplane.dev/intent": intent})
    asks = decided(item, bound, drivers=(DISK,))
    assert isinstance(asks, Read)
    assert (asks.kind, asks.key) == (CLAIMS, "default/c")
    action = decided(item, bound, drivers=(DISK,), reads=read(CLAIMS, "default/c"))
    assert action.body == {"metadata": {"annotations": {"volplane.dev/intent": None}}}
