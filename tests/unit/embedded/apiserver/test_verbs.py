from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from unit.embedded.apiserver.calls import CLASSES, LEASES, MAPS, PODS, VOLUMES, Calls, config_map, pod, volume


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_a_new_object_gets_identity_and_time_from_the_server(calls: Calls) -> None:
    sent = config_map("a", k="v")
    sent["metadata"] |= {
        "uid": "x",
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 3,
        "selfLink": "/x",
        "managedFields": [{"manager": "m"}],
        "labels": {},
        "annotations": None,
    }
    meta = calls.made(MAPS, sent).body["metadata"]
    assert meta.pop("uid") not in ("", "x")
    assert meta == {
        "name": "a",
        "namespace": "default",
        "creationTimestamp": "2026-01-01T12:00:00Z",
        "resourceVersion": str(calls.server.store.version),
    }


def test_the_same_seed_makes_the_same_uids_and_names() -> None:
    def make() -> Any:
        return Calls().made(MAPS, {"metadata": {"generateName": "x-"}}).body

    assert make() == make()


def test_generated_names_are_cut_to_63_characters(calls: Calls) -> None:
    name = calls.made(MAPS, {"metadata": {"generateName": "x" * 80}}).body["metadata"]["name"]
    assert len(name) == 63
    assert name.startswith("x" * 58)


def test_a_taken_generated_name_is_generated_again(calls: Calls) -> None:
    names = {calls.made(MAPS, {"metadata": {"generateName": "x-"}}).body["metadata"]["name"] for _ in range(200)}
    assert len(names) == 200


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({}, "metadata.name"),
        ({"name": "A"}, "metadata.name"),
        ({"name": "a" * 254}, "metadata.name"),
        ({"generateName": "_b-"}, "metadata.generateName"),
        ({"name": "a", "labels": {"a b": "c"}}, "metadata.labels"),
        ({"name": "a", "labels": {"a": "c d"}}, "metadata.labels"),
        ({"name": "a", "annotations": {"a b": "c"}}, "metadata.annotations"),
        ({"name": "a", "annotations": {"a": "c" * 300_000}}, "metadata.annotations"),
        ({"name": "a", "finalizers": ["plain"]}, "metadata.finalizers[0]"),
        (
            {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]},
            "metadata.ownerReferences.uid",
        ),
    ],
)
def test_metadata_that_is_not_valid_is_refused(calls: Calls, metadata: dict[str, Any], field: str) -> None:
    reply = calls.create(MAPS, {"metadata": metadata})
    assert (reply.status, reply.reason) == (422, "Invalid")
    assert field in [cause[0] for cause in reply.causes]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"metadata": 3}',
        b'{"metadata": {"name": 3}}',
        b'{"metadata": {"labels": {"a": 1}}}',
        b'{"metadata": {"finalizers": "x"}}',
        b'{"kind": "Pod", "metadata": {"name": "a"}}',
        b'{"apiVersion": "v2", "metadata": {"name": "a"}}',
        b'{"metadata": {"name": "a", "namespace": "other"}}',
    ],
)
def test_a_body_that_is_no_such_object_is_a_bad_request(calls: Calls, body: bytes) -> None:
    reply = calls.create(MAPS, body)
    assert (reply.status, reply.reason) == (400, "BadRequest")


def test_a_body_in_yaml_is_read_and_one_of_another_type_is_not(calls: Calls) -> None:
    yaml = b"metadata: {name: a}\ndata: {k: v}\n"
    assert calls.send("POST", MAPS, yaml, kind="application/yaml").body["data"] == {"k": "v"}
    assert calls.send("POST", MAPS, b"a: [", kind="application/yaml").status == 400
    assert calls.send("POST", MAPS, b"<a/>", kind="application/xml").status == 415


