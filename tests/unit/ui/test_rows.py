"""What the tables of the page show of an object."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.attach.objects import attachment, pod
from unit.binding.objects import claim, volume
from unit.ui.seen import NOW, event, operation, snapshot, told
from volplane.kube import names
from volplane.kube.objects import Lease
from volplane.process.duties import CHANGES
from volplane.ui import rows
from volplane.ui.told import Told

PENDING = claim("c", creationTimestamp="2026-12-31T00:00:00Z")


def cells(made: rows.Row, view: str = "waiting") -> dict[str, Any]:
    return dict(zip(rows.COLUMNS[view], made.cells, strict=True))


def test_a_waiting_claim_says_why_by_its_controller() -> None:
    (row,) = rows.waiting_claim(PENDING, told(reasons={"claims": {"default/c": "no room"}}), [])
    assert cells(row)["why"] == "no room"
    assert cells(row)["name"] == {"to": ("claim", "default/c"), "text": "default/c"}


def test_a_failed_operation_counts_down_to_its_next_try() -> None:
    failed = operation(PENDING, next_try=107.5, failures=3, error="the filer is away")
    (row,) = rows.waiting_claim(PENDING, told(operations=[failed]), [])
    assert cells(row)["next"] == {"due": NOW + 7.5}
    assert cells(row)["why"] == "provision failed 3 times, the last with: the filer is away"


def test_without_a_controller_the_newest_event_is_the_reason() -> None:
    events = [event(PENDING, "second", time="2027-01-02T00:00:00Z"), event(PENDING, "first")]
    (row,) = rows.waiting_claim(PENDING, Told(), events)
    assert cells(row)["why"] == "ProvisioningFailed: second"


def test_a_bound_claim_waits_for_nothing() -> None:
    assert rows.waiting_claim(claim(status={"phase": "Bound"}), Told(), []) == []


def test_the_oldest_that_waits_comes_first() -> None:
    younger = claim("a", creationTimestamp="2027-01-01T00:00:00Z")
    waiting = [*rows.waiting_claim(younger, Told(), []), *rows.waiting_claim(PENDING, Told(), [])]
    assert [row.id for row in sorted(waiting, key=lambda row: row.order)] == ["claim/default/c", "claim/default/a"]


def test_a_released_volume_waits_since_it_was_released() -> None:
    released = volume(status={"phase": "Released", "lastPhaseTransitionTime": "2027-01-01T00:00:00Z"})
    (row,) = rows.waiting_volume(released, Told(), [])
    assert cells(row)["since"] == {"age": rows.seconds("2027-01-01T00:00:00Z")}


def test_a_volume_in_the_trash_waits_for_nobody_and_is_shown_there() -> None:
    record = '{"v": 1, "claim": "u", "until": "2027-02-01T00:00:00Z", "released": "default/old"}'
    fields = {"annotations": {names.TRASHED: record}, "persistentVolumeReclaimPolicy": "Delete"}
    kept = volume(status={"phase": "Released"}, **fields)
    assert rows.waiting_volume(kept, Told(), []) == []
    (row,) = rows.of_trash(kept)
    assert cells(row, "trash")["until"] == {"due": rows.seconds("2027-02-01T00:00:00Z")}
    assert cells(row, "trash")["of"] == "default/old"


def test_an_attachment_waits_with_its_last_error_and_leads_to_its_volume() -> None:
    (row,) = rows.waiting_attachment(attachment(error="no such disk"), Told(), [])
    assert cells(row)["why"] == "no such disk"
    assert cells(row)["name"]["to"] == ("volume", "v")
    assert rows.waiting_attachment(attachment(attached=True), Told(), []) == []


def test_a_snapshot_waits_until_it_can_be_used() -> None:
    (row,) = rows.waiting_snapshot(snapshot(error={"message": "quota"}), Told(), [])
    assert cells(row)["why"] == "quota"
    assert rows.waiting_snapshot(snapshot(readyToUse=True), Told(), []) == []


def test_a_size_that_is_none_is_not_shown() -> None:
    (row,) = rows.of_snapshot(snapshot(restoreSize="much"))
    assert cells(row, "snapshots")["size"] == "-"


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\u202eb", "a\\u202eb"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("line\nline", "line line"),
        ("<script>", "<script>"),  # The browser makes text of it.
    ],
)
def test_texts_of_others_hide_and_reverse_nothing(hostile: str, shown: str) -> None:
    (row,) = rows.waiting_claim(PENDING, told(reasons={"claims": {"default/c": hostile}}), [])
    assert cells(row)["why"] == shown


def test_an_endless_text_is_cut() -> None:
    assert len(rows.shown("x" * 100_000)) < 3_000


@pytest.mark.parametrize("time", [None, "", "yesterday", "9999-99-99T00:00:00Z"])
def test_a_time_that_is_none_is_not_shown(time: str | None) -> None:
    assert rows.age(time) == "-"


def test_a_pod_that_does_not_run_waits_with_its_newest_event() -> None:
    waiting = pod(phase="Pending")
    (row,) = rows.waiting_pod(waiting, Told(), [event(waiting, "no slot", kind="Pod", reason="FailedAttachVolume")])
    assert cells(row)["why"] == "FailedAttachVolume: no slot"
    assert cells(row)["name"] == {"to": ("claim", "default/c"), "text": "default/p"}
    assert rows.waiting_pod(pod(), Told(), []) == []


def test_a_claim_that_waits_for_two_changes_has_two_rows() -> None:
    bound = claim("c", volumeName="v", status={"phase": "Bound"})
    reasons = {queue: {"default/c": f"waits in {queue}"} for queue in CHANGES}
    made = rows.waiting_claim(bound, told(reasons=reasons), [])
    assert len({row.id for row in made}) == len(CHANGES)


@pytest.mark.parametrize(
    ("holder", "renewed", "said"),
    [
        ("a", "2027-01-15T07:59:50Z", "a"),
        ("a", "2027-01-15T07:00:00.000000Z", "a, which has not renewed its Lease for 60m"),
        ("a", None, "a"),
        ("", "2027-01-15T07:00:00Z", ""),
    ],
)
def test_who_leads_is_said_with_a_doubt(holder: str, renewed: str | None, said: str) -> None:
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    assert rows.leader_of(msgspec.convert({"metadata": {"name": "volplane"}, "spec": spec}, Lease), NOW) == said
