from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from unit.embedded.apiserver.calls import CLASSES, LEASES, MAPS, PODS, VOLUMES, Calls, config_map, pod, volume

FINALIZER = "example.com/hold"


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_what_nothing_holds_is_gone_at_once(calls: Calls) -> None:
    made = calls.made(CLASSES, {"metadata": {"name": "a"}, "provisioner": "a.b"})
    reply = calls.delete(f"{CLASSES}/a")
    assert (reply.status, reply.body["kind"]) == (200, "StorageClass")
    assert int(reply.version) == int(made.version) + 1
    assert calls.get(f"{CLASSES}/a").status == 404


def test_some_kinds_answer_a_finished_deletion_with_a_status(calls: Calls) -> None:
    made = calls.made(LEASES, {"metadata": {"name": "a"}})
    reply = calls.delete(f"{LEASES}/a").body
    uid = made.body["metadata"]["uid"]
    details = {"name": "a", "group": "coordination.k8s.io", "kind": "leases", "uid": uid}
    assert (reply["kind"], reply["status"], reply["details"]) == ("Status", "Success", details)


def test_a_finalizer_keeps_the_object_until_the_last_one_is_removed(calls: Calls) -> None:
    calls.made(MAPS, {"metadata": {"name": "a", "finalizers": [FINALIZER, "example.com/other"]}})
    begun = calls.delete(f"{MAPS}/a")
    meta = begun.body["metadata"]
    assert (meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"]) == ("2026-01-01T12:00:00Z", 0)
    again = calls.delete(f"{MAPS}/a")
    assert (again.status, again.version) == (200, begun.version)
    assert calls.patch(f"{MAPS}/a", {"metadata": {"finalizers": [FINALIZER]}}).status == 200
    refused = calls.patch(f"{MAPS}/a", {"metadata": {"finalizers": [FINALIZER, "example.com/new"]}})
    assert refused.causes == [("metadata.finalizers", "FieldValueForbidden")] * 2
    last = calls.patch(f"{MAPS}/a", {"metadata": {"finalizers": []}})
    assert (last.status, last.body["metadata"].get("finalizers")) == (200, None)
    assert calls.get(f"{MAPS}/a").status == 404


def test_removing_a_finalizer_of_a_living_object_deletes_nothing(calls: Calls) -> None:
    calls.made(MAPS, {"metadata": {"name": "a", "finalizers": [FINALIZER]}})
    calls.patch(f"{MAPS}/a", {"metadata": {"finalizers": None}})
    assert calls.get(f"{MAPS}/a").status == 200


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_a_precondition_that_does_not_hold_refuses_the_deletion(calls: Calls, field: str) -> None:
    meta = calls.made(MAPS, config_map("a")).body["metadata"]
    refused = calls.delete(f"{MAPS}/a", {"preconditions": {field: "7777"}})
    assert (refused.status, refused.reason) == (409, "Conflict")
    assert calls.delete(f"{MAPS}/a", {"preconditions": {field: meta[field]}}).status == 200


def test_a_precondition_on_a_version_sees_every_write_between(calls: Calls) -> None:
    read = calls.made(VOLUMES, volume("a"))
    calls.patch(f"{VOLUMES}/a", {"spec": {"claimRef": {"namespace": "default", "name": "c"}}})
    assert calls.delete(f"{VOLUMES}/a", {"preconditions": {"resourceVersion": read.version}}).status == 409


@pytest.mark.parametrize("body", [b"[", b"[]", b'{"kind": "Pod"}', b'{"gracePeriodSeconds": "x"}'])
def test_delete_options_that_cannot_be_read_are_refused(calls: Calls, body: bytes) -> None:
    calls.made(MAPS, config_map("a"))
    assert calls.delete(f"{MAPS}/a", body).status == 400
    assert calls.get(f"{MAPS}/a").status == 200


@pytest.mark.parametrize(
    ("options", "field", "reason"),
    [
        ({"dryRun": ["Some"]}, "dryRun", "FieldValueNotSupported"),
        ({"propagationPolicy": "Sometimes"}, "propagationPolicy", "FieldValueNotSupported"),
        ({"propagationPolicy": "Orphan", "orphanDependents": True}, "propagationPolicy", "FieldValueInvalid"),
    ],
)
def test_delete_options_that_cannot_be_are_refused_in_body_and_query(
    calls: Calls, options: dict[str, Any], field: str, reason: str
) -> None:
    calls.made(MAPS, config_map("a"))
    query = {name: value[0] if isinstance(value, list) else str(value) for name, value in options.items()}
    for reply in (calls.delete(f"{MAPS}/a", options), calls.delete(f"{MAPS}/a", **query)):
        assert (reply.status, reply.reason, reply.causes) == (422, "Invalid", [(field, reason)])
        assert reply.body["details"]["kind"] == "DeleteOptions"
    assert calls.get(f"{MAPS}/a").status == 200


def bound_pod(calls: Calls) -> None:
    calls.made(PODS, pod("a", nodeName="n1"))


def test_a_pod_on_a_node_ends_gracefully_and_a_second_deletion_can_only_hurry_it(calls: Calls) -> None:
    bound_pod(calls)
    begun = calls.delete(f"{PODS}/a")
    meta = begun.body["metadata"]
    assert (meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"]) == ("2026-01-01T12:00:30Z", 30)
    assert meta["generation"] == 2
    assert calls.delete(f"{PODS}/a", {"gracePeriodSeconds": 60}).version == begun.version
    assert calls.delete(f"{PODS}/a").version == begun.version
    calls.now = lambda: datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)
    sooner = calls.delete(f"{PODS}/a", {"gracePeriodSeconds": 5}).body["metadata"]
    assert (sooner["deletionTimestamp"], sooner["deletionGracePeriodSeconds"]) == ("2026-01-01T12:00:05Z", 5)
    assert calls.delete(f"{PODS}/a", {"gracePeriodSeconds": 0}).status == 200
    assert calls.get(f"{PODS}/a").status == 404


def test_the_grace_period_may_stand_in_the_query(calls: Calls) -> None:
    bound_pod(calls)
    calls.delete(f"{PODS}/a", gracePeriodSeconds="0")
    assert calls.get(f"{PODS}/a").status == 404


def test_a_pod_with_a_finalizer_outlives_its_grace_period(calls: Calls) -> None:
    calls.made(PODS, {**pod("a", nodeName="n1"), "metadata": {"name": "a", "finalizers": [FINALIZER]}})
    calls.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert calls.get(f"{PODS}/a").body["metadata"]["deletionGracePeriodSeconds"] == 0
    calls.patch(f"{PODS}/a", {"metadata": {"finalizers": None}})
    assert calls.get(f"{PODS}/a").status == 404


def test_finalizers_removed_during_the_grace_period_do_not_end_it(calls: Calls) -> None:
    calls.made(PODS, {**pod("a", nodeName="n1"), "metadata": {"name": "a", "finalizers": [FINALIZER]}})
    calls.delete(f"{PODS}/a")
    calls.patch(f"{PODS}/a", {"metadata": {"finalizers": None}})
    assert calls.get(f"{PODS}/a").status == 200
    calls.delete(f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert calls.get(f"{PODS}/a").status == 404


def test_a_collection_is_deleted_by_selector_and_shown_as_it_was(calls: Calls) -> None:
    for name, tier in (("a", "x"), ("b", "y"), ("c", "x")):
        calls.made(MAPS, {"metadata": {"name": name, "labels": {"tier": tier}}})
    calls.patch(f"{MAPS}/c", {"metadata": {"finalizers": [FINALIZER]}})
    reply = calls.delete(MAPS, labelSelector="tier=x")
    assert (reply.body["kind"], reply.names) == ("ConfigMapList", ["a", "c"])
    assert "deletionTimestamp" not in reply.body["items"][1]["metadata"]
    assert calls.get(MAPS).names == ["b", "c"]
    assert calls.delete(MAPS, fieldSelector="metadata.name=b").names == ["b"]


def test_a_collection_of_one_namespace_leaves_the_others_alone(calls: Calls) -> None:
    other = "/api/v1/namespaces/kube-system/configmaps"
    calls.made(MAPS, config_map("a"))
    calls.made(other, config_map("a"))
    calls.delete(MAPS)
    assert (calls.get(MAPS).names, calls.get(other).names) == ([], ["a"])