def test_unknown_fields_are_dropped_with_a_warning_unless_asked_otherwise(calls: Calls) -> None:
    sent = {**config_map("a"), "bogus": 1}
    reply = calls.made(MAPS, sent)
    assert "bogus" not in reply.body
    assert 'unknown field \\"bogus\\"' in reply.headers["Warning"]
    assert "Warning" not in calls.made(MAPS, {**sent, "metadata": {"name": "b"}}, fieldValidation="Ignore").headers
    refused = calls.create(MAPS, {**sent, "metadata": {"name": "c"}}, fieldValidation="Strict")
    assert (refused.status, refused.reason) == (400, "BadRequest")
    assert calls.get(f"{MAPS}/c").status == 404


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("dryRun", "Some", "FieldValueNotSupported"),
        ("fieldValidation", "Sometimes", "FieldValueNotSupported"),
        ("fieldManager", "m" * 129, "FieldValueTooLong"),
        ("fieldManager", "a\nb", "FieldValueInvalid"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_every_write(calls: Calls, option: str, value: str, reason: str) -> None:
    before = calls.made(MAPS, config_map("a")).body
    for kind, reply in (
        ("CreateOptions", calls.create(MAPS, config_map("b"), **{option: value})),
        ("UpdateOptions", calls.put(f"{MAPS}/a", config_map("a", k="2"), **{option: value})),
        ("PatchOptions", calls.patch(f"{MAPS}/a", {"data": {"k": "2"}}, **{option: value})),
    ):
        assert (reply.status, reply.reason, reply.causes) == (422, "Invalid", [(option, reason)])
        assert (reply.body["details"]["group"], reply.body["details"]["kind"]) == ("meta.k8s.io", kind)
    assert calls.get(f"{MAPS}/a").body == before
    assert calls.get(f"{MAPS}/b").status == 404


def test_only_an_apply_patch_may_be_forced(calls: Calls) -> None:
    calls.made(MAPS, config_map("a"))
    reply = calls.patch(f"{MAPS}/a", {"data": {"k": "2"}}, force="true")
    assert (reply.status, reply.causes) == (422, [("force", "FieldValueForbidden")])


def test_a_dry_run_answers_and_writes_nothing(calls: Calls) -> None:
    version = calls.server.store.version
    assert calls.made(MAPS, config_map("a"), dryRun="All").body["metadata"]["uid"]
    assert calls.get(f"{MAPS}/a").status == 404
    assert calls.server.store.version == version
    calls.made(MAPS, config_map("a", k="1"))
    assert calls.patch(f"{MAPS}/a", {"data": {"k": "2"}}, dryRun="All").body["data"] == {"k": "2"}
    assert calls.put(f"{MAPS}/a", config_map("a", k="3"), dryRun="All").body["data"] == {"k": "3"}
    assert calls.delete(f"{MAPS}/a", dryRun="All").status == 200
    assert calls.delete(f"{MAPS}/a", {"dryRun": ["All"]}).status == 200
    assert calls.get(f"{MAPS}/a").body["data"] == {"k": "1"}


def test_a_write_that_changes_nothing_raises_no_version(calls: Calls) -> None:
    made = calls.made(VOLUMES, volume("a", labels={"x": "y"}))
    before = calls.server.store.version
    for same in (
        calls.patch(f"{VOLUMES}/a", {"metadata": {"labels": {"x": "y"}}}),
        calls.patch(f"{VOLUMES}/a", {"spec": {"capacity": {"storage": "1024Mi"}}}),
        calls.patch(f"{VOLUMES}/a", {"status": {"phase": "Bound"}}),
        calls.put(f"{VOLUMES}/a", made.body),
    ):
        assert (same.status, same.version) == (200, made.version)
    assert calls.server.store.version == before


def test_of_two_writers_that_read_the_same_version_the_second_is_refused(calls: Calls) -> None:
    read = calls.made(MAPS, config_map("a", k="0")).body
    assert calls.put(f"{MAPS}/a", {**read, "data": {"k": "1"}}).status == 200
    second = calls.put(f"{MAPS}/a", {**read, "data": {"k": "2"}})
    assert (second.status, second.reason) == (409, "Conflict")
    third = calls.patch(f"{MAPS}/a", {"metadata": {"resourceVersion": read["metadata"]["resourceVersion"]}, "data": {}})
    assert third.status == 409
    assert calls.get(f"{MAPS}/a").body["data"] == {"k": "1"}


def test_a_put_for_an_object_that_was_made_anew_is_refused(calls: Calls) -> None:
    old = calls.made(MAPS, config_map("a")).body
    calls.delete(f"{MAPS}/a")
    calls.made(MAPS, config_map("a"))
    del old["metadata"]["resourceVersion"]
    assert calls.put(f"{MAPS}/a", old).status == 409


def test_a_put_without_a_version_is_taken_only_where_the_kind_allows_it(calls: Calls) -> None:
    calls.made(MAPS, config_map("a"))
    assert calls.put(f"{MAPS}/a", config_map("a", k="v")).status == 200
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 1}}
    calls.made(LEASES, lease)
    refused = calls.put(f"{LEASES}/l", lease)
    assert refused.causes == [("metadata.resourceVersion", "FieldValueInvalid")]


