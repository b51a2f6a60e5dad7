"""Kinds that CustomResourceDefinitions define: snapshots and their contents, classes and groups."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.embedded.apiserver.calls import Calls
from volplane_embedded.apiserver.cel import compiled
from volplane_embedded.apiserver.custom_kinds import definitions
from volplane_embedded.apiserver.requests import Answer

JSON_PATCH = "application/json-patch+json"
PREFIX = "/apis/snapshot.storage.k8s.io/v1"
SNAPSHOTS = f"{PREFIX}/namespaces/default/volumesnapshots"
CONTENTS = f"{PREFIX}/volumesnapshotcontents"
CLASSES = f"{PREFIX}/volumesnapshotclasses"
GROUP_PREFIX = "/apis/groupsnapshot.storage.k8s.io/v1"
GROUPS = f"{GROUP_PREFIX}/namespaces/default/volumegroupsnapshots"
GROUP_CONTENTS = f"{GROUP_PREFIX}/volumegroupsnapshotcontents"
GROUP_CLASSES = f"{GROUP_PREFIX}/volumegroupsnapshotclasses"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
REST = ("<nil>", "FieldValueInvalid")
"""The cause for rules that were not checked, because types are wrong."""


def snapshot(name: str = "s", **spec: Any) -> dict[str, Any]:
    spec.setdefault("source", {"persistentVolumeClaimName": "c"})
    return {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": spec,
    }


def content(name: str = "v", **spec: Any) -> dict[str, Any]:
    whole = {
        "volumeSnapshotRef": {"name": "s", "namespace": "default"},
        "deletionPolicy": "Delete",
        "driver": "d.example.com",
        "source": {"volumeHandle": "h"},
        **spec,
    }
    kind = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent"}
    return {**kind, "metadata": {"name": name}, "spec": whole}


def snapshot_class(kind: str = "VolumeSnapshotClass", **fields: Any) -> dict[str, Any]:
    group = "groupsnapshot.storage.k8s.io/v1" if "Group" in kind else "snapshot.storage.k8s.io/v1"
    fields = {"driver": "d.example.com", "deletionPolicy": "Delete", **fields}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "k"}, **fields}


def group(name: str = "g", **spec: Any) -> dict[str, Any]:
    spec.setdefault("source", {"selector": {"matchLabels": {"app": "db"}}})
    kind = {"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def group_content(**spec: Any) -> dict[str, Any]:
    whole = {
        "volumeGroupSnapshotRef": {"name": "g", "namespace": "default"},
        "deletionPolicy": "Delete",
        "driver": "d.example.com",
        "source": {"volumeHandles": ["a", "b"]},
        **spec,
    }
    kind = {"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent"}
    return {**kind, "metadata": {"name": "gc"}, "spec": whole}


@pytest.fixture
def calls() -> Calls:
    return Calls()


def made(calls: Calls, path: str, body: dict[str, Any]) -> str:
    """Create an object; its path."""
    reply = calls.create(path, body)
    assert reply.status == 201, reply.body
    return f"{path}/{body['metadata']['name']}"


# --- types and rules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({"source": {}}, [("spec.source", "FieldValueInvalid")]),
        ({"source": None}, [("spec.source", "FieldValueRequired"), REST]),
        ({"source": "c"}, [("spec.source", "FieldValueTypeInvalid"), REST]),
        ({"source": []}, [("spec.source", "FieldValueTypeInvalid"), REST]),
        (
            {"source": {"persistentVolumeClaimName": 5}},
            [("spec.source.persistentVolumeClaimName", "FieldValueTypeInvalid"), REST],
        ),
        ({"volumeSnapshotClassName": True}, [("spec.volumeSnapshotClassName", "FieldValueTypeInvalid"), REST]),
        ({"volumeSnapshotClassName": ""}, [("spec.volumeSnapshotClassName", "FieldValueInvalid")]),
        (
            {"source": {"persistentVolumeClaimName": "c", "volumeSnapshotContentName": "v"}},
            [("spec.source", "FieldValueInvalid")],
        ),
    ],
)
def test_a_wrong_snapshot_is_refused_with_what_is_wrong(
    calls: Calls, spec: dict[str, Any], causes: list[tuple[str, str]]
) -> None:
    reply = calls.create(SNAPSHOTS, snapshot(**spec))
    assert (reply.status, reply.causes) == (422, causes)
    assert reply.body["details"]["kind"] == "VolumeSnapshot"


def test_an_empty_name_of_a_claim_is_one_and_null_is_none(calls: Calls) -> None:
    assert calls.create(SNAPSHOTS, snapshot(source={"persistentVolumeClaimName": ""})).status == 201
    body = snapshot("t", source={"persistentVolumeClaimName": "c", "volumeSnapshotContentName": None})
    assert calls.create(SNAPSHOTS, body).body["spec"] == {"source": {"persistentVolumeClaimName": "c"}}


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"driver": None}, [("driver", "FieldValueRequired")]),
        ({"deletionPolicy": None}, [("deletionPolicy", "FieldValueRequired")]),
        ({"deletionPolicy": "Recycle"}, [("deletionPolicy", "FieldValueNotSupported")]),
        (
            {"deletionPolicy": 5},
            [("deletionPolicy", "FieldValueTypeInvalid"), ("deletionPolicy", "FieldValueNotSupported")],
        ),
        ({"parameters": {"a": 1}}, [("parameters.a", "FieldValueTypeInvalid")]),
        ({"parameters": []}, [("parameters", "FieldValueTypeInvalid")]),
    ],
)
def test_a_wrong_class_is_refused(calls: Calls, fields: dict[str, Any], causes: list[tuple[str, str]]) -> None:
    """It has no rules, so none is left unchecked."""
    reply = calls.create(CLASSES, snapshot_class(**fields))
    assert (reply.status, reply.causes) == (422, causes)


def test_all_of_a_class_can_be_changed_and_each_change_counts(calls: Calls) -> None:
    path = made(calls, CLASSES, snapshot_class(parameters={"a": "b", "c": None}))
    assert calls.get(path).body["parameters"] == {"a": "b"}
    change = {"driver": "e.example.com", "deletionPolicy": "Retain", "parameters": {"a": "c"}}
    reply = calls.patch(path, change)
    assert (reply.status, reply.body["metadata"]["generation"]) == (200, 2)
    assert {key: reply.body[key] for key in change} == change
    labelled = calls.patch(path, {"metadata": {"labels": {"x": "y"}}})
    assert labelled.body["metadata"]["generation"] == 2
    assert calls.get(f"{path}/status").body["details"] == {
        "name": "k",
        "group": "snapshot.storage.k8s.io",
        "kind": "volumesnapshotclasses",
    }


def test_a_class_of_groups_does_not_change(calls: Calls) -> None:
    path = made(calls, GROUP_CLASSES, snapshot_class("VolumeGroupSnapshotClass", parameters={"a": "b"}))
    for change in ({"driver": "e.example.com"}, {"deletionPolicy": "Retain"}, {"parameters": {"a": "c"}}):
        reply = calls.patch(path, change)
        assert (reply.status, reply.causes) == (422, [(next(iter(change)), "FieldValueInvalid")])
    assert calls.patch(path, {"parameters": None}).status == 200


@pytest.mark.parametrize(
    ("status", "causes"),
    [
        ({"restoreSize": 2**63}, [("status.restoreSize", "FieldValueTypeInvalid"), ("status", "FieldValueInvalid")]),
        ({"restoreSize": 1.5}, [("status.restoreSize", "FieldValueTypeInvalid"), ("status", "FieldValueInvalid")]),
        ({"restoreSize": True}, [("status.restoreSize", "FieldValueTypeInvalid")]),
        ({"creationTime": "2024-01-01T00:00:00Z"}, [("status.creationTime", "FieldValueTypeInvalid")]),
        ({"error": {"time": "now"}}, [("status.error.time", "FieldValueTypeInvalid")]),
        ("ready", [("status", "FieldValueTypeInvalid")]),
    ],
)
def test_the_status_of_a_content_holds_integers_of_64_bits(
    calls: Calls, status: Any, causes: list[tuple[str, str]]
) -> None:
    path = made(calls, CONTENTS, content())
    reply = calls.patch(f"{path}/status", {"status": status})
    assert (reply.status, reply.causes) == (422, [*causes, REST])


def test_the_largest_integer_is_kept_and_a_float_that_is_one_becomes_it(calls: Calls) -> None:
    path = made(calls, CONTENTS, content())
    reply = calls.patch(f"{path}/status", {"status": {"creationTime": 2**63 - 1, "restoreSize": 1e9}})
    assert reply.body["status"] == {"creationTime": 2**63 - 1, "restoreSize": 1_000_000_000}
    assert b"1000000000.0" not in json.dumps(reply.body).encode()
    assert calls.patch(f"{path}/status", {"status": {"restoreSize": -1}}).causes == [
        ("status.restoreSize", "FieldValueInvalid")
    ]


def test_the_size_of_a_snapshot_is_a_quantity_or_an_integer(calls: Calls) -> None:
    path = made(calls, SNAPSHOTS, snapshot())
    sizes: tuple[str | int, ...] = ("1Gi", "1.5", 5, "-1e3")
    for size in sizes:
        assert calls.patch(f"{path}/status", {"status": {"restoreSize": size}}).body["status"]["restoreSize"] == size
    for wrong, reason in (("1Qi", "Invalid"), ("1Gi\n", "Invalid"), ("", "Invalid"), (1.5, "TypeInvalid")):
        reply = calls.patch(f"{path}/status", {"status": {"restoreSize": wrong}})
        assert reply.causes[0] == ("status.restoreSize", f"FieldValue{reason}")


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("2024-01-01T00:00:00Z", True),
        ("2024-01-01t00:00:00.123456789+01:00", True),
        ("2024-01-01T00:00:00", False),
        ("2024-02-30T00:00:00Z", False),
        ("2024-01-01T24:00:00Z", False),
        ("2024-01-01", False),
        ("", False),
    ],
)
def test_times_are_those_of_rfc_3339_and_kept_as_they_are(calls: Calls, text: str, valid: bool) -> None:
    path = made(calls, SNAPSHOTS, snapshot())
    reply = calls.patch(f"{path}/status", {"status": {"creationTime": text}})
    assert reply.status == (200 if valid else 422)
    assert not valid or reply.body["status"] == {"creationTime": text}


def test_the_snapshot_of_a_content_may_change_but_not_be_half_named(calls: Calls) -> None:
    path = made(calls, CONTENTS, content())
    uid = [{"op": "replace", "path": "/spec/volumeSnapshotRef/uid", "value": "1"}]
    assert calls.patch(path, uid, kind=JSON_PATCH).body["spec"]["volumeSnapshotRef"]["uid"] == "1"
    for change in ({"uid": "2"}, {"uid": None}, {"name": "t"}, {"namespace": "other"}, {"colour": "red"}):
        assert calls.patch(path, {"spec": {"volumeSnapshotRef": change}}).status == 200
    for change in ({"name": None}, {"namespace": None}):
        reply = calls.patch(path, {"spec": {"volumeSnapshotRef": change}})
        assert (reply.status, reply.causes) == (422, [("spec.volumeSnapshotRef", "FieldValueInvalid")])


@pytest.mark.parametrize(
    ("change", "causes"),
    [
        ({"source": {"volumeHandle": "other"}}, [("spec.source.volumeHandle", "FieldValueInvalid")]),
        ({"source": {"volumeHandle": None, "snapshotHandle": "s"}}, [("spec.source", "FieldValueInvalid")]),
        ({"source": {"volumeHandle": None}}, [("spec.source", "FieldValueInvalid")] * 2),
        ({"source": None}, [("spec.source", "FieldValueRequired"), REST]),
        ({"sourceVolumeMode": "Block"}, [("spec.sourceVolumeMode", "FieldValueInvalid")]),
        ({"sourceVolumeMode": None}, [("spec", "FieldValueInvalid")]),
    ],
)
def test_the_source_of_a_content_does_not_change(
    calls: Calls, change: dict[str, Any], causes: list[tuple[str, str]]
) -> None:
    path = made(calls, CONTENTS, content(sourceVolumeMode="Filesystem"))
    reply = calls.patch(path, {"spec": change})
    assert (reply.status, reply.causes) == (422, causes)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"driver": "e.example.com"}, "spec.driver"),
        ({"source": {"volumeHandles": ["b", "a"]}}, "spec.source.volumeHandles"),
        ({"volumeGroupSnapshotClassName": "l"}, "spec.volumeGroupSnapshotClassName"),
        ({"volumeGroupSnapshotRef": {"name": "h"}}, "spec.volumeGroupSnapshotRef"),
        ({"volumeGroupSnapshotRef": {"uid": "2"}}, "spec.volumeGroupSnapshotRef"),
        ({"volumeGroupSnapshotRef": {"uid": None}}, "spec.volumeGroupSnapshotRef"),
    ],
)
def test_a_content_of_a_group_changes_in_its_policy_alone(calls: Calls, change: dict[str, Any], field: str) -> None:
    path = made(calls, GROUP_CONTENTS, group_content(volumeGroupSnapshotClassName="k"))
    assert calls.patch(path, {"spec": {"volumeGroupSnapshotRef": {"uid": "1"}}}).status == 200
    assert calls.patch(path, {"spec": {"deletionPolicy": "Retain"}}).status == 200
    reply = calls.patch(path, {"spec": change})
    assert (reply.status, reply.causes) == (422, [(field, "FieldValueInvalid")])


def test_a_field_that_a_rule_needs_and_that_is_gone_fails_the_rule(calls: Calls) -> None:
    path = made(calls, GROUP_CONTENTS, group_content())
    reply = calls.patch(path, {"spec": {"volumeGroupSnapshotRef": {"name": None}}})
    assert reply.causes == [("spec.volumeGroupSnapshotRef", "FieldValueInvalid")] * 2
    assert "no such key: name" in reply.body["message"]


def test_a_group_has_one_source_for_ever_and_one_content_once_it_has_one(calls: Calls) -> None:
    both = {"selector": {}, "volumeGroupSnapshotContentName": "gc"}
    for source in ({}, both):
        assert calls.create(GROUPS, group(source=source)).causes == [("spec.source", "FieldValueInvalid")]
    path = made(calls, GROUPS, group())
    changed = {"selector": {"matchLabels": {"app": "web"}}}
    assert calls.patch(path, {"spec": {"source": changed}}).causes == [("spec.source.selector", "FieldValueInvalid")]
    half = {"selector": {"matchExpressions": [{"key": "a"}]}}
    wrong = calls.create(GROUPS, group("h", source=half))
    assert wrong.causes == [("spec.source.selector.matchExpressions[0].operator", "FieldValueRequired"), REST]
    bound = {"boundVolumeGroupSnapshotContentName": "gc", "readyToUse": False}
    assert calls.patch(f"{path}/status", {"status": bound}).body["status"] == bound
    other = calls.patch(f"{path}/status", {"status": {"boundVolumeGroupSnapshotContentName": "other"}})
    assert other.causes == [("status.boundVolumeGroupSnapshotContentName", "FieldValueInvalid")]
    assert calls.patch(f"{path}/status", {"status": {"boundVolumeGroupSnapshotContentName": None}}).status == 200


def test_both_kinds_of_handles_of_a_group_are_none(calls: Calls) -> None:
    handles = {"volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["a"]}
    assert calls.create(GROUP_CONTENTS, group_content(source={"groupSnapshotHandles": handles})).status == 201
    both = {"groupSnapshotHandles": handles, "volumeHandles": []}
    assert calls.create(GROUP_CONTENTS, group_content(source=both)).causes == [("spec.source", "FieldValueInvalid")]
    half = calls.create(GROUP_CONTENTS, group_content(source={"groupSnapshotHandles": {}}))
    where = "spec.source.groupSnapshotHandles"
    assert half.causes == [
        (f"{where}.volumeGroupSnapshotHandle", "FieldValueRequired"),
        (f"{where}.volumeSnapshotHandles", "FieldValueRequired"),
        REST,
    ]


# --- the machinery ------------------------------------------------------------------------------------------------


def test_object_and_status_are_written_apart(calls: Calls) -> None:
    path = made(calls, SNAPSHOTS, {**snapshot(), "status": {"readyToUse": True}})
    assert "status" not in calls.get(path).body
    whole = calls.get(path).body
    whole["metadata"]["labels"] = {"a": "b"}
    whole["spec"]["volumeSnapshotClassName"] = "k"
    whole["status"] = {"readyToUse": False}
    reply = calls.put(f"{path}/status", whole)
    assert (reply.body["spec"], reply.body["status"]) == (snapshot()["spec"], {"readyToUse": False})
    assert "labels" not in reply.body["metadata"]
    whole["metadata"]["resourceVersion"] = reply.version
    whole["status"] = {"readyToUse": True}
    reply = calls.put(path, whole)
    assert (reply.body["status"], reply.body["metadata"]["labels"]) == ({"readyToUse": False}, {"a": "b"})
    assert reply.body["metadata"]["generation"] == 2
    assert "status" not in calls.patch(f"{path}/status", {"status": None}).body


def test_a_write_of_nothing_new_changes_no_version(calls: Calls) -> None:
    path = made(calls, SNAPSHOTS, snapshot())
    version = calls.get(path).version
    for patch in (
        {"spec": {"colour": "red"}},
        {"spec": {"volumeSnapshotClassName": None}},
        {"metadata": {"uid": None}},
    ):
        assert calls.patch(path, patch).version == version
    assert calls.patch(f"{path}/status", {"spec": {"volumeSnapshotClassName": "k"}}).version == version


def test_a_put_names_its_version(calls: Calls) -> None:
    path = made(calls, SNAPSHOTS, snapshot())
    reply = calls.put(path, snapshot())
    assert (reply.status, reply.causes) == (422, [("metadata.resourceVersion", "FieldValueInvalid")])


@pytest.mark.parametrize(
    ("change", "status", "causes"),
    [
        ({"kind": None}, 400, []),
        ({"apiVersion": "snapshot.storage.k8s.io/v1beta1"}, 400, []),
        ({"apiVersion": None}, 400, []),
        ({"kind": "VolumeSnapshotContent"}, 422, [("kind", "FieldValueInvalid")]),
        ({"metadata": {"name": "s", "labels": {"a": 5}}}, 400, []),
        ({"metadata": {"name": "s" * 254}}, 422, [("metadata.name", "FieldValueInvalid")]),
        ({"metadata": {}}, 422, [("metadata.name", "FieldValueRequired"), REST]),
        ({"metadata": {"name": "s", "namespace": "other"}}, 400, []),
        ({"spec": None}, 422, [("spec", "FieldValueRequired"), REST]),
    ],
)
def test_odd_bodies_are_refused(
    calls: Calls, change: dict[str, Any], status: int, causes: list[tuple[str, str]]
) -> None:
    reply = calls.create(SNAPSHOTS, {**snapshot(), **change})
    assert reply.status == status, reply.body
    assert status != 422 or reply.causes == causes


def test_a_patch_cannot_make_another_kind_of_it(calls: Calls) -> None:
    path = made(calls, SNAPSHOTS, snapshot())
    assert calls.patch(path, {"kind": "Other"}).causes == [("kind", "FieldValueInvalid")]
    assert calls.patch(path, {"apiVersion": "a/v1"}).causes == [("apiVersion", "FieldValueInvalid")]
    assert calls.patch(path, {"kind": None}).causes == [("patch", "FieldValueInvalid")]
    assert calls.patch(path, {"spec": {"colour": 1}}, fieldValidation="Strict").causes == [
        ("patch", "FieldValueInvalid")
    ]
    assert calls.patch(path, {"spec": {}}, kind="application/strategic-merge-patch+json").status == 415


def test_unknown_fields_are_told_by_their_paths(calls: Calls) -> None:
    body = snapshot(source={"persistentVolumeClaimName": "c", "x": {"y": 1}}, z=1)
    reply = calls.create(SNAPSHOTS, {**body, "metadata": {"name": "s", "w": 1}}, fieldValidation="Strict")
    assert reply.status == 400
    for path in ("metadata.w", "spec.source.x", "spec.z"):
        assert f'unknown field "{path}"' in reply.body["message"]
    warned = calls.create(SNAPSHOTS, body, fieldValidation="Warn")
    assert warned.body["spec"] == snapshot()["spec"]
    assert "spec.source.x" in warned.headers["Warning"]


def test_lists_say_what_each_item_is_and_select_by_names_and_labels(calls: Calls) -> None:
    empty = calls.get(SNAPSHOTS).body
    assert (empty["kind"], empty["items"]) == ("VolumeSnapshotList", [])
    assert empty["metadata"]["continue"] == ""
    for name in ("a", "b"):
        made(calls, SNAPSHOTS, {**snapshot(), "metadata": {"name": name, "labels": {"of": name}}})
    everywhere = f"{PREFIX}/volumesnapshots"
    assert {each["kind"] for each in calls.get(everywhere).body["items"]} == {"VolumeSnapshot"}
    assert calls.get(everywhere, labelSelector="of=b").names == ["b"]
    assert calls.get(everywhere, fieldSelector="metadata.name=a,metadata.namespace=default").names == ["a"]
    assert calls.get(everywhere, fieldSelector="spec.volumeSnapshotClassName=k").status == 400
    assert calls.get(CONTENTS, fieldSelector="metadata.namespace=default").status == 400
    first = calls.get(everywhere, limit="1")
    assert first.names == ["a"]
    assert calls.get(everywhere, limit="1", **{"continue": first.body["metadata"]["continue"]}).names == ["b"]
    assert calls.send("DELETE", SNAPSHOTS, labelSelector="of=a").names == ["a"]
    assert calls.get(everywhere).names == ["b"]


def test_tables_show_values_by_the_types_of_their_columns(calls: Calls) -> None:
    path = made(calls, CONTENTS, content())
    calls.patch(f"{path}/status", {"status": {"restoreSize": 5, "readyToUse": False}})
    cells = table(calls, CONTENTS)["rows"][0]["cells"]
    assert cells[:-1] == ["v", False, 5, "Delete", "d.example.com", None, "s", "default"]
    assert table(calls, CLASSES)["rows"] == []
    assert [each["name"] for each in table(calls, GROUP_CONTENTS)["columnDefinitions"]][:3] == [
        "Name",
        "ReadyToUse",
        "DeletionPolicy",
    ]
    path = made(calls, SNAPSHOTS, snapshot())
    calls.patch(f"{path}/status", {"status": {"creationTime": "2026-01-01T11:00:00Z", "restoreSize": 5}})
    assert table(calls, SNAPSHOTS)["rows"][0]["cells"][4:8] == ["5", None, None, "60m"]


def table(calls: Calls, path: str) -> Any:
    return json.loads(calls.server.handle("GET", path, {}, {"Accept": TABLE}, b"").body)


def test_what_is_deleted_waits_for_its_finalizers(calls: Calls) -> None:
    body = {**snapshot(), "metadata": {"name": "s", "finalizers": ["snapshot.storage.kubernetes.io/x"]}}
    path = made(calls, SNAPSHOTS, body)
    waiting = calls.send("DELETE", path).body
    assert (waiting["metadata"]["generation"], waiting["metadata"]["deletionGracePeriodSeconds"]) == (2, 0)
    assert calls.patch(path, {"metadata": {"finalizers": ["a.example.com/y"]}}).status == 422
    assert calls.patch(path, {"metadata": {"finalizers": None}}).status == 200
    assert calls.get(path).status == 404
    assert calls.send("DELETE", path).body["details"]["kind"] == "volumesnapshots"
    assert calls.patch(f"{path}/status", {"status": {}}).status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{PREFIX}/namespaces/default/volumesnapshotcontents"),
        ("GET", "/apis/snapshot.storage.k8s.io/v1beta1/volumesnapshots"),
        ("POST", f"{PREFIX}/volumesnapshots"),
        ("DELETE", f"{PREFIX}/volumesnapshots"),
        ("PATCH", f"{PREFIX}/volumesnapshots/s"),
        ("POST", f"{PREFIX}/volumerestores"),
    ],
)
def test_paths_of_custom_kinds_that_are_none_have_no_page(calls: Calls, method: str, path: str) -> None:
    answer = calls.server.handle(method, path, {}, {}, b"")
    assert (answer.status, answer.body) == (404, b"404 page not found\n")


def test_methods_that_a_path_does_not_have_are_refused_as_for_custom_kinds(calls: Calls) -> None:
    path = made(calls, SNAPSHOTS, snapshot())
    about = {"group": "snapshot.storage.k8s.io", "kind": "volumesnapshots"}
    for method in ("POST", "DELETE"):
        refused = calls.send(method, f"{path}/status", snapshot())
        assert (refused.status, refused.reason, refused.body["details"]) == (405, "MethodNotAllowed", about)
    assert calls.put(SNAPSHOTS, snapshot()).status == 400
    assert calls.patch(SNAPSHOTS, {}).status == 400
    assert calls.create(f"{SNAPSHOTS}/t", snapshot("t")).body["metadata"]["name"] == "t"


async def test_watches_send_changes_with_their_kind(calls: Calls) -> None:
    watch = calls.server.watch(SNAPSHOTS, {"watch": "true", "allowWatchBookmarks": "true"}, {})
    assert not isinstance(watch, Answer)
    path = made(calls, SNAPSHOTS, snapshot())
    calls.patch(f"{path}/status", {"status": {"readyToUse": True}})
    calls.send("DELETE", path)
    events = [json.loads(await anext(watch)) for _ in range(3)]
    assert [each["type"] for each in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert {each["object"]["kind"] for each in events} == {"VolumeSnapshot"}


def test_their_schemas_are_published_without_strategic_patches(calls: Calls) -> None:
    document = json.loads(calls.server.handle("GET", f"/openapi/v3{PREFIX}", {}, {}, b"").body)
    shape = document["components"]["schemas"]["io.k8s.storage.snapshot.v1.VolumeSnapshot"]
    assert shape["properties"]["spec"]["required"] == ["source"]
    assert {"apiVersion", "kind", "metadata", "status"} <= shape["properties"].keys()
    patch = document["paths"][f"{SNAPSHOTS.replace('default', '{namespace}')}/{{name}}"]["patch"]
    assert not any("strategic" in each for each in patch["requestBody"]["content"])
    buffers = {"Accept": "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"}
    assert calls.server.handle("GET", "/openapi/v2", {}, buffers, b"").status == 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)
fields = ("source", "volumeSnapshotClassName", "volumeHandle", "deletionPolicy", "driver", "volumeSnapshotRef", "a")


@settings(max_examples=25, deadline=None)
@given(
    spec=st.dictionaries(st.sampled_from(fields), json_values | st.dictionaries(st.sampled_from(fields), json_values)),
    status=st.dictionaries(st.sampled_from(("restoreSize", "creationTime", "error", "readyToUse")), json_values),
)
def test_no_body_breaks_a_custom_kind(spec: Any, status: Any) -> None:
    calls = Calls()
    for path, body in ((SNAPSHOTS, snapshot("s")), (CONTENTS, content("s")), (CLASSES, snapshot_class())):
        assert calls.create(path, {**body, "spec": spec}).status < 500
        calls.create(path, body)
        stored = f"{path}/{body['metadata']['name']}"
        assert calls.patch(stored, {"spec": spec, "driver": spec.get("driver")}).status < 500
        assert calls.patch(f"{stored}/status", {"status": status}).status < 500
        assert calls.server.handle("GET", path, {}, {"Accept": TABLE}, b"").status == 200


# --- definitions --------------------------------------------------------------------------------------------------

NAME = "volumesnapshots.snapshot.storage.k8s.io"


def definition(**spec: Any) -> dict[str, Any]:
    whole = {
        "group": "example.com",
        "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
        "versions": [
            {"name": "v1beta1", "served": True, "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}},
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"size": {"type": "integer", "default": 3, "maximum": 9}},
                    }
                },
            },
        ],
        **spec,
    }
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**kind, "metadata": {"name": "things.example.com"}, "spec": whole}


def served(calls: Calls) -> bool:
    status: int = calls.server.handle("GET", SNAPSHOTS, {}, {}, b"").status
    return status == 200


def test_a_server_can_begin_without_the_kinds_and_get_them_later() -> None:
    calls = Calls(without=("snapshot.storage.k8s.io",))
    assert not served(calls)
    assert calls.server.handle("GET", PREFIX, {}, {}, b"").status == 404
    assert calls.get(GROUPS).status == 200
    (body,) = (each for each in definitions("snapshot.storage.k8s.io") if each["metadata"]["name"] == NAME)
    reply = calls.create(DEFINITIONS, body)
    assert reply.status == 201
    assert {each["type"]: each["status"] for each in reply.body["status"]["conditions"]} == {
        "NamesAccepted": "True",
        "Established": "True",
    }
    made(calls, SNAPSHOTS, snapshot())
    assert [each["name"] for each in calls.get(PREFIX).body["resources"]] == [
        "volumesnapshots",
        "volumesnapshots/status",
    ]


async def test_the_kind_ends_with_its_definition_and_its_objects_go_before(calls: Calls) -> None:
    made(calls, SNAPSHOTS, snapshot("a"))
    held = made(calls, SNAPSHOTS, {**snapshot(), "metadata": {"name": "b", "finalizers": ["x.example.com/y"]}})
    version = calls.get(SNAPSHOTS).version
    watch = calls.server.watch(SNAPSHOTS, {"watch": "true", "resourceVersion": version}, {})
    assert not isinstance(watch, Answer)
    assert calls.send("DELETE", f"{DEFINITIONS}/{NAME}").status == 200
    assert calls.get(SNAPSHOTS).names == ["b"]
    refused = calls.create(SNAPSHOTS, snapshot("c"))
    assert (refused.status, refused.reason) == (403, "Forbidden")
    assert calls.patch(held, {"metadata": {"finalizers": None}}).status == 200
    assert not served(calls)
    assert calls.get(f"{DEFINITIONS}/{NAME}").status == 404
    async with asyncio.timeout(5):
        events = [json.loads(line) async for line in watch]
    assert [each["type"] for each in events] == ["DELETED", "MODIFIED", "DELETED"]
    refusal = calls.server.watch(SNAPSHOTS, {"watch": "true"}, {})
    assert isinstance(refusal, Answer)
    assert (refusal.status, refusal.body) == (404, b"404 page not found\n")


def test_namespaces_are_emptied_of_custom_kinds_too(calls: Calls) -> None:
    calls.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    made(calls, f"{PREFIX}/namespaces/team/volumesnapshots", snapshot())
    calls.send("DELETE", "/api/v1/namespaces/team")
    assert calls.get(f"{PREFIX}/volumesnapshots").names == []
    assert calls.get("/api/v1/namespaces/team").status == 404


def test_any_simple_definition_is_served_in_all_its_versions(calls: Calls) -> None:
    made(calls, DEFINITIONS, definition())
    things = "/apis/example.com/v1/things"
    body = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
    assert calls.create(things, body).body["size"] == 3
    assert calls.patch(f"{things}/t", {"size": 10}).causes == [("size", "FieldValueInvalid")]
    (old,) = calls.get("/apis/example.com/v1beta1/things").body["items"]
    assert (old["apiVersion"], old["metadata"]["name"]) == ("example.com/v1beta1", "t")
    group = calls.get("/apis/example.com").body
    assert [each["version"] for each in group["versions"]] == ["v1", "v1beta1"]
    assert group["preferredVersion"]["version"] == "v1"
    assert [each["name"] for each in table(calls, things)["columnDefinitions"]] == ["Name", "Age"]


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"oneOf": []}, "oneOf"),
        ({"properties": {"a": {"x-kubernetes-validations": [{"rule": "self.all(x, x)"}]}}}, "rule"),
        ({"x-kubernetes-validations": [{"rule": "self.a =="}]}, "rule"),
    ],
)
def test_a_definition_that_would_not_be_followed_is_refused(calls: Calls, schema: Any, field: str) -> None:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    reply = calls.create(DEFINITIONS, definition(versions=[version]))
    assert reply.status == 422
    assert reply.causes[0][0].endswith(field)
    assert calls.create(DEFINITIONS, {**definition(), "metadata": {"name": "other"}}).causes == [
        ("metadata.name", "FieldValueInvalid")
    ]


def test_definitions_are_what_the_kinds_are_after_a_restore(calls: Calls) -> None:
    backup = calls.server.store.snapshot()
    calls.send("DELETE", f"{DEFINITIONS}/{NAME}")
    assert not served(calls)
    calls.server.restore(backup)
    assert served(calls)


# --- rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("self.a == oldSelf.a", True),
        ("self.a != 'x' || self.missing == 1", True),
        ("self.missing == 1 || self.a != 'x'", True),
        ("self.missing == 1 && self.a == 'no'", False),
        ("!has(self.missing) && has(self.a)", True),
        ("!(has(self.a) && size(self.a) > 3)", True),
        ("size(self.a) >= 1 && self.__namespace__ == 'n'", True),
    ],
)
def test_rules_are_evaluated_as_cel_is(rule: str, holds: bool) -> None:
    known = {"self": {"a": "y", "namespace": "n"}, "oldSelf": {"a": "y"}}
    assert compiled(rule).holds(known) is holds


def test_a_rule_without_a_decisive_part_fails_for_a_missing_field() -> None:
    with pytest.raises(KeyError):
        compiled("self.missing == 1 && self.a == 'y'").holds({"self": {"a": "y"}, "oldSelf": None})


@pytest.mark.parametrize("rule", ["", "self.", "self.a +", "self[0] == 1", "matches(self)", "has(self)", "(self.a"])
def test_a_rule_with_anything_else_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"served here|breaks off|field"):
        compiled(rule)
