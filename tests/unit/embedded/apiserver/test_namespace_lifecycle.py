from __future__ import annotations

import pytest

from unit.embedded.apiserver.calls import Calls, config_map, pod
from volplane_embedded.apiserver.store import Store

SPACES = "/api/v1/namespaces"
TEAM = f"{SPACES}/team"
FINALIZER = "example.com/hold"


@pytest.fixture
def calls() -> Calls:
    found = Calls()
    found.made(SPACES, {"metadata": {"name": "team"}})
    return found


def test_a_new_server_has_the_namespaces_of_a_cluster() -> None:
    assert Calls().get(SPACES).names == ["default", "kube-node-lease", "kube-public", "kube-system"]


def test_nothing_is_made_in_a_namespace_that_is_not_there(calls: Calls) -> None:
    refused = calls.create(f"{SPACES}/nowhere/configmaps", config_map("a"))
    assert (refused.status, refused.body["details"]["kind"]) == (404, "namespaces")


def test_a_namespace_goes_with_all_that_is_in_it(calls: Calls) -> None:
    calls.made(f"{TEAM}/configmaps", config_map("a"))
    calls.made(f"{TEAM}/pods", pod("p"))
    calls.made(f"{SPACES}/default/configmaps", config_map("a"))
    reply = calls.delete(TEAM)
    assert (reply.status, reply.body["status"]["phase"]) == (200, "Terminating")
    assert calls.get(TEAM).status == 404
    assert calls.get("/api/v1/configmaps").names == ["a"]
    assert calls.get("/api/v1/pods").names == []


def test_a_namespace_waits_for_what_has_finalizers_and_takes_nothing_new(calls: Calls) -> None:
    calls.made(f"{TEAM}/configmaps", {"metadata": {"name": "a", "finalizers": [FINALIZER]}})
    calls.delete(TEAM)
    assert calls.get(TEAM).body["status"]["phase"] == "Terminating"
    assert "deletionTimestamp" in calls.get(f"{TEAM}/configmaps/a").body["metadata"]
    refused = calls.create(f"{TEAM}/configmaps", config_map("b"))
    assert (refused.status, refused.reason) == (403, "Forbidden")
    assert refused.causes == [("metadata.namespace", "NamespaceTerminating")]
    calls.patch(f"{TEAM}/configmaps/a", {"metadata": {"finalizers": None}})
    assert calls.get(TEAM).status == 404


def test_a_namespace_waits_for_pods_that_still_end(calls: Calls) -> None:
    calls.made(f"{TEAM}/pods", pod("p", nodeName="n1"))
    calls.delete(TEAM)
    assert calls.get(TEAM).status == 200
    calls.delete(f"{TEAM}/pods/p", {"gracePeriodSeconds": 0})
    assert calls.get(TEAM).status == 404


def test_a_namespace_with_a_finalizer_of_its_own_waits_for_that_too(calls: Calls) -> None:
    calls.patch(TEAM, {"metadata": {"finalizers": [FINALIZER]}})
    calls.delete(TEAM)
    assert calls.get(TEAM).status == 200
    calls.patch(TEAM, {"metadata": {"finalizers": None}})
    assert calls.get(TEAM).status == 404


def test_an_empty_terminating_namespace_answers_a_second_deletion(calls: Calls) -> None:
    calls.patch(TEAM, {"metadata": {"finalizers": [FINALIZER]}})
    calls.delete(TEAM)
    assert calls.delete(TEAM).status == 200


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
def test_a_cluster_keeps_its_own_namespaces(calls: Calls, name: str) -> None:
    refused = calls.delete(f"{SPACES}/{name}")
    assert (refused.status, refused.reason) == (403, "Forbidden")


def test_a_namespace_may_be_made_again(calls: Calls) -> None:
    first = calls.get(TEAM).body["metadata"]["uid"]
    calls.delete(TEAM)
    assert calls.made(SPACES, {"metadata": {"name": "team"}}).body["metadata"]["uid"] != first


def test_a_deletion_that_a_crash_interrupted_goes_on_at_the_start() -> None:
    store = Store()
    before = Calls(store=store)
    before.made(SPACES, {"metadata": {"name": "team"}})
    before.made(f"{TEAM}/configmaps", config_map("a"))
    stored = store.get("namespaces", "team")
    assert stored is not None
    half = stored.decode()
    half["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    store.put("namespaces", "team", half)
    after = Calls(store=store)
    assert (after.get(TEAM).status, after.get("/api/v1/configmaps").names) == (404, [])


def test_the_name_of_a_namespace_is_a_label(calls: Calls) -> None:
    assert calls.create(SPACES, {"metadata": {"name": "a.b"}}).causes == [("metadata.name", "FieldValueInvalid")]
