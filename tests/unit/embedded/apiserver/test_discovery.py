from __future__ import annotations

from typing import Any

import pytest

from volplane_embedded.apiserver.discovery import AGGREGATED, Discovery
from volplane_embedded.apiserver.kinds import RESOURCES

DISCOVERY = Discovery(RESOURCES, "127.0.0.1:6443")
KUBECTL = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)


def document(path: str, accept: str = "") -> Any:
    found = DISCOVERY.document(path, accept)
    return None if found is None else found[0]


def test_the_core_group_is_told_by_its_version() -> None:
    assert document("/api") == {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:6443"}],
    }


def test_the_other_groups_are_listed() -> None:
    names = {group["name"] for group in document("/apis")["groups"]}
    assert names == {
        "apiextensions.k8s.io",
        "apps",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "coordination.k8s.io",
        "events.k8s.io",
        "storage.k8s.io",
    }
    assert document("/apis/storage.k8s.io")["preferredVersion"] == {
        "groupVersion": "storage.k8s.io/v1",
        "version": "v1",
    }


@pytest.mark.parametrize("path", ["/apis/nope.io", "/apis/storage.k8s.io/v2", "/api/v2", "/", "/nope", "/api/v1/pods"])
def test_there_is_nothing_at_other_paths(path: str) -> None:
    assert document(path) is None


def test_resources_are_listed_with_their_subresources() -> None:
    listed = {entry["name"]: entry for entry in document("/api/v1")["resources"]}
    assert listed["persistentvolumes"] == {
        "name": "persistentvolumes",
        "singularName": "persistentvolume",
        "namespaced": False,
        "kind": "PersistentVolume",
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        "shortNames": ["pv"],
        "storageVersionHash": "HN/zwEC+JgM=",
    }
    assert listed["pods/binding"]["kind"] == "Binding"
    assert listed["pods/log"]["verbs"] == ["get"]
    assert listed["persistentvolumeclaims/status"]["verbs"] == ["get", "patch", "update"]
    assert "deletecollection" not in listed["namespaces"]["verbs"]


def test_access_reviews_are_served_too() -> None:
    names = [entry["name"] for entry in document("/apis/authorization.k8s.io/v1")["resources"]]
    assert names == ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews"]


@pytest.mark.parametrize(
    ("accept", "kind", "content_type"),
    [
        ("", "APIGroupList", "application/json"),
        ("application/json", "APIGroupList", "application/json"),
        ("*/*", "APIGroupList", "application/json"),
        (KUBECTL, "APIGroupDiscoveryList", AGGREGATED.format(version="v2")),
        (KUBECTL.split(",", 1)[1], "APIGroupDiscoveryList", AGGREGATED.format(version="v2beta1")),
        ("application/json, " + KUBECTL, "APIGroupList", "application/json"),
    ],
)
def test_aggregated_discovery_is_given_to_who_prefers_it(accept: str, kind: str, content_type: str) -> None:
    found = DISCOVERY.document("/apis", accept)
    assert found is not None
    assert (found[0]["kind"], found[1]) == (kind, content_type)


def test_aggregated_discovery_tells_all_at_once() -> None:
    core = document("/api", KUBECTL)["items"]
    assert [item["metadata"] for item in core] == [{}]
    pods = next(entry for entry in core[0]["versions"][0]["resources"] if entry["resource"] == "pods")
    assert pods["scope"] == "Namespaced"
    assert pods["categories"] == ["all"]
    subresources = [entry["subresource"] for entry in pods["subresources"]]
    assert subresources == ["binding", "eviction", "exec", "log", "portforward", "status"]
    groups = {item["metadata"]["name"] for item in document("/apis", KUBECTL)["items"]}
    assert "storage.k8s.io" in groups


def test_the_version_is_one_kubectl_understands() -> None:
    version = document("/version")
    assert (version["major"], version["minor"]) == ("1", "36")
    assert version["gitVersion"].startswith("v1.36.")
