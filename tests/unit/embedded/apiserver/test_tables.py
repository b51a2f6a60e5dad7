from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from unit.embedded.apiserver.rules import Json, begun, kind, merge
from volplane_embedded.apiserver.tables import human_duration, table

NOW = datetime(2026, 1, 2, tzinfo=UTC)
VOLUME: Json = {
    "metadata": {"name": "v", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadOnlyMany", "ReadWriteOnce", "ReadWriteOnce"],
        "nfs": {"server": "s", "path": "/"},
        "claimRef": {"namespace": "n", "name": "c"},
        "storageClassName": "std",
    },
}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (599, "9m59s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (11100, "3h5m"),
        (28800, "8h"),
        (172799, "47h"),
        (172800, "2d"),
        (176400, "2d1h"),
        (691200, "8d"),
        (86400 * 729, "729d"),
        (86400 * 730, "2y"),
        (86400 * 731, "2y1d"),
        (86400 * 365 * 8, "8y"),
    ],
)
def test_ages_are_shown_in_two_units_at_most(seconds: int, shown: str) -> None:
    assert human_duration(seconds) == shown


def test_a_volume_is_shown_as_kubectl_prints_it() -> None:
    resource = kind("PersistentVolume")
    shown = table(resource, [begun(resource, VOLUME)], {"resourceVersion": "5"}, "Metadata", now=NOW)
    assert shown["kind"] == "Table"
    assert shown["metadata"] == {"resourceVersion": "5"}
    assert shown["rows"][0]["cells"] == [
        "v", "1Gi", "RWO,ROX", "Retain", "Pending", "n/c", "std", "<unset>", "", "24h", "Filesystem",
    ]  # fmt: skip
    assert [column["name"] for column in shown["columnDefinitions"] if column["priority"]] == ["VolumeMode"]


def test_a_row_carries_what_was_asked_for() -> None:
    resource = kind("PersistentVolume")
    volume = begun(resource, VOLUME)
    rows = {
        include: table(resource, [volume], {}, include, now=NOW)["rows"][0]
        for include in ("None", "Metadata", "Object")
    }
    assert "object" not in rows["None"]
    assert rows["Metadata"]["object"] == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": volume["metadata"],
    }
    assert rows["Object"]["object"] == {"kind": "PersistentVolume", "apiVersion": "v1", **volume}


def test_an_event_of_the_new_api_is_shown_like_one_of_the_old() -> None:
    old, new = kind("Event", ""), kind("Event", "events.k8s.io")
    stored = begun(old, {"involvedObject": {"kind": "Pod", "name": "p"}, "lastTimestamp": "2026-01-01T23:59:00Z"})
    assert new.from_stored is not None
    shown = table(new, [new.from_stored(stored)], {}, now=NOW)["rows"][0]["cells"]
    assert shown == table(old, [stored], {}, now=NOW)["rows"][0]["cells"]
    assert (shown[0], shown[3]) == ("60s", "pod/p")


def test_a_finished_pod_can_be_hidden() -> None:
    resource = kind("Pod")
    pod = begun(resource, {"spec": {"containers": [{"name": "c", "image": "i"}]}})
    assert "conditions" not in table(resource, [pod], {}, now=NOW)["rows"][0]
    for phase in ("Succeeded", "Failed"):
        conditions = table(resource, [merge(pod, {"status": {"phase": phase}})], {}, now=NOW)["rows"][0]["conditions"]
        assert [(entry["type"], entry["reason"]) for entry in conditions] == [("Completed", phase)]


def test_restarts_say_when_the_last_one_was() -> None:
    resource = kind("Pod")
    finished = (NOW - timedelta(minutes=5)).isoformat()
    container = {"name": "c", "restartCount": 3, "lastState": {"terminated": {"finishedAt": finished}}}
    pod = begun(resource, {"spec": {"containers": [{"name": "c", "image": "i"}]}})
    row = table(resource, [merge(pod, {"status": {"containerStatuses": [container]}})], {}, now=NOW)["rows"][0]
    assert row["cells"][3] == "3 (5m ago)"


def test_an_age_that_is_not_known_is_said_to_be() -> None:
    resource = kind("Namespace")
    for created in (None, "yesterday"):
        namespace = {"metadata": {"name": "n", "creationTimestamp": created}, "status": {"phase": "Active"}}
        assert table(resource, [namespace], {}, now=NOW)["rows"][0]["cells"] == ["n", "Active", "<unknown>"]