def test_identity_cannot_be_patched(calls: Calls) -> None:
    made = calls.made(MAPS, config_map("a"))
    reply = calls.patch(f"{MAPS}/a", {"metadata": {"uid": "other"}})
    assert reply.status in (409, 422)
    reply = calls.patch(f"{MAPS}/a", {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}})
    assert reply.body["metadata"]["creationTimestamp"] == made.body["metadata"]["creationTimestamp"]


def test_name_and_namespace_of_a_patched_object_stay(calls: Calls) -> None:
    calls.made(MAPS, config_map("a"))
    assert calls.patch(f"{MAPS}/a", {"metadata": {"name": "b"}}).status == 400
    assert calls.patch(f"{MAPS}/a", {"metadata": {"namespace": "b"}}).status == 400
    assert calls.patch(f"{MAPS}/a", {"metadata": {"name": None}}).status == 400
    assert calls.patch(f"{MAPS}/a", {"metadata": {"uid": None}}).status == 200
    assert calls.patch(f"{MAPS}/a", {"kind": "Pod"}).causes == [("patch", "FieldValueInvalid")]


def test_a_deletion_cannot_be_begun_or_undone_by_an_update(calls: Calls) -> None:
    time = "2001-01-01T00:00:00Z"
    calls.made(MAPS, config_map("a"))
    reply = calls.patch(f"{MAPS}/a", {"metadata": {"deletionTimestamp": time}})
    assert reply.causes == [("metadata.deletionTimestamp", "FieldValueInvalid")] * 2
    calls.patch(f"{MAPS}/a", {"metadata": {"finalizers": ["a.b/c"]}})
    calls.delete(f"{MAPS}/a")
    undo = calls.patch(f"{MAPS}/a", {"metadata": {"deletionTimestamp": None, "deletionGracePeriodSeconds": None}})
    assert undo.body["metadata"]["deletionTimestamp"] == "2026-01-01T12:00:00Z"


@pytest.mark.parametrize("patch", [[1], "x", 3, None])
@pytest.mark.parametrize("kind", ["merge-patch", "strategic-merge-patch"])
def test_a_patch_that_is_no_object_is_a_bad_request(calls: Calls, patch: Any, kind: str) -> None:
    calls.made(MAPS, config_map("a"))
    assert calls.patch(f"{MAPS}/a", json.dumps(patch).encode(), kind=f"application/{kind}+json").status == 400


def test_generation_counts_changes_of_the_spec_alone(calls: Calls) -> None:
    made = calls.made(PODS, pod("a"))
    assert made.body["metadata"]["generation"] == 1
    assert calls.patch(f"{PODS}/a", {"metadata": {"labels": {"a": "b"}}}).body["metadata"]["generation"] == 1
    assert calls.patch(f"{PODS}/a/status", {"status": {"phase": "Running"}}).body["metadata"]["generation"] == 1
    assert calls.patch(f"{PODS}/a", {"spec": {"activeDeadlineSeconds": 5}}).body["metadata"]["generation"] == 2
    assert (
        calls.patch(f"{PODS}/a", {"metadata": {"generation": 9, "labels": {"a": "c"}}}).body["metadata"]["generation"]
        == 2
    )


