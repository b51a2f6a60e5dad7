"""What is decided about a released volume that is kept, as tables."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from unit.deciding import DRIVER, NOW, decide_claim, decide_volume, disk, read, state_with
from volplane.controller.actions import Delete, LiveReads, Patch, Read, Settled, Wait
from volplane.kube.kinds import CLAIMS, NAMESPACES
from volplane.kube.names import PROVISIONED_BY, TRASH, TRASH_CHOICE, TRASHED, UNDELETE
from volplane.kube.objects import KubeObject, Volume
from volplane.state.records import time_of, trashed
from volplane.trash.choice import kept_for
from volplane.trash.decide import seconds_left

GONE = claim("gone")
HELD = ["volplane.dev/reclaim"]
DISK = disk()
Json = dict[str, Any]


def record(left: float = 60.0, uid: str = GONE.uid, **more: str) -> str:
    times = {"until": (NOW + timedelta(seconds=left)).isoformat(), "since": NOW.isoformat()}
    return json.dumps({"v": 1, "claim": uid, "released": GONE.key, **times, **more})


def released(name: str = "v", *, status: Json | None = None, annotations: Json | None = None, **spec: Any) -> Volume:
    about = {PROVISIONED_BY: DRIVER, TRASH: "1m", **(annotations or {})}
    marks = {key: value for key, value in about.items() if value is not None}
    fields = {"claim": GONE, "persistentVolumeReclaimPolicy": "Delete", "finalizers": HELD, **spec}
    return volume(name, annotations=marks, status=status or {"phase": "Released"}, **fields)


def decided(item: Volume, *others: KubeObject, reads: LiveReads | None = None, **more: Any) -> Any:
    state = state_with(item, *others, **{"drivers": (DISK,), **more})
    return decide_volume(item.name, state, read(CLAIMS, GONE.key) if reads is None else reads)


def written(step: Any) -> Json:
    assert isinstance(step, Patch), step
    return dict(json.loads(step.body["metadata"]["annotations"][TRASHED]))


ROLES = pytest.mark.parametrize("binder", [True, False], ids=["whole", "beside"])


@ROLES
def test_a_released_volume_gets_a_record_before_anything_else(binder: bool) -> None:
    found = written(decided(released(), binder=binder))
    left = time_of(found["until"], NOW) - NOW
    assert timedelta(seconds=60) < left <= timedelta(seconds=62)
    assert (found["claim"], found["released"]) == (GONE.uid, GONE.key)


@ROLES
def test_that_the_claim_is_gone_is_read_live_before_the_record_is_written(binder: bool) -> None:
    assert decided(released(), reads=LiveReads(), binder=binder) == Read(
        CLAIMS, GONE.key, why="is the claim really gone?"
    )


@ROLES
@pytest.mark.parametrize(
    ("annotations", "then"),
    [
        ({TRASHED: record()}, Wait),
        ({TRASHED: record(-1.0)}, Delete),
        ({TRASHED: record(-1.0, uid="earlier")}, Patch),
        ({TRASHED: "{"}, Patch),
        ({TRASHED: record(until="soon")}, Wait),
        ({TRASH: None}, Delete),
        ({TRASH: None, TRASHED: record()}, Wait),
        ({TRASH_CHOICE: "skip"}, Delete),
        ({TRASH_CHOICE: "nonsense"}, Patch),
        ({TRASH: "skip"}, Delete),
        ({TRASH: "7dd"}, Wait),
    ],
    ids=str,
)
def test_only_a_record_of_this_release_whose_time_is_over_lets_a_volume_go(
    annotations: Json, then: type, binder: bool
) -> None:
    assert type(decided(released(annotations=annotations), binder=binder)) is then


@pytest.mark.parametrize(
    ("ours", "server", "over"), [(61, 61, True), (61, None, True), (61, 59, False), (59, 61, False), (59, None, False)]
)
def test_a_time_is_over_if_it_is_so_by_both_clocks(ours: float, server: float | None, over: bool) -> None:
    item = released(annotations={TRASHED: record()})
    state = state_with(item, drivers=(DISK,))
    state.now = lambda: NOW + timedelta(seconds=ours)
    state.server_time = lambda: None if server is None else NOW + timedelta(seconds=server)
    assert isinstance(decide_volume(item.name, state, read(CLAIMS, GONE.key)), Delete if over else Wait)


@pytest.mark.parametrize("late", ["9999-12-31T23:59:59Z", "2026-06-01T00:00:00Z", "yesterday", ""])
def test_the_latest_time_that_is_known_begins_and_none_is_too_late(late: str) -> None:
    item = released(status={"phase": "Released", "lastPhaseTransitionTime": late})
    begun = time_of(late, NOW)
    until = time_of(written(decided(item))["until"], NOW)
    assert until - NOW > timedelta(seconds=60)
    assert until > begun or begun.year == 9999


def test_under_another_policy_and_for_a_living_claim_there_is_no_trash() -> None:
    retained = released(annotations={TRASHED: record()}, persistentVolumeReclaimPolicy="Retain", finalizers=None)
    assert decided(retained) == Settled()
    living = claim("gone", volumeName="elsewhere", annotations={"pv.kubernetes.io/bind-completed": "yes"})
    made_for_it = released("pvc-uid-gone")
    assert isinstance(decided(made_for_it, living, reads=read(CLAIMS, living.key, living)), Delete)
    assert isinstance(decided(released(), living, reads=read(CLAIMS, living.key, living)), Patch)


def test_without_a_driver_here_nothing_is_written() -> None:
    for more in ({"drivers": ()}, {"drivers": (), "broken": {DRIVER: "is starting"}}):
        step = decided(released(), binder=False, **more)
        assert isinstance(step, Settled | Wait)


def test_a_volume_in_the_trash_is_bound_to_no_claim_that_its_reference_does_not_name() -> None:
    naming = claim("c", volumeName="v")
    for item in (released(annotations={TRASHED: record()}), released(annotations={TRASHED: record()}, claim=None)):
        state = state_with(item, naming, drivers=(DISK,))
        step = decide_claim(naming.key, state, LiveReads())
        assert isinstance(step, Wait)
        assert "is in the trash" in step.reason
    any_claim = claim("any", storageClassName="")
    free = released(annotations={TRASHED: record()}, claim=None, status={"phase": "Available"})
    assert not isinstance(decide_claim(any_claim.key, state_with(free, any_claim, drivers=(DISK,)), LiveReads()), Patch)


@ROLES
def test_the_owners_claim_gets_the_volume_after_a_look_at_its_namespace_and_at_itself(binder: bool) -> None:
    asking = claim("back", volumeName="v", annotations={UNDELETE: GONE.uid})
    item, reads = released(annotations={TRASHED: record(), TRASH_CHOICE: "5s"}), read(CLAIMS, GONE.key)
    step = decided(item, asking, reads=reads, binder=binder)
    assert step == Read(NAMESPACES, "default", why="is it the namespace of the former claim?")
    older = msgspec.convert({"metadata": {"name": "default", "creationTimestamp": "2025-01-01T00:00:00Z"}}, KubeObject)
    reads.put(NAMESPACES, "default", older)
    assert isinstance(decided(item, asking, reads=reads, binder=binder), Read)
    reads.put(CLAIMS, asking.key, asking)
    step = decided(item, asking, reads=reads, binder=binder)
    assert isinstance(step, Patch)
    assert step.body["spec"]["claimRef"]["uid"] == asking.uid
    assert step.body["metadata"]["annotations"] == dict.fromkeys((TRASHED, TRASH_CHOICE, UNDELETE))


@pytest.mark.parametrize(
    ("made", "given"), [("2025-01-01T00:00:00Z", True), ("2026-01-01T00:00:01Z", False), (None, False)]
)
def test_a_namespace_must_be_older_than_the_release(made: str | None, given: bool) -> None:
    asking = claim("back", volumeName="v", annotations={UNDELETE: GONE.uid})
    reads = read(CLAIMS, GONE.key)
    reads.put(CLAIMS, asking.key, asking)
    found = msgspec.convert({"metadata": {"name": "default", "creationTimestamp": made}}, KubeObject) if made else None
    reads.put(NAMESPACES, "default", found)
    step = decided(released(annotations={TRASHED: record()}), asking, reads=reads)
    assert isinstance(step, Patch if given else Wait)


@pytest.mark.parametrize(("name", "given"), [(f"pvc-{GONE.uid}", False), ("static", True)])
def test_a_namespace_that_was_made_anew_while_nobody_saw_the_release_is_another_ones(name: str, *, given: bool) -> None:
    """A volume that was made for a claim is younger than the namespace of that. Of another one nothing is known."""
    asking = claim("back", volumeName=name, annotations={UNDELETE: GONE.uid})
    reads = read(CLAIMS, GONE.key)
    reads.put(CLAIMS, asking.key, asking)
    made = {"metadata": {"name": "default", "creationTimestamp": "2025-12-31T00:00:00Z"}}
    reads.put(NAMESPACES, "default", msgspec.convert(made, KubeObject))
    item = released(name, annotations={TRASHED: record()}, creationTimestamp="2025-12-01T00:00:00Z")
    assert isinstance(decided(item, asking, reads=reads), Patch if given else Wait)


@pytest.mark.parametrize("uid", ["", "uid-other", "v", "uid-gone ", "UID-GONE"])
@pytest.mark.parametrize("namespace", ["default", "default2", "", "other"])
def test_without_namespace_and_uid_of_the_former_claim_nobody_gets_it(uid: str, namespace: str) -> None:
    asking = claim("back", namespace=namespace, volumeName="v", annotations={UNDELETE: uid})
    step = decided(released(annotations={TRASHED: record()}), asking)
    assert isinstance(step, Wait)
    nobodys = released(annotations={TRASHED: record(uid="")}, claim=None)
    lost = decided(nobodys, claim("b", volumeName="v", annotations={UNDELETE: ""}))
    assert isinstance(lost, Wait)


@pytest.mark.parametrize(
    ("longest", "choice", "seconds"),
    [
        ("1m", None, 60),
        ("1m", "30s", 30),
        ("1m", "1h", 60),
        ("1m", "skip", 0),
        ("1m", "-5s", 60),
        ("1m", "0", 60),
        ("1m", "1e3", 60),
        ("", "30s", 0),
        (None, "30s", 0),
        ("1h30m", "90m", 5400),
    ],
)
def test_the_choice_counts_within_the_time_of_the_class(
    longest: str | None, choice: str | None, seconds: float
) -> None:
    assert kept_for(released(annotations={TRASH: longest, TRASH_CHOICE: choice})) == seconds


def test_a_record_with_a_time_without_zone_is_in_utc() -> None:
    item = released(annotations={TRASHED: record(until="2026-01-01T00:01:00")})
    state = state_with(item)
    found = trashed(item)
    assert found is not None
    assert seconds_left(found, state) == 60.0
