"""Claims under quotas: what is charged, what is refused. Facts were measured on a kube-apiserver 1.36.2."""

from __future__ import annotations

from typing import Any

import pytest

from unit.embedded.apiserver.calls import CLASSES, Calls, Reply
from volplane_embedded.apiserver.claim_quota import measured, usage

NAMESPACE = "/api/v1/namespaces/default"
QUOTAS = f"{NAMESPACE}/resourcequotas"
CLAIMS = f"{NAMESPACE}/persistentvolumeclaims"
OF_GOLD = "gold.storageclass.storage.k8s.io"


def claim(name: str = "c", size: str = "1Gi", storage_class: str = "gold", **spec: Any) -> dict[str, Any]:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": {"name": name}, "spec": {**asked, "storageClassName": storage_class, **spec}}


class Limited(Calls):
    """A server with a class that grows, on which a test plays the quota controller."""

    def __init__(self) -> None:
        super().__init__()
        self.made(CLASSES, {"metadata": {"name": "gold"}, "provisioner": "x", "allowVolumeExpansion": True})

    def limit(self, name: str = "q", hard: dict[str, str] | None = None, **spec: Any) -> None:
        self.made(QUOTAS, {"metadata": {"name": name}, "spec": {"hard": hard or {}, **spec}})
        self.measure()

    def measure(self) -> None:
        claims = self.get(CLAIMS).body["items"]
        for quota in self.get(QUOTAS).body["items"]:
            self.patch(f"{QUOTAS}/{quota['metadata']['name']}/status", {"status": measured(quota, claims, {})})

    def used(self, name: str = "q") -> dict[str, str]:
        found: dict[str, str] = self.get(f"{QUOTAS}/{name}").body["status"]["used"]
        return found

    def storage(self) -> dict[str, str]:
        """What each quota counts."""
        return {quota["metadata"]["name"]: quota["status"]["used"]["requests.storage"] for quota in self._quotas()}

    def _quotas(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.get(QUOTAS).body["items"]
        return listed

    def bound(self, name: str = "c", size: str = "1Gi", **spec: Any) -> None:
        self.made(CLAIMS, claim(name, size, **spec))
        self.status(name, phase="Bound", capacity={"storage": size})

    def status(self, name: str = "c", **status: Any) -> Reply:
        return self.patch(f"{CLAIMS}/{name}/status", {"status": status})

    def grow(self, size: str, **query: str) -> Reply:
        return self.patch(f"{CLAIMS}/c", {"spec": {"resources": {"requests": {"storage": size}}}}, **query)


@pytest.mark.parametrize(
    ("changed", "status", "storage"),
    [
        ({}, {}, "1Gi"),
        ({"size": "1G"}, {}, "1G"),
        ({"size": "1500m"}, {}, "2"),
        ({}, {"allocatedResources": {"storage": "3Gi"}}, "3Gi"),
        ({"size": "4Gi"}, {"allocatedResources": {"storage": "3Gi"}}, "4Gi"),
    ],
    ids=["its request", "in its notation", "whole bytes", "what it was given", "what it asks for"],
)
def test_a_claim_uses_the_larger_of_its_request_and_what_it_was_given(
    changed: dict[str, Any], status: dict[str, Any], storage: str
) -> None:
    found = {name: str(amount) for name, amount in usage({**claim(**changed), "status": status}).items()}
    one = {"persistentvolumeclaims": "1", "count/persistentvolumeclaims": "1", f"{OF_GOLD}/persistentvolumeclaims": "1"}
    assert found == {**one, "requests.storage": storage, f"{OF_GOLD}/requests.storage": storage}


def test_the_old_annotation_names_the_class_too() -> None:
    annotated = claim(storage_class="tin")
    annotated["metadata"]["annotations"] = {"volume.beta.kubernetes.io/storage-class": "gold"}
    assert f"{OF_GOLD}/requests.storage" in usage(annotated)
    assert not any("tin" in name for name in usage(annotated))


def test_claims_are_charged_until_one_does_not_fit() -> None:
    calls = Limited()
    calls.limit(hard={"requests.storage": "3Gi", "persistentvolumeclaims": "2", f"{OF_GOLD}/requests.storage": "2Gi"})
    calls.made(CLAIMS, claim("a"))
    refused = calls.create(CLAIMS, claim("b", "5Gi"))
    assert (refused.status, refused.reason) == (403, "Forbidden")
    assert refused.body["message"] == (
        f'persistentvolumeclaims "b" is forbidden: exceeded quota: q, requested: {OF_GOLD}/requests.storage=5Gi,'
        f"requests.storage=5Gi, used: {OF_GOLD}/requests.storage=1Gi,requests.storage=1Gi, limited:"
        f" {OF_GOLD}/requests.storage=2Gi,requests.storage=3Gi"
    )
    assert refused.body["details"] == {"name": "b", "kind": "persistentvolumeclaims"}
    calls.made(CLAIMS, claim("b", "2Gi", "tin"))
    assert calls.used() == {
        f"{OF_GOLD}/requests.storage": "1Gi",
        "persistentvolumeclaims": "2",
        "requests.storage": "3Gi",
    }
    assert "requested: persistentvolumeclaims=1" in calls.create(CLAIMS, claim("c", "1", "tin")).body["message"]


def test_each_class_has_a_count_of_its_own() -> None:
    calls = Limited()
    calls.limit(hard={f"{OF_GOLD}/persistentvolumeclaims": "1"})
    calls.made(CLAIMS, claim("a"))
    calls.made(CLAIMS, claim("b", storage_class="tin"))
    assert calls.create(CLAIMS, claim("c")).status == 403
    assert calls.create(f"{NAMESPACE}/persistentvolumeclaims", claim("d", storage_class="tin")).status == 201


def test_a_name_that_is_taken_costs_nothing_and_quota_is_asked_first() -> None:
    calls = Limited()
    calls.limit(hard={"requests.storage": "2Gi"})
    calls.made(CLAIMS, claim())
    assert calls.create(CLAIMS, claim()).status == 409
    assert calls.used() == {"requests.storage": "1Gi"}
    assert calls.create(CLAIMS, claim(size="5Gi")).status == 403


def test_a_dry_run_is_checked_and_charges_nothing() -> None:
    calls = Limited()
    calls.limit(hard={"requests.storage": "2Gi"})
    calls.bound()
    assert calls.create(CLAIMS, claim("d"), dryRun="All").status == 201
    assert calls.create(CLAIMS, claim("d", "2Gi"), dryRun="All").status == 403
    assert calls.grow("2Gi", dryRun="All").status == 200
    assert calls.used() == {"requests.storage": "1Gi"}


def test_growth_is_charged_by_the_difference() -> None:
    calls = Limited()
    calls.limit(hard={"requests.storage": "3Gi", "persistentvolumeclaims": "1"})
    calls.bound()
    assert calls.grow("4Gi").body["message"] == (
        'persistentvolumeclaims "c" is forbidden: exceeded quota: q, requested: requests.storage=3Gi, used:'
        " requests.storage=1Gi, limited: requests.storage=3Gi"
    )
    assert calls.get(f"{CLAIMS}/c").body["spec"]["resources"]["requests"] == {"storage": "1Gi"}
    assert calls.grow("1536Mi").status == 200
    assert calls.used() == {"persistentvolumeclaims": "1", "requests.storage": "1536Mi"}


def test_a_growth_that_is_taken_back_counts_until_nothing_is_allocated_for_it() -> None:
    calls = Limited()
    calls.limit(hard={"requests.storage": "3Gi"})
    calls.bound()
    calls.grow("3Gi")
    calls.status(
        allocatedResources={"storage": "3Gi"}, allocatedResourceStatuses={"storage": "ControllerResizeInProgress"}
    )
    assert calls.grow("1500Mi").status == 200
    calls.measure()
    assert calls.used() == {"requests.storage": "3Gi"}
    assert calls.grow("3Gi").status == 200, "it is paid for"
    calls.grow("1500Mi")
    calls.status(allocatedResources={"storage": "1500Mi"})
    calls.measure()
    assert calls.used() == {"requests.storage": "1500Mi"}


def test_what_a_controller_writes_is_charged_and_never_refused() -> None:
    calls = Limited()
    calls.bound()
    calls.limit(hard={"requests.storage": "1Mi", "persistentvolumeclaims": "0"})
    assert calls.status(allocatedResources={"storage": "9Gi"}).status == 200
    assert calls.used() == {"persistentvolumeclaims": "1", "requests.storage": "9Gi"}
    changed = {"metadata": {"annotations": {"a": "b"}, "finalizers": ["kubernetes.io/pvc-protection"]}}
    assert calls.patch(f"{CLAIMS}/c", changed).status == 200
    assert calls.send("DELETE", f"{CLAIMS}/c").status == 200
    assert calls.patch(f"{CLAIMS}/c", {"metadata": {"finalizers": None}}).status == 200
    assert calls.get(f"{CLAIMS}/c").status == 404


def test_nothing_is_limited_before_somebody_has_measured() -> None:
    calls = Limited()
    calls.made(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"persistentvolumeclaims": "0"}}})
    calls.made(CLAIMS, claim())
    assert calls.get(f"{QUOTAS}/q").body["status"] == {}


