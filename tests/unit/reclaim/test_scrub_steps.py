"""Before, beside and after the attempts of a scrub: who still uses the volume, who erases it, who gives it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from unit.deciding import HOOKS, decide_recycle, disk, put, read
from unit.reclaim.scrubbing import (
    BY_CLAIM,
    DISK,
    GONE,
    HELD,
    INTENT,
    OURS,
    RECYCLE,
    SCRUB_CLAIM,
    dirty,
    erased,
    failed,
    noted,
    pod_of,
    state,
    told,
    with_record,
    with_status,
)
from volplane.controller.actions import Delete, EventRecord, LiveReads, Patch, Read, Run, Wait
from volplane.drivers.owners import SourceOwner
from volplane.intents.ownership import NO_PLUGIN
from volplane.kube.kinds import CLAIMS, LEASES, PODS, VOLUMES
from volplane.kube.objects import Pod, Volume, VolumeAttachment
from volplane.reclaim.recycle import abandon_scrub, recycles, remove_strays, users_of_former
from volplane.state.cluster_state import ClusterState
from volplane.state.naming import asset_key
from volplane.state.records import INTENT_VERSION, RecycleIntent, write_intent

DYING = "2026-01-01T00:00:00Z"


def user(name: str, *, uses: str = "gone", node: str = "n", phase: str = "Running", **times: str) -> Pod:
    """A pod that mounts a claim. times: created, bound, started."""
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": times.get("created")}
    spec = {"nodeName": node, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": uses}}]}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T09:00:00Z"}
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": times.get("bound")}
    conditions = [ready, bound] if "bound" in times else [ready]
    status = {"phase": phase, "startTime": times.get("started"), "conditions": conditions}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, Pod)


# --- whoever uses it ----------------------------------------------------------------------------------------------


def test_pods_of_the_claim_that_is_gone_are_waited_for_and_named() -> None:
    item = dirty()
    message = "Volume is used by pods: default/a,default/b"
    event = EventRecord(VOLUMES, item, "Normal", "VolumeFailedRecycle", message)
    others = user("ended", phase="Succeeded"), user("elsewhere", uses="another")
    assert erased(item, user("b"), user("a"), *others) == Wait(reason=message, events=(event,))


def test_they_are_waited_for_too_while_the_volume_refers_to_the_claim_of_its_scrub() -> None:
    assert erased(dirty(HELD, **BY_CLAIM), user("a")).reason == "Volume is used by pods: default/a"


def test_pods_of_the_claim_that_has_the_name_now_are_not_waited_for() -> None:
    before = user("before", bound="2026-01-01T00:00:00Z")
    after = user("after", bound="2026-01-01T00:00:09Z")
    again = claim("gone", uid="uid-next", creationTimestamp="2026-01-01T00:00:05Z")
    assert erased(dirty(), before, after, again).reason == "Volume is used by pods: default/before"
    assert erased(dirty(), after, again) == RECYCLE


@pytest.mark.parametrize(
    ("pod", "former"),
    [
        (user("p", bound="2026-01-01T00:00:04Z"), True),
        (user("p", bound="2026-01-01T00:00:05Z"), False),
        # The node's clock is a minute ahead.
        (user("p", bound="2026-01-01T00:00:04Z", started="2026-01-01T00:01:04Z"), True),
        (user("p", created="2026-01-01T00:00:04Z", started="2026-01-01T00:01:04Z"), True),
        (user("p", created="2026-01-01T00:00:04Z"), True),
        (user("p", created="2026-01-01T00:00:06Z"), False),
        (user("p", created="2026-01-01T00:00:04Z", bound="2026-01-01T00:00:06Z"), False),
        (user("p", created="2026-01-01T00:00:04Z", node=""), False),
        (user("p"), True),
        (user("p", created="2026-01-01T00:00:04Z", phase="Failed"), False),
    ],
)
def test_a_pod_that_was_bound_before_a_claim_was_created_uses_the_former_one(pod: Pod, former: bool) -> None:
    successor = claim("gone", creationTimestamp="2026-01-01T00:00:05Z")
    assert users_of_former([pod], successor) == (["default/p"] if former else [])


def test_where_the_claim_has_no_time_its_pods_are_its_own() -> None:
    assert users_of_former([user("p", bound="2026-01-01T00:00:00Z")], claim("gone")) == []


def attachment(node: str) -> VolumeAttachment:
    body = {"metadata": {"name": node, "uid": node}, "spec": {"attacher": "a", "nodeName": node}}
    return msgspec.convert(
        {**body, "spec": {**body["spec"], "source": {"persistentVolumeName": "v"}}}, VolumeAttachment
    )


def test_a_scrub_does_not_begin_while_the_volume_is_attached() -> None:
    fresh = volume(claim=GONE, persistentVolumeReclaimPolicy="Recycle", status={"phase": "Released"})
    waits = Wait(reason="attachments of it exist, to n1, n2")
    assert erased(fresh, attachment("n2"), attachment("n1")) == waits
    assert erased(dirty(), attachment("n1")) == RECYCLE, "a scrub attaches it itself"
    assert noted(erased(fresh)).claim == GONE.uid


# --- whose storage it is ------------------------------------------------------------------------------------------

TWIN = volume("twin", hostPath={"path": "/v"})
SHARED = 'its source is that of volume "twin": nothing is destroyed while both exist; set the policy of one of '
SHARED += "them to Retain and delete that object"


@pytest.mark.parametrize("item", [dirty(), with_record("")])
def test_what_shares_the_storage_of_another_volume_is_not_erased(item: Volume) -> None:
    assert erased(item, TWIN) == failed(item, SHARED)


def test_the_pod_that_erases_what_another_volume_shares_is_stopped() -> None:
    item = dirty(pod="uid-pod")
    pod = pod_of(item, phase="Running")
    assert erased(item, TWIN, pod) == Delete(kind=PODS, target=pod, why="it shares another's storage", exact=False)


def test_what_was_erased_already_is_offered_again_whoever_shares_it_now() -> None:
    assert erased(dirty(erased=True), TWIN).why == "scrubbed, offered again"


# --- which release ------------------------------------------------------------------------------------------------


def test_a_scrub_that_begins_names_the_claim_and_the_term() -> None:
    item = with_record("")
    made = state(item, lease=f"{OURS}/volplane")
    made.fence = lambda: "3/us/lease-b"
    fresh = RecycleIntent(v=INTENT_VERSION, claim=GONE.uid, fence="3/us/lease-b")
    body = {"metadata": {"annotations": {INTENT: write_intent(fresh)}}}
    expected = Patch(kind=VOLUMES, target=item, body=body, why="declare the intent to scrub")
    assert decide_recycle(item, made, LiveReads()) == expected


def test_a_scrub_goes_on_though_a_person_removed_the_reference() -> None:
    assert erased(dirty({"claim": None})) == RECYCLE
    assert noted(erased(with_record("", claim=None))) == RecycleIntent(v=INTENT_VERSION, claim="")


def test_a_scrub_that_is_taken_over_is_written_to_its_volume() -> None:
    item = dirty(fence="7/them/lease-a")
    taken = erased(item)
    assert taken.target is item
    assert noted(taken).fence == ""


@pytest.mark.parametrize(
    ("policy", "parameter", "expected"),
    [
        ("Recycle", None, True),
        ("Delete", "recycle", True),
        ("Delete", "delete", False),
        ("Delete", None, False),
        ("Retain", "recycle", False),
    ],
)
def test_what_is_recycled_says_its_policy_or_its_class(policy: str, parameter: str | None, expected: bool) -> None:
    marks = {"volplane.dev/on-release": parameter} if parameter else {}
    marks["pv.kubernetes.io/provisioned-by"] = DISK.name
    assert recycles(volume(persistentVolumeReclaimPolicy=policy, annotations=marks)) is expected


# --- who erases it ------------------------------------------------------------------------------------------------


def owned(owner: SourceOwner) -> ClusterState:
    """A cluster in which this is known about the owner of every source."""
    made = state()
    made.drivers.owner_of = lambda _source: owner  # type: ignore[method-assign]
    return made


IDENTIFY = Run(verb="identify", key="v", uid="uid-v", driver="", asset=asset_key(volume()))


def test_first_the_drivers_are_asked_whose_it_is() -> None:
    item = dirty()
    assert decide_recycle(item, owned(SourceOwner(known=False)), LiveReads()) == IDENTIFY
    starting = owned(SourceOwner(known=False, starting="slow.example.com"))
    assert decide_recycle(item, starting, LiveReads()) == Wait(reason='driver "slow.example.com" is starting')


def test_a_driver_that_cannot_answer_whose_it_is_is_told_and_asked_again() -> None:
    item, doubt = dirty(), owned(SourceOwner(known=False, reason="nobody can tell"))
    assert decide_recycle(item, doubt, LiveReads()) == failed(item, "nobody can tell")
    shown = with_status(item, "nobody can tell")
    assert decide_recycle(shown, doubt, LiveReads()) == IDENTIFY


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("", "No recycler plugin found for the volume!"),
        (NO_PLUGIN, "No recycler plugin found for the volume!"),
        ("two drivers say it is theirs", "two drivers say it is theirs"),
    ],
)
def test_a_volume_that_is_nobodys_fails_and_says_so(reason: str, message: str) -> None:
    item = dirty()
    assert decide_recycle(item, owned(SourceOwner(reason=reason)), LiveReads()) == failed(item, message)
    shown = with_status(item, message)
    assert decide_recycle(shown, owned(SourceOwner(reason=reason)), LiveReads()) == Wait(reason=message)


def test_nor_is_a_csi_volume_anybodys_that_no_driver_here_serves() -> None:
    item = dirty({"hostPath": None, "csi": {"driver": "other.example.com", "volumeHandle": "h"}})
    message = "No recycler plugin found for the volume!"
    assert decide_recycle(item, owned(SourceOwner()), LiveReads()) == failed(item, message)


def test_a_driver_that_cannot_erase_is_named() -> None:
    item = dirty()
    message = f'driver "{DISK.name}" cannot erase volumes; set the reclaim policy to Retain or Delete'
    rigid = disk(hooks=HOOKS - {"recycle"})
    assert erased(item, drivers=(rigid,)) == failed(item, message)
    beside = erased(item, drivers=(rigid,), binder=False)
    assert beside == Wait(reason=message, events=(told(item, message),)), "phases are the other binder's"


def test_while_a_claim_of_the_scrub_is_bound_to_it_a_failure_is_an_event_alone() -> None:
    item, rigid = dirty(HELD, **BY_CLAIM), disk(hooks=HOOKS - {"recycle"})
    assert isinstance(erased(item, drivers=(rigid,)), Wait)


# --- the end ------------------------------------------------------------------------------------------------------

Finish = Callable[..., Any]


@pytest.mark.parametrize("intent", [{"given_up": True, "failed": "disk error"}, {"erased": True}])
def test_the_claim_of_the_scrub_is_proven_gone_before_the_reference_goes_back(intent: dict[str, Any]) -> None:
    item = dirty(HELD, **BY_CLAIM, **intent)
    why = "is the claim of the scrub really gone?"
    assert erased(item) == Read(CLAIMS, SCRUB_CLAIM, why)
    back = erased(item, reads=read(CLAIMS, SCRUB_CLAIM))
    assert back.body["spec"]["claimRef"]["name"] == "gone"


@pytest.mark.parametrize("binder", [True, False])
def test_a_scrub_that_is_given_up_waits_for_a_person(binder: bool) -> None:
    message = f"disk error; remove the annotation {INTENT} to try again"
    item = with_status(dirty(given_up=True, failed="disk error"), message)
    events = () if binder else (told(item, message),)
    assert erased(item, binder=binder) == Wait(reason=message, events=events)


def abandoned(item: Volume, *others: Any, reads: LiveReads | None = None, fence: str = "") -> Any:
    made = state(item, *others, lease=f"{OURS}/volplane" if fence else "")
    made.fence = lambda: fence
    return abandon_scrub(item, made, reads or LiveReads())


def test_what_is_not_to_be_scrubbed_any_more_loses_pod_then_claim_then_record() -> None:
    item = dirty(HELD, pod="uid-pod", **BY_CLAIM)
    pod = pod_of(item, phase="Running")
    assert abandoned(item, pod) == Delete(
        kind=PODS, target=pod, why="the volume is not to be scrubbed any more", exact=False
    )
    assert abandoned(item) == Read(CLAIMS, SCRUB_CLAIM, "is the claim of the scrub really gone?")
    free = dirty()
    body = {"metadata": {"annotations": {INTENT: None}}}
    assert abandoned(free) == Patch(kind=VOLUMES, target=free, body=body, why="the scrub is abandoned")


def test_only_what_another_term_began_needs_a_look_at_the_lease() -> None:
    lease = Read(LEASES, f"{OURS}/volplane", why="is this process still the leader?")
    assert abandoned(dirty(fence="7/them/lease-a"), fence="3/us/lease-b") == lease
    assert isinstance(abandoned(dirty(fence="3/us/lease-b"), fence="3/us/lease-b"), Patch)
    assert isinstance(abandoned(with_record("damaged"), fence="3/us/lease-b"), Patch)


# --- pods that nobody waits for -----------------------------------------------------------------------------------

SEEN = read(VOLUMES, "v")
CLEAN = volume(claim=GONE, persistentVolumeReclaimPolicy="Recycle", status={"phase": "Released"})


def stray(item: Volume | None, *pods: Pod, reads: LiveReads = SEEN) -> Any:
    made = state()
    put(made, *pods)
    return remove_strays("v", item, made, reads)


def test_the_pod_of_a_volume_that_is_gone_goes_too_after_a_live_look() -> None:
    pod = pod_of(dirty())
    assert stray(None, pod, reads=LiveReads()) == Read(VOLUMES, "v", "is this scrub not wanted any more?")
    assert stray(None, pod) == Delete(kind=PODS, target=pod, why="this scrub is not wanted any more", exact=False)
    assert stray(CLEAN, pod) == Delete(kind=PODS, target=pod, why="this scrub is not wanted any more", exact=False)


def test_a_pod_that_somebody_waits_for_stays() -> None:
    item = dirty(pod="uid-pod")
    assert stray(item, pod_of(item)) is None
    assert stray(item) is None
    assert stray(None) is None


def test_a_pod_of_that_mark_in_another_namespace_is_not_ours() -> None:
    assert stray(None, pod_of(dirty(), namespace="default")) is None


def test_a_pod_that_goes_holds_up_only_the_deletion_of_its_volume() -> None:
    pod = pod_of(dirty(), deletionTimestamp=DYING)
    assert stray(None, pod) is None
    assert stray(CLEAN, pod) is None
    dying = msgspec.convert(msgspec.to_builtins(CLEAN), Volume)
    dying.metadata.deletion_timestamp = DYING
    waits = Wait(reason=f"scrubber pod {pod.key} is going away")
    assert stray(dying, pod, reads=LiveReads()) == waits