def test_a_binding_sets_the_node_once(calls: Calls) -> None:
    calls.made(PODS, pod("a"))
    binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}}
    assert calls.create(f"{PODS}/a/binding", binding, dryRun="All").status == 201
    assert "nodeName" not in calls.get(f"{PODS}/a").body["spec"]
    uid = {"metadata": {"name": "a", "uid": "00000000-0000-0000-0000-000000000000"}, "target": binding["target"]}
    assert calls.create(f"{PODS}/a/binding", uid).status == 409
    assert calls.create(f"{PODS}/a/binding", binding).status == 201
    assert calls.get(f"{PODS}/a").body["spec"]["nodeName"] == "n1"
    assert calls.create(f"{PODS}/a/binding", binding).status == 409
    assert calls.create(f"{PODS}/b/binding", {**binding, "metadata": {"name": "b"}}).status == 404
    assert calls.create(f"{PODS}/a/binding", {"metadata": {"name": "b"}, "target": {}}).status == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", MAPS),
        ("PATCH", MAPS),
        ("POST", f"{MAPS}/a"),
        ("POST", "/api/v1/configmaps"),
        ("DELETE", "/api/v1/configmaps"),
        ("DELETE", "/api/v1/namespaces"),
        ("DELETE", f"{VOLUMES}/a/status"),
        ("GET", f"{PODS}/a/binding"),
        ("PUT", f"{PODS}/a/binding"),
        ("TRACE", MAPS),
        ("POST", "/version"),
        ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_405(calls: Calls, method: str, path: str) -> None:
    reply = calls.send(method, path, {})
    assert (reply.status, reply.reason) == (405, "MethodNotAllowed")


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nopes",
        "/api/v1/namespaces/default/nopes",
        "/api/v1/namespaces/default/persistentvolumes",
        f"{MAPS}/a/status",
        f"{MAPS}/a/status/x",
        "/api/v1/configmaps/a",
    ],
)
def test_a_path_that_is_not_served_is_404(calls: Calls, path: str) -> None:
    assert calls.get(path).status == 404


def test_one_event_is_shown_by_both_groups(calls: Calls) -> None:
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "n",
        "reason": "R",
        "action": "A",
        "type": "Normal",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "a.b/c",
        "reportingInstance": "i",
    }
    new, core = "/apis/events.k8s.io/v1/namespaces/default/events", "/api/v1/namespaces/default/events"
    made = calls.made(new, event)
    shown = calls.get(f"{core}/e").body
    assert (made.body["apiVersion"], shown["apiVersion"]) == ("events.k8s.io/v1", "v1")
    assert (made.body["note"], shown["message"], shown["involvedObject"]["name"]) == ("n", "n", "p")
    assert calls.get(core, fieldSelector="involvedObject.name=p").names == ["e"]
    assert calls.get(new, fieldSelector="regarding.name=p").names == ["e"]
    assert (
        calls.patch(f"{new}/e", {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}}).status
        == 200
    )
    assert calls.get(f"{core}/e").body["series"]["count"] == 2


def test_a_bug_is_answered_with_500_and_shows_no_traceback(calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> datetime:
        raise RuntimeError("out of order")

    calls.now = broken
    reply = calls.create(MAPS, config_map("a"))
    assert (reply.status, reply.reason) == (500, "InternalError")
    assert "out of order" not in json.dumps(reply.body)
    assert "out of order" in caplog.text
    calls.now = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    assert calls.create(MAPS, config_map("a")).status == 201


def test_disabled_admission_leaves_objects_as_they_are_and_unknown_names_are_refused() -> None:
    calls = Calls(disabled_admission=frozenset({"StorageObjectInUseProtection"}))
    assert "finalizers" not in calls.made(VOLUMES, volume("a")).body["metadata"]
    with pytest.raises(ValueError, match="Nonsense"):
        Calls(disabled_admission=frozenset({"Nonsense"}))


def test_access_reviews_allow_everything(calls: Calls) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    review = {"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    assert calls.create(path, review).body["status"] == {"allowed": True}
    assert calls.create(path, {"kind": "Pod"}).status == 400


def test_a_class_becomes_the_default_of_new_claims(calls: Calls) -> None:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    calls.made(CLASSES, {"metadata": {"name": "std", "annotations": default}, "provisioner": "a.b"})
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "c"}, "spec": spec}
    made = calls.made("/api/v1/namespaces/default/persistentvolumeclaims", claim)
    assert made.body["spec"]["storageClassName"] == "std"