def test_a_limit_whose_use_is_unknown_refuses_every_claim() -> None:
    calls = Limited()
    calls.limit(hard={"requests.storage": "3Gi", "persistentvolumeclaims": "1"})
    calls.patch(f"{QUOTAS}/q/status", {"status": {"used": {"requests.storage": None}}})
    assert calls.create(CLAIMS, claim()).body["message"] == (
        'persistentvolumeclaims "c" is forbidden: status unknown for quota: q, resources:'
        " persistentvolumeclaims,requests.storage"
    )


def test_another_namespaces_quota_and_a_disabled_plugin_limit_nothing() -> None:
    calls = Limited()
    calls.made("/api/v1/namespaces", {"metadata": {"name": "team"}})
    calls.limit(hard={"persistentvolumeclaims": "0"})
    assert calls.create("/api/v1/namespaces/team/persistentvolumeclaims", claim()).status == 201
    free = Calls(disabled_admission=frozenset({"ResourceQuota"}))
    free.made(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {"persistentvolumeclaims": "0"}}})
    status = {"hard": {"persistentvolumeclaims": "0"}, "used": {"persistentvolumeclaims": "0"}}
    free.patch(f"{QUOTAS}/q/status", {"status": status})
    assert free.create(CLAIMS, claim()).status == 201


