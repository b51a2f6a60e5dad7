"""ResourceQuotas: what the server takes and refuses. Messages are those of a kube-apiserver 1.36.2."""

from __future__ import annotations

from typing import Any

import pytest

from unit.embedded.apiserver.calls import Calls

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
STORAGE = {"requests.storage": "1Gi"}


def quota(name: str = "q", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


def selecting(operator: str, *values: str, scope: str = "VolumeAttributesClass") -> dict[str, Any]:
    requirement: dict[str, Any] = {"scopeName": scope, "operator": operator}
    return {"matchExpressions": [requirement | ({"values": list(values)} if values else {})]}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"hard": {}, "scopeSelector": {}},
        {"hard": {"count/persistentvolumeclaims": "1"}, "scopes": ["BestEffort"]},
        {"hard": STORAGE, "scopes": ["VolumeAttributesClass", "VolumeAttributesClass"]},
        {"hard": STORAGE, "scopes": ["VolumeAttributesClass"], "scopeSelector": selecting("In", "gold")},
        {"hard": {"gold.storageclass.storage.k8s.io/requests.storage": "1"}, "scopeSelector": selecting("Exists")},
        {"hard": {"persistentvolumeclaims": 2}, "scopeSelector": selecting("DoesNotExist")},
        {"hard": {"requests.hugepages-2Mi": "1", "example.com/gpu": "1", "requests.example.com/gpu": "1500m"}},
        {"hard": {"pods": "1"}, "scopes": ["CrossNamespacePodAffinity"]},
    ],
)
def test_what_a_real_server_takes_is_taken(spec: dict[str, Any]) -> None:
    made = Calls().create(QUOTAS, quota(**spec))
    assert (made.status, made.body["status"]) == (201, {})


SCOPE = "VolumeAttributesClass"
SELECTOR = "spec.scopeSelector.matchExpressions"
UNSUITABLE = "unsupported scope applied to resource"
NO_SECRETS = (
    f'Invalid value: {{"MatchExpressions":[{{"ScopeName":"{SCOPE}","Operator":"Exists","Values":null}}]}}: {UNSUITABLE}'
)
MUST_EXIST = (
    "Invalid value: \"In\": must be 'Exists' when scope is any of ResourceQuotaScopeTerminating,"
    " ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or"
    " ResourceQuotaScopeCrossNamespacePodAffinity"
)


@pytest.mark.parametrize(
    ("spec", "messages"),
    [
        (
            {"hard": {"bogus": "-1"}},
            [
                'Invalid value: "bogus": must be a standard resource type or fully qualified',
                'Invalid value: "bogus": must be a standard resource for quota',
                'Invalid value: "-1": must be greater than or equal to 0',
            ],
        ),
        ({"hard": {"storage": "1"}}, ['Invalid value: "storage": must be a standard resource for quota']),
        ({"hard": {"requests.storage": "-1.5"}}, ['Invalid value: "-1500m": must be greater than or equal to 0']),
        ({"hard": {"services.nodeports": "1500m"}}, ['Invalid value: "1500m": must be an integer']),
        ({"hard": {"persistentvolumeclaims": "1500m"}}, ['Invalid value: "1500m": must be an integer']),
        (
            {"hard": {"g.storageclass.storage.k8s.io/persistentvolumeclaims": "1.5"}},
            ['Invalid value: "1500m": must be an integer'],
        ),
        ({"hard": STORAGE, "scopes": ["Bogus"]}, ['Invalid value: ["Bogus"]: unsupported scope']),
        ({"hard": STORAGE, "scopes": ["BestEffort"]}, [f'Invalid value: ["BestEffort"]: {UNSUITABLE}']),
        (
            {"hard": {"pods": "1"}, "scopes": ["Terminating", "NotTerminating"]},
            ['Invalid value: ["Terminating","NotTerminating"]: conflicting scopes'],
        ),
        (
            {"hard": {"secrets": "1"}, "scopeSelector": selecting("Exists")},
            [
                NO_SECRETS,
            ],
        ),
        (
            {"hard": STORAGE, "scopeSelector": selecting("In")},
            [
                "Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
            ],
        ),
        (
            {"hard": STORAGE, "scopeSelector": selecting("DoesNotExist", "gold")},
            [
                (
                    "Invalid value: [\"gold\"]: must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope"
                    " selector"
                ),
            ],
        ),
        (
            {"hard": STORAGE, "scopeSelector": selecting("Gt", "gold")},
            ['Invalid value: "Gt": not a valid selector operator'],
        ),
        (
            {"hard": STORAGE, "scopeSelector": selecting("Exists", scope="Bogus")},
            ['Invalid value: "Bogus": unsupported scope'],
        ),
        (
            {"hard": {"pods": "1"}, "scopeSelector": selecting("In", "x", scope="BestEffort")},
            [
                MUST_EXIST,
            ],
        ),
    ],
)
def test_what_a_real_server_refuses_is_refused_in_its_words(spec: dict[str, Any], messages: list[str]) -> None:
    refused = Calls().create(QUOTAS, quota(**spec))
    assert refused.status == 422
    assert [cause["message"] for cause in refused.body["details"]["causes"]] == messages


