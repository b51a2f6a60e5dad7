from __future__ import annotations

import pytest

from unit.embedded.apiserver.rules import Json, begun, changed, kind, merge, refused, refused_change

PVC = kind("PersistentVolumeClaim")
BETA = "volume.beta.kubernetes.io/storage-class"
GONE = [("spec", "Forbidden")]


def claim(**spec: object) -> Json:
    return {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}}


def test_a_new_claim_is_pending_whatever_it_says() -> None:
    made = begun(PVC, {**claim(resources={"requests": {"storage": "1024Mi"}}), "status": {"phase": "Bound"}})
    assert made["status"] == {"phase": "Pending"}
    assert made["spec"]["volumeMode"] == "Filesystem"
    assert made["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
    assert "storageClassName" not in made["spec"]


def test_the_two_ways_to_name_a_data_source_follow_each_other() -> None:
    source = {"apiGroup": None, "kind": "PersistentVolumeClaim", "name": "other"}
    assert begun(PVC, claim(dataSource=source))["spec"]["dataSourceRef"] == source
    assert begun(PVC, claim(dataSourceRef=source))["spec"]["dataSource"] == source
    assert "dataSource" not in begun(PVC, claim(dataSourceRef={**source, "namespace": "n"}))["spec"]


@pytest.mark.parametrize(
    ("obj", "causes"),
    [
        pytest.param(claim(), [], id="whole"),
        pytest.param(claim(storageClassName=""), [], id="no class, on purpose"),
        pytest.param(claim(volumeName="anything"), [], id="pre-bound"),
        pytest.param(claim(accessModes=[]), [("spec.accessModes", "Required")], id="no modes"),
        pytest.param(claim(accessModes=["x"]), [("spec.accessModes", "NotSupported")], id="mode"),
        pytest.param(
            claim(accessModes=["ReadWriteOncePod", "ReadOnlyMany"]), [("spec.accessModes", "Forbidden")], id="one pod"
        ),
        pytest.param(claim(resources={}), [("spec.resources[storage]", "Required")], id="no size"),
        pytest.param(
            claim(resources={"requests": {"storage": "0"}}), [("spec.resources[storage]", "Invalid")], id="zero"
        ),
        pytest.param(claim(storageClassName="Std"), [("spec.storageClassName", "Invalid")], id="class"),
        pytest.param(claim(volumeMode="x"), [("spec.volumeMode", "NotSupported")], id="volume mode"),
        pytest.param(
            claim(selector={"matchExpressions": [{"key": "a", "operator": "Maybe"}]}),
            [("spec.selector.matchExpressions[0].operator", "Invalid")],
            id="operator",
        ),
        pytest.param(
            claim(selector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
            [("spec.selector.matchExpressions[0].values", "Required")],
            id="no values",
        ),
        pytest.param(
            claim(selector={"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
            [("spec.selector.matchExpressions[0].values", "Forbidden")],
            id="values too many",
        ),
        pytest.param(
            claim(selector={"matchLabels": {"a b": "-"}}),
            [("spec.selector.matchLabels", "Invalid"), ("spec.selector.matchLabels", "Invalid")],
            id="labels",
        ),
        pytest.param(
            claim(dataSource={"kind": "VolumeSnapshot", "name": "s"}),
            [],
            id="snapshot without group is left out",
        ),
        pytest.param(
            claim(
                dataSource={"kind": "PersistentVolumeClaim", "name": "a"},
                dataSourceRef={"kind": "X", "name": "b", "apiGroup": "g.h"},
            ),
            [("spec", "Invalid")],
            id="two sources",
        ),
    ],
)
def test_a_claim_must_be_whole(obj: Json, causes: list[tuple[str, str]]) -> None:
    assert refused(PVC, obj) == causes


def bound(**spec: object) -> Json:
    stored = begun(PVC, claim(storageClassName="std", volumeName="v", **spec))
    return merge(stored, {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}})


@pytest.mark.parametrize(
    ("old", "new", "causes"),
    [
        pytest.param({}, {"volumeName": "v"}, [], id="bound once"),
        pytest.param({"volumeName": "v"}, {"volumeName": "w"}, GONE, id="not bound to another"),
        pytest.param({"volumeName": "v"}, {"volumeName": None}, GONE, id="not unbound"),
        pytest.param({}, {"storageClassName": "std"}, [], id="class, once"),
        pytest.param({}, {"storageClassName": ""}, [], id="class by hand, once"),
        pytest.param({"storageClassName": "a"}, {"storageClassName": "b"}, GONE, id="class stays"),
        pytest.param({"storageClassName": "a"}, {"storageClassName": None}, GONE, id="class is not taken away"),
        pytest.param({"storageClassName": ""}, {"storageClassName": "a"}, GONE, id="no class stays"),
        pytest.param({}, {"accessModes": ["ReadOnlyMany"]}, GONE, id="modes stay"),
        pytest.param({}, {"selector": {"matchLabels": {"a": "b"}}}, GONE, id="selector stays"),
        pytest.param({}, {"resources": {"requests": {"storage": "2Gi"}}}, GONE, id="unbound does not grow"),
        pytest.param({}, {"volumeMode": "Block"}, [*GONE, ("volumeMode", "Invalid")], id="mode stays"),
        pytest.param({}, {"volumeAttributesClassName": "gold"}, GONE, id="attributes class"),
        pytest.param(
            {"volumeAttributesClassName": "gold"},
            {"volumeAttributesClassName": None},
            GONE,
            id="attributes class stays",
        ),
    ],
)
def test_what_may_change_in_a_claim(old: Json, new: Json, causes: list[tuple[str, str]]) -> None:
    stored = begun(PVC, claim(**old))
    assert refused_change(PVC, stored, merge(stored, {"spec": new})) == causes


@pytest.mark.parametrize(
    ("requests", "causes"),
    [
        ({"storage": "2Gi"}, []),
        ({"storage": "1024Mi"}, []),
        ({"storage": "500Mi"}, [("spec.resources.requests.storage", "Forbidden")]),
        ({"storage": "1Gi", "cpu": "1"}, GONE),
    ],
)
def test_a_bound_claim_may_ask_for_more(requests: Json, causes: list[tuple[str, str]]) -> None:
    stored = bound()
    assert refused_change(PVC, stored, merge(stored, {"spec": {"resources": {"requests": requests}}})) == causes


def test_a_growth_that_never_came_may_be_taken_back_as_far_as_the_capacity() -> None:
    stored = merge(bound(), {"spec": {"resources": {"requests": {"storage": "10Gi"}}}})
    smaller = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    assert refused_change(PVC, stored, merge(stored, smaller)) == []


def test_the_class_may_move_from_the_annotation_into_the_field() -> None:
    stored = begun(PVC, {**claim(), "metadata": {"name": "a", "annotations": {BETA: "std"}}})
    moved = merge(stored, {"metadata": {"annotations": None}, "spec": {"storageClassName": "std"}})
    assert refused_change(PVC, stored, moved) == []
    assert refused_change(PVC, stored, merge(moved, {"spec": {"storageClassName": "other"}})) == [
        (f"metadata.annotations.{BETA}", "Invalid"),
        *GONE,
    ]
    assert refused_change(PVC, stored, merge(stored, {"metadata": {"annotations": {BETA: "other"}}})) == [
        (f"metadata.annotations.{BETA}", "Invalid")
    ]


def test_status_is_written_alone_and_conditions_always_tell_their_times() -> None:
    stored = bound()
    new = merge(
        stored, {"spec": {"volumeName": "w"}, "status": {"conditions": [{"type": "Resizing", "status": "True"}]}}
    )
    after = changed(PVC, stored, new, "status")
    assert after["spec"] == stored["spec"]
    assert after["status"]["conditions"] == [
        {"type": "Resizing", "status": "True", "lastProbeTime": None, "lastTransitionTime": None}
    ]
    assert changed(PVC, stored, new)["status"] == stored["status"]


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"capacity": {"storage": "-1"}}, "status.capacity[storage]"),
        ({"allocatedResources": {"storage": "-1"}}, "status.allocatedResources[storage]"),
        ({"allocatedResourceStatuses": {"storage": "Dreaming"}}, "status.allocatedResourceStatuses"),
    ],
)
def test_a_status_must_make_sense(status: Json, field: str) -> None:
    stored = bound()
    assert [name for name, _ in refused_change(PVC, stored, merge(stored, {"status": status}), "status")] == [field]