def test_of_two_quotas_both_must_have_room_and_a_refusal_charges_neither() -> None:
    calls = Limited()
    calls.limit("a", {"requests.storage": "9Gi"})
    calls.limit("b", {"requests.storage": "1Gi"})
    assert "exceeded quota: b" in calls.create(CLAIMS, claim(size="2Gi")).body["message"]
    assert calls.storage() == {"a": "0", "b": "0"}
    calls.made(CLAIMS, claim())
    assert calls.storage() == {"a": "1Gi", "b": "1Gi"}


def _scoped(calls: Limited, limit: str = "3Gi") -> None:
    """A quota for each way to select claims by their VolumeAttributesClass."""
    hard = {"requests.storage": limit}
    for name, operator, values in (
        ("dne", "DoesNotExist", []),
        ("exists", "Exists", []),
        ("gold", "In", ["gold"]),
        ("not-gold", "NotIn", ["gold"]),
        ("silver", "In", ["silver"]),
    ):
        requirement = {"scopeName": "VolumeAttributesClass", "operator": operator, "values": values}
        calls.limit(name, hard, scopeSelector={"matchExpressions": [requirement]})
    calls.limit("scope", hard, scopes=["VolumeAttributesClass"])


@pytest.mark.parametrize(
    ("named", "counted"),
    [
        (None, {"dne", "not-gold"}),
        ("gold", {"exists", "gold", "scope"}),
        ("silver", {"exists", "not-gold", "scope", "silver"}),
    ],
)
def test_a_quota_with_a_scope_counts_the_claims_of_its_classes(named: str | None, counted: set[str]) -> None:
    calls = Limited()
    _scoped(calls)
    calls.made(CLAIMS, claim(volumeAttributesClassName=named))
    assert {name for name, used in calls.storage().items() if used == "1Gi"} == counted


def test_a_claim_that_changes_its_class_counts_for_both_and_the_way_back_is_always_open() -> None:
    calls = Limited()
    _scoped(calls)
    calls.bound(volumeAttributesClassName="silver")
    calls.status(currentVolumeAttributesClassName="silver")
    change = {"spec": {"volumeAttributesClassName": "gold"}}
    assert calls.patch(f"{CLAIMS}/c", change).status == 200
    both = {"dne": "0", "exists": "1Gi", "gold": "1Gi", "not-gold": "1Gi", "scope": "1Gi", "silver": "1Gi"}
    assert calls.storage() == both
    calls.status(modifyVolumeStatus={"targetVolumeAttributesClassName": "gold", "status": "Infeasible"})
    for quota in ("exists", "not-gold", "scope", "silver", "gold"):
        calls.patch(f"{QUOTAS}/{quota}", {"spec": {"hard": {"requests.storage": "1"}}})
    calls.measure()
    assert calls.patch(f"{CLAIMS}/c", {"spec": {"volumeAttributesClassName": "silver"}}).status == 200
    calls.measure()
    assert calls.storage() == both, "its volume may still become gold"
    calls.status(modifyVolumeStatus=None)
    calls.measure()
    assert calls.storage()["gold"] == "0"
    assert calls.storage()["silver"] == "1Gi"


def test_a_change_to_a_class_without_room_is_refused() -> None:
    calls = Limited()
    calls.bound(size="2Gi", volumeAttributesClassName="silver")
    calls.status(currentVolumeAttributesClassName="silver")
    _scoped(calls)
    calls.patch(f"{QUOTAS}/gold", {"spec": {"hard": {"requests.storage": "1Gi"}}})
    calls.measure()
    assert calls.patch(f"{CLAIMS}/c", {"spec": {"volumeAttributesClassName": "gold"}}).body["message"] == (
        'persistentvolumeclaims "c" is forbidden: exceeded quota: gold, requested: requests.storage=2Gi, used:'
        " requests.storage=0, limited: requests.storage=1Gi"
    )


def test_a_quota_of_pods_scopes_counts_no_claim() -> None:
    calls = Limited()
    calls.limit(hard={"count/persistentvolumeclaims": "0"}, scopes=["BestEffort"])
    calls.made(CLAIMS, claim())
    assert calls.used() == {"count/persistentvolumeclaims": "0"}
