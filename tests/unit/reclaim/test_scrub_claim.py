"""The claim by which a scrubber pod gets a disk: made, held by, given back, and removed where it is left over."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from unit.deciding import read
from unit.reclaim.scrubbing import BY_CLAIM, HELD, INTENT, OURS, SCRUB_CLAIM, dirty, noted, state, told
from volplane.controller.actions import Create, Delete, LiveReads, Patch, Read, Wait
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Volume
from volplane.reclaim.recycle import remove_strays
from volplane.reclaim.scrub_claim import claim_lost, give_back, held_for_scrub, hold
from volplane.reclaim.scrub_pod import pod_name
from volplane.state.cluster_state import ClusterState
from volplane.state.records import RecycleIntent, recycle_intent_of

DYING = "2026-01-01T00:00:00Z"
CSI = {"hostPath": None, "csi": {"driver": "x.example.com", "volumeHandle": "h"}}
LEFT = {"name": pod_name(volume()), "uid": "uid-scrub"}
BETA = {"volume.beta.kubernetes.io/storage-class": "beta"}
MARK, SEAL = "volplane.dev/scrub-volume-uid", "volplane.dev/scrub-seal"
FROM_GONE = {"namespace": "default", "name": "gone", "uid": "uid-gone", "resourceVersion": None}


def intent_of(item: Volume) -> RecycleIntent:
    intent = recycle_intent_of(item)
    assert intent is not None
    return intent


def held(item: Volume, cluster: ClusterState, reads: LiveReads | None = None) -> Any:
    return hold(item, intent_of(item), cluster, reads or LiveReads())


def given_back(item: Volume, cluster: ClusterState, reads: LiveReads | None = None) -> Any:
    return give_back(item, intent_of(item), cluster, reads or LiveReads())


def made(item: Volume | None = None, *, phase: str = "Bound", **changes: Any) -> Claim:
    """The claim that we make for this volume, as the server has it. changes: of its metadata, or `volumeName`."""
    item = item or dirty(CSI)
    action = held(item, state(), read(CLAIMS, SCRUB_CLAIM))
    assert isinstance(action, Create), action
    body = dict(action.body)
    if "volumeName" in changes:
        body["spec"] = {**body["spec"], "volumeName": changes.pop("volumeName")}
    body["metadata"] = {**body["metadata"], "uid": "uid-scrub", "resourceVersion": "1", **changes}
    return msgspec.convert({**body, "status": {"phase": phase}}, Claim)


HOLDING = dirty({**CSI, **HELD}, **BY_CLAIM, pod="uid-pod")
"""A disk that refers to the claim of its scrub."""


# --- making it, and holding the volume by it ----------------------------------------------------------------------


def test_a_claim_is_made_that_only_this_volume_satisfies_once_it_is_known_that_there_is_none() -> None:
    item = dirty(CSI)
    assert held(item, state()) == Read(CLAIMS, SCRUB_CLAIM, why="does a claim of this name exist?")
    action = held(item, state(), read(CLAIMS, SCRUB_CLAIM))
    assert isinstance(action, Create)
    assert action.kind is CLAIMS
    assert action.body["metadata"]["namespace"] == OURS
    assert action.body["metadata"]["annotations"].keys() == {MARK, SEAL}
    assert action.failure_event == told(item, "The claim that scrubs it cannot be created")


@pytest.mark.parametrize(
    ("fields", "asks_for"),
    [
        ({}, {}),
        (
            {
                "accessModes": ["ReadOnlyMany", "ReadWriteMany"],
                "size": "7Gi",
                "storageClassName": "fast",
                "volumeMode": "Block",
                "volumeAttributesClassName": "gold",
            },
            {
                "accessModes": ["ReadOnlyMany", "ReadWriteMany"],
                "resources": {"requests": {"storage": "7Gi"}},
                "storageClassName": "fast",
                "volumeMode": "Block",
                "volumeAttributesClassName": "gold",
            },
        ),
        ({"annotations": {**BETA, INTENT: "{}"}}, {"storageClassName": "beta"}),
        ({"accessModes": None, "capacity": None, "volumeMode": ""}, {"resources": {"requests": {"storage": "1"}}}),
    ],
)
def test_it_asks_for_what_the_volume_has(fields: dict[str, Any], asks_for: dict[str, Any]) -> None:
    item = dirty({**CSI, **fields})
    action = hold(item, intent_of(dirty(CSI)), state(), read(CLAIMS, SCRUB_CLAIM))
    assert isinstance(action, Create)
    assert action.body["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
        "volumeMode": "Filesystem",
        "volumeName": "v",
        **asks_for,
    }


def test_the_volume_is_given_to_the_claim_after_a_live_look_and_what_it_was_released_from_is_kept() -> None:
    item = dirty(CSI)
    cluster = state(item, made(phase="Pending"))
    assert held(item, cluster) == Read(VOLUMES, "v", why="is it still ours to scrub?")
    action = held(item, cluster, read(VOLUMES, "v", item))
    intent = noted(action)
    assert (intent.held_by, intent.released) == ("uid-scrub", "default/gone")
    assert action.body["spec"]["claimRef"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": OURS,
        "name": LEFT["name"],
        "uid": "uid-scrub",
        "resourceVersion": None,
    }


def test_a_volume_that_refers_to_nothing_is_given_to_it_too_and_refers_to_nothing_afterwards() -> None:
    item = dirty({**CSI, "claim": None})
    assert noted(held(item, state(item, made()), read(VOLUMES, "v", item))).released == ""
    holding = dirty({**CSI, **HELD}, held_by="uid-scrub")
    action = given_back(holding, state(holding), read(CLAIMS, SCRUB_CLAIM))
    assert isinstance(action, Patch)
    assert action.body["spec"] == {"claimRef": None}


@pytest.mark.parametrize(
    ("there", "waits"),
    [
        (made(), None),
        (made(phase="Pending"), f"the scrub's claim {SCRUB_CLAIM} is being bound"),
        (made(volumeName="other"), f"the scrub's claim {SCRUB_CLAIM} is being bound"),
        (made(deletionTimestamp=DYING), f"the scrub's claim {SCRUB_CLAIM} is going away"),
    ],
)
def test_a_volume_that_refers_to_it_waits_until_the_claim_is_bound_to_it(there: Claim, waits: str | None) -> None:
    assert held(HOLDING, state(HOLDING, there)) == (Wait(reason=waits) if waits else None)


@pytest.mark.parametrize("others", [(), (made(uid="uid-of-another"),)])
def test_a_volume_whose_claim_is_gone_refers_again_to_what_it_was_released_from(others: tuple[Claim, ...]) -> None:
    cluster = state(HOLDING, *others)
    assert held(HOLDING, cluster) == Read(CLAIMS, SCRUB_CLAIM, why="is the claim of the scrub really gone?")
    action = held(HOLDING, cluster, read(CLAIMS, SCRUB_CLAIM))
    assert action.body["spec"] == {"claimRef": FROM_GONE}
    intent = noted(action)
    assert (intent.held_by, intent.released, intent.pod) == ("", "", "")


def test_a_claim_of_the_name_that_is_going_away_is_waited_for_whoever_made_it() -> None:
    stranger = claim(**LEFT, namespace=OURS, deletionTimestamp=DYING, volumeName="v")
    for there in (stranger, made(deletionTimestamp=DYING)):
        waits = Wait(reason=f"claim {SCRUB_CLAIM}, left from an earlier scrub, is going away")
        assert held(dirty(CSI), state(there), read(VOLUMES, "v")) == waits


@pytest.mark.parametrize(
    "there",
    [
        claim(**LEFT, namespace=OURS, volumeName="v"),
        made(volumeName="other"),
        made(annotations={MARK: "uid-v", SEAL: "0" * 64}),
        made(annotations={MARK: "uid-v"}),
        made(annotations={SEAL: "0" * 64}),
    ],
)
def test_a_claim_of_the_name_that_is_not_ours_or_is_of_another_volume_ends_the_attempt(there: Claim) -> None:
    action = held(dirty(CSI), state(there), read(VOLUMES, "v"))
    words = f"claim {SCRUB_CLAIM} was not made by volplane and has the name of the scrub's; delete it"
    assert noted(action).failed == words
    assert "spec" not in action.body


# --- what proves that the pod had the volume ----------------------------------------------------------------------


def test_only_a_pod_with_the_very_claim_that_the_volume_refers_to_can_have_scrubbed_it() -> None:
    lost = f"claim {SCRUB_CLAIM} is not the one it was made with"
    intent = intent_of(HOLDING)
    assert claim_lost(HOLDING, intent, state(made())) == ""
    assert claim_lost(HOLDING, intent, state()) == lost
    assert claim_lost(HOLDING, intent, state(made(uid="uid-of-another"))) == lost
    assert claim_lost(HOLDING, intent, state(made(volumeName="other"))) == lost
    assert claim_lost(dirty(CSI, **BY_CLAIM), intent, state(made())) == lost, "the volume refers to another"


def test_a_pod_without_a_claim_scrubs_only_what_it_can_name_itself() -> None:
    intent = intent_of(dirty())
    assert claim_lost(dirty(), intent, state()) == ""
    assert claim_lost(dirty(CSI), intent, state()) == "the pod has no claim"


@pytest.mark.parametrize(
    ("item", "is_held"),
    [
        (HOLDING, True),
        (dirty({**CSI, "claim": None}, **BY_CLAIM), False),
        (dirty(CSI, **BY_CLAIM), False),
        (dirty({"claim": None, "reserved": "c"}), False),
        (volume(**HELD), False),
    ],
)
def test_a_volume_is_held_for_a_scrub_if_it_refers_to_the_claim_that_its_record_names(
    item: Volume, is_held: bool
) -> None:
    assert held_for_scrub(item) is is_held


# --- giving it back -----------------------------------------------------------------------------------------------


def test_the_claim_goes_first_and_then_the_volume_refers_to_what_it_was_released_from() -> None:
    there = made()
    action = given_back(HOLDING, state(HOLDING, there))
    assert action == Delete(kind=CLAIMS, target=there, why="the scrub is over", exact=False)
    dying = state(HOLDING, made(deletionTimestamp=DYING))
    assert given_back(HOLDING, dying) == Wait(reason=f"the scrub's claim {SCRUB_CLAIM} is going away")
    gone = state(HOLDING)
    assert given_back(HOLDING, gone) == Read(CLAIMS, SCRUB_CLAIM, why="is the claim of the scrub really gone?")
    assert given_back(HOLDING, gone, read(CLAIMS, SCRUB_CLAIM)).body["spec"] == {"claimRef": FROM_GONE}
    assert given_back(dirty(CSI), gone) is None


def test_a_claim_of_the_name_that_is_not_ours_is_left_where_it_is() -> None:
    theirs = claim(**LEFT, namespace=OURS, volumeName="v")
    assert given_back(dirty(CSI), state(theirs)) is None


# --- what is left over --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [None, volume(**CSI)])
def test_a_claim_whose_volume_is_gone_or_not_being_scrubbed_is_removed(item: Volume | None) -> None:
    there, theirs = made(), claim("a", namespace=OURS, volumeName="v")
    action = remove_strays("v", item, state(theirs, there), LiveReads())
    assert action == Delete(kind=CLAIMS, target=there, why="its volume is not being scrubbed", exact=False)


@pytest.mark.parametrize(
    "there",
    [
        made(deletionTimestamp=DYING),
        made(namespace="default"),
        claim(**LEFT, namespace=OURS, volumeName="v"),
        made(volumeName="other"),
    ],
)
def test_one_that_is_going_is_not_ours_or_is_of_another_volume_is_left_alone(there: Claim) -> None:
    assert remove_strays("v", None, state(there), LiveReads()) is None


def test_the_claim_of_a_scrub_that_goes_on_is_no_stray() -> None:
    assert remove_strays("v", HOLDING, state(made()), LiveReads()) is None
