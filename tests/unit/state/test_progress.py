"""Every transition of the records of progress, one row each: before, what happened, after."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from volplane.assets import Asset, VolumeSource
from volplane.errors import AlreadyDeleted, OutcomeUnknown, Unavailable
from volplane.state.progress import (
    BackendErased,
    ClaimProgress,
    Deleted,
    Deleting,
    Discarded,
    Discarding,
    Erasing,
    Full,
    LongCall,
    Made,
    Pending,
    Progress,
    ScrubPlan,
    VolumeProgress,
)
from volplane.state.records import ClaimIntent

ASSET = Asset(handle="a", source=VolumeSource(kind="hostPath", fields={"path": "/a"}), capacity_bytes=1)
FIRST, SECOND = ClaimIntent(v=1, driver="d"), ClaimIntent(v=1, driver="d", generation=2)
THEIRS = ClaimIntent(v=1, driver="d", fence="1/b/lease")
JOB = {"job": 1}

Claim, Volume = ClaimProgress, VolumeProgress

CLAIMS: dict[str, tuple[ClaimProgress, Callable[[ClaimProgress], object], ClaimProgress]] = {
    "an intent is seen": (Claim(), lambda p: p.intent_seen(FIRST), Claim(intent=FIRST)),
    "an intent is seen while an asset is made": (
        Claim(step=Pending(JOB, 5.0)),
        lambda p: p.intent_seen(FIRST),
        Claim(step=Pending(JOB, 5.0), intent=FIRST),
    ),
    "the intent of a discarded asset is seen again": (
        Claim(step=Discarded(), intent=FIRST),
        lambda p: p.intent_seen(FIRST),
        Claim(step=Discarded(), intent=FIRST),
    ),
    "provision begins": (Claim(attempted=3.0), lambda p: p.provision_began(), Claim(begun=True)),
    "provision begins after a discard": (Claim(step=Discarded()), lambda p: p.provision_began(), Claim(begun=True)),
    "provision goes on": (
        Claim(step=Pending(JOB, 5.0), attempted=3.0),
        lambda p: p.provision_began(),
        Claim(step=Pending(JOB, 5.0), begun=True),
    ),
    "another leader has worked on it since": (
        Claim(step=Full(), intent=FIRST, attempted=3.0),
        lambda p: p.intent_seen(THEIRS),
        Claim(intent=THEIRS),
    ),
    "provision makes an asset": (
        Claim(step=Pending(JOB, 5.0)),
        lambda p: p.reached(Made(ASSET), 9.0),
        Claim(step=Made(ASSET), attempted=9.0),
    ),
    "provision takes long": (
        Claim(),
        lambda p: p.reached(Pending(JOB, 14.0), 9.0),
        Claim(step=Pending(JOB, 14.0), attempted=9.0),
    ),
    "provision fails": (
        Claim(step=Pending(JOB, 5.0)),
        lambda p: p.provision_failed(Unavailable("it is away"), 9.0),
        Claim(step=Pending(JOB, 5.0), attempted=9.0),
    ),
    "provision fails with an unknown outcome": (
        Claim(),
        lambda p: p.provision_failed(OutcomeUnknown("no answer"), 9.0),
        Claim(),
    ),
    "provision says that the asset was deleted": (
        Claim(step=Pending(JOB, 5.0), attempted=3.0),
        lambda p: p.provision_failed(AlreadyDeleted("its token is used up"), 9.0),
        Claim(step=Discarded()),
    ),
    "the segment is full": (Claim(attempted=9.0), lambda p: p.reached(Full()), Claim(step=Full(), attempted=9.0)),
    "the segment is full, after all": (Claim(begun=True), lambda p: p.reached(Full()), Claim(step=Full())),
    "what was begun is deleted": (Claim(begun=True), lambda p: p.reached(Discarded()), Claim(step=Discarded())),
    "what was begun is being deleted": (
        Claim(step=Made(ASSET), begun=True),
        lambda p: p.reached(Discarding(ASSET)),
        Claim(step=Discarding(ASSET), begun=True),
    ),
    "what was begun is a volume": (Claim(begun=True), lambda p: p.volume_seen(complete=True), Claim()),
    "the node of a full segment is cleared": (Claim(step=Full()), lambda p: p.node_cleared(), Claim()),
    "no node is selected while an asset waits": (
        Claim(step=Made(ASSET)),
        lambda p: p.node_cleared(),
        Claim(step=Made(ASSET)),
    ),
    "the volume is there": (
        Claim(step=Made(ASSET), intent=FIRST, attempted=9.0),
        lambda p: p.volume_seen(complete=True),
        Claim(intent=FIRST, attempted=9.0),
    ),
    "the volume is there, without what says whose its asset is": (
        Claim(step=Made(ASSET), intent=FIRST, attempted=9.0),
        lambda p: p.volume_seen(complete=False),
        Claim(step=Made(ASSET), intent=FIRST, attempted=9.0),
    ),
    "a volume is there that nothing was made for": (
        Claim(step=Pending(JOB, 5.0)),
        lambda p: p.volume_seen(complete=False),
        Claim(),
    ),
    "nothing is found, the first look": (Claim(), lambda p: p.absence_seen(9.0, 5.0), Claim(attempted=9.0)),
    "nothing is found after an attempt": (
        Claim(attempted=3.0),
        lambda p: p.absence_seen(9.0, 5.0),
        Claim(attempted=3.0),
    ),
    "a discard begins": (
        Claim(step=Made(ASSET)),
        lambda p: p.reached(Discarding(ASSET)),
        Claim(step=Discarding(ASSET)),
    ),
    "a discard is tried again": (
        Claim(step=Discarding(ASSET, LongCall(JOB, 5.0))),
        lambda p: p.reached(Discarding(ASSET)),
        Claim(step=Discarding(ASSET, LongCall(JOB, 5.0))),
    ),
    "a discard takes long": (
        Claim(step=Discarding(ASSET)),
        lambda p: p.reached(Discarding(ASSET, LongCall(JOB, 14.0))),
        Claim(step=Discarding(ASSET, LongCall(JOB, 14.0))),
    ),
    "a discard ends": (
        Claim(step=Discarding(ASSET, LongCall(JOB, 5.0)), intent=FIRST, attempted=3.0),
        lambda p: p.reached(Discarded()),
        Claim(step=Discarded(), intent=FIRST),
    ),
}

FAILED = {"unreported_failure": "disk on fire"}

VOLUMES: dict[str, tuple[VolumeProgress, Callable[[VolumeProgress], object], VolumeProgress]] = {
    "delete takes long": (
        Volume(**FAILED),
        lambda p: p.succeeded(Deleting(JOB, 5.0)),
        Volume(step=Deleting(JOB, 5.0)),
    ),
    "delete ends": (Volume(step=Deleting(JOB, 5.0)), lambda p: p.succeeded(Deleted()), Volume(step=Deleted())),
    "recycle asks for a pod": (Volume(), lambda p: p.succeeded(ScrubPlan(None)), Volume(step=ScrubPlan(None))),
    "recycle takes long": (Volume(), lambda p: p.succeeded(Erasing(JOB, 5.0)), Volume(step=Erasing(JOB, 5.0))),
    "recycle ends": (
        Volume(step=Erasing(JOB, 5.0), **FAILED),
        lambda p: p.succeeded(BackendErased()),
        Volume(step=BackendErased()),
    ),
    "the status shows the failure": (
        Volume(**FAILED),
        lambda p: p.status_seen("disk on fire"),
        Volume(),
    ),
    "the status shows another failure": (Volume(**FAILED), lambda p: p.status_seen("no disk"), Volume(**FAILED)),
}


@pytest.mark.parametrize("row", CLAIMS)
def test_a_transition_of_a_claim(row: str) -> None:
    progress, happens, after = CLAIMS[row]
    progress = msgspec.structs.replace(progress)
    happens(progress)
    assert progress == after


@pytest.mark.parametrize("row", VOLUMES)
def test_a_transition_of_a_volume(row: str) -> None:
    progress, happens, after = VOLUMES[row]
    progress = msgspec.structs.replace(progress)
    happens(progress)
    assert progress == after


def test_a_failure_is_to_be_reported_until_the_status_shows_it() -> None:
    progress = VolumeProgress()
    progress.unreported_failure = "disk on fire"
    assert progress.unreported_failure == "disk on fire"
    progress.status_seen("disk on fire")
    assert progress.unreported_failure == ""


def test_what_is_not_tracked_reads_as_nothing_and_is_not_kept() -> None:
    progress = Progress()
    progress.claims.get("c").reached(Full())
    progress.volumes.get("v").unreported_failure = "disk on fire"
    assert (progress.claims.get("c"), progress.volumes.get("v")) == (ClaimProgress(), VolumeProgress())
    assert len(progress) == 0


def test_what_is_tracked_is_kept_until_it_is_forgotten() -> None:
    progress = Progress()
    record = progress.claims.track("c")
    record.reached(Full())
    progress.volumes.track("v").unreported_failure = "disk on fire"
    assert progress.claims.track("c") is record
    assert progress.claims.get("c").step == Full()
    assert progress.volumes.get("v").unreported_failure == "disk on fire"
    progress.claims.forget("c")
    progress.volumes.forget("v")
    record.reached(Discarded())
    assert len(progress) == 0, "what an operation still writes is seen by nobody"
    assert progress.claims.get("c") == ClaimProgress()


@pytest.mark.parametrize("later", [SECOND, ClaimIntent(v=1, driver="other")])
def test_what_is_known_of_one_asset_and_what_a_hook_still_returns_of_it_is_not_taken_for_the_next_one(
    later: ClaimIntent,
) -> None:
    progress = Progress()
    progress.intent_seen("c", FIRST)
    record = progress.claims.track("c")
    record.provision_began()
    record.reached(Pending(JOB, 5.0), 4.0)
    progress.intent_seen("c", later)
    record.reached(Made(ASSET), 9.0)
    assert progress.claims.get("c") == Claim(intent=later, begun=True)
    progress.claims.track("c").reached(Made(ASSET), 9.0)
    progress.intent_seen("c", later)
    assert progress.claims.get("c").step == Made(ASSET), "the same record is seen again"


RECORDED: dict[str, tuple[dict[str, int] | None, dict[str, int] | None, bool]] = {
    "nothing is recorded, and nothing was": (None, None, True),
    "what the call was made with is still there": ({"job": 0}, {"job": 0}, True),
    "it is recorded already": (None, {"job": 1}, False),
    "another process has called the hook since": (None, {"job": 2}, False),
    "another process has called the hook with an older state": ({"job": 0}, {"job": 2}, False),
}


@pytest.mark.parametrize("row", RECORDED)
def test_a_state_is_written_over_the_one_that_its_call_was_made_with(row: str) -> None:
    given, recorded, expected = RECORDED[row]
    assert LongCall(JOB, 5.0, given).unrecorded(recorded) == expected


def test_an_empty_state_is_written_because_the_record_itself_says_that_the_backend_is_at_work() -> None:
    """By it the next process knows that `Absent` proves nothing yet, and that a scrub may not be abandoned."""
    first = LongCall({}, 5.0)
    assert first.unrecorded(None)
    assert not first.unrecorded({}), "it is recorded"
    assert not LongCall({}, 5.0, {}).unrecorded({}), "the next call had it"


@pytest.mark.parametrize(("now", "seconds"), [(3.0, 2.0), (5.0, 0.0), (9.0, 0.0)])
def test_a_recorded_call_waits_until_it_is_due(now: float, seconds: float) -> None:
    assert LongCall(JOB, 5.0).left(now) == seconds