def test_a_class_that_no_selector_can_name_is_refused_before_it_blocks_every_claim() -> None:
    refused = Calls().create(QUOTAS, quota(hard=STORAGE, scopeSelector=selecting("NotIn", "gold", "Not A Label!")))
    assert refused.causes == [(f"{SELECTOR}.values", "FieldValueInvalid")]


def test_scopes_cannot_be_changed_but_hard_and_the_selector_can() -> None:
    calls = Calls()
    calls.create(QUOTAS, quota(hard=STORAGE, scopes=["VolumeAttributesClass"], scopeSelector=selecting("Exists")))
    assert calls.patch(f"{QUOTAS}/q", {"spec": {"scopes": None}}).body["message"] == (
        'ResourceQuota "q" is invalid: spec.scopes: Invalid value: null: field is immutable'
    )
    twice = {"scopes": ["VolumeAttributesClass", "VolumeAttributesClass"]}
    other = {"hard": {"requests.storage": "1024Mi"}, "scopeSelector": selecting("In", "gold")}
    changed = calls.patch(f"{QUOTAS}/q", {"spec": {**twice, **other}})
    assert (changed.status, changed.body["spec"]) == (
        200,
        {"hard": STORAGE, **twice, "scopeSelector": other["scopeSelector"]},
    )


def test_the_status_is_written_by_its_own_endpoint_only() -> None:
    calls = Calls()
    calls.create(QUOTAS, quota(hard=STORAGE) | {"status": {"hard": STORAGE}})
    assert calls.patch(f"{QUOTAS}/q", {"status": {"hard": STORAGE}}).body["status"] == {}
    both = {"spec": {"hard": {}}, "status": {"hard": STORAGE, "used": {"requests.storage": "1024Ki"}}}
    written = calls.patch(f"{QUOTAS}/q/status", both).body
    assert (written["spec"], written["status"]["used"]) == ({"hard": STORAGE}, {"requests.storage": "1Mi"})
    wrong = calls.patch(f"{QUOTAS}/q/status", {"status": {"used": {"requests.storage": "-1"}}})
    assert wrong.causes == [("status.used[requests.storage]", "FieldValueInvalid")]


def test_what_is_not_enforced_is_said_to_who_writes_it() -> None:
    calls = Calls()
    made = calls.create(QUOTAS, quota(hard={"pods": "1", "cpu": "2", **STORAGE}))
    assert made.headers["Warning"].startswith(
        '299 - "spec.hard: cpu, pods not enforced: this server enforces quotas of '
    )
    assert "Warning" in calls.patch(f"{QUOTAS}/q", {"metadata": {"labels": {"a": "b"}}}).headers
    assert "Warning" not in calls.patch(f"{QUOTAS}/q", {"spec": {"hard": {"pods": None, "cpu": None}}}).headers
    assert "Warning" not in calls.patch(f"{QUOTAS}/q/status", {"status": {"hard": STORAGE}}).headers


def test_a_table_has_used_and_hard_amounts() -> None:
    calls = Calls()
    calls.create(QUOTAS, quota(hard=STORAGE))
    hard = {"requests.storage": "1Gi", "persistentvolumeclaims": "2", "limits.cpu": "1"}
    calls.patch(f"{QUOTAS}/q/status", {"status": {"hard": hard, "used": {"persistentvolumeclaims": "1"}}})
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    answer = calls.server.handle("GET", QUOTAS, {}, accept, b"")
    assert b'"persistentvolumeclaims: 1/2, requests.storage: 0/1Gi","limits.cpu: 0/1"' in answer.body
