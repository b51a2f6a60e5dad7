from __future__ import annotations

import pytest

from unit.embedded.apiserver.rules import Json, begun, kind, merge
from volplane_embedded.apiserver.admission import PLUGINS, Admission
from volplane_embedded.apiserver.resources import Resource

PVC, PV, VAC, POD, NODE = (
    kind(name) for name in ("PersistentVolumeClaim", "PersistentVolume", "VolumeAttributesClass", "Pod", "Node")
)
MARK = "storageclass.kubernetes.io/is-default-class"
BETA = "volume.beta.kubernetes.io/storage-class"
CLAIM = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}


def storage_class(name: str, created: str = "2026-01-01T00:00:00Z", default: str = "true", **more: object) -> Json:
    return {"metadata": {"name": name, "creationTimestamp": created, "annotations": {MARK: default}}, **more}


def admitted(resource: Resource, obj: Json, *classes: Json, disabled: tuple[str, ...] = ()) -> Json:
    made = begun(resource, obj)
    Admission(lambda: classes, disabled).admit(resource, made, None)
    return made


@pytest.mark.parametrize(
    ("claim", "classes", "chosen"),
    [
        pytest.param({}, [], None, id="no class"),
        pytest.param({}, [storage_class("a", default="false")], None, id="no default class"),
        pytest.param({}, [storage_class("a")], "a", id="the default class"),
        pytest.param(
            {},
            [storage_class("a", "2026-01-01T00:00:00Z"), storage_class("b", "2026-01-02T00:00:00Z")],
            "b",
            id="newest",
        ),
        pytest.param({}, [storage_class("b"), storage_class("a")], "a", id="of equally new ones the first"),
        pytest.param({"spec": {"storageClassName": ""}}, [storage_class("a")], "", id="none is wanted"),
        pytest.param({"spec": {"storageClassName": "x"}}, [storage_class("a")], "x", id="another is wanted"),
        pytest.param(
            {"metadata": {"name": "c", "annotations": {BETA: "x"}}}, [storage_class("a")], None, id="by annotation"
        ),
    ],
)
def test_a_claim_gets_the_default_class(claim: Json, classes: list[Json], chosen: str | None) -> None:
    assert admitted(PVC, merge(CLAIM, claim), *classes)["spec"].get("storageClassName") == chosen


def test_the_beta_annotation_marks_a_default_class_too() -> None:
    old = {"metadata": {"name": "a", "annotations": {"storageclass.beta.kubernetes.io/is-default-class": "true"}}}
    assert admitted(PVC, CLAIM, old)["spec"]["storageClassName"] == "a"


@pytest.mark.parametrize(
    ("resource", "obj", "finalizer"),
    [
        (PVC, CLAIM, "kubernetes.io/pvc-protection"),
        (PV, {"spec": {}}, "kubernetes.io/pv-protection"),
        (VAC, {"driverName": "a.b"}, "kubernetes.io/vac-protection"),
    ],
)
def test_what_is_in_use_is_protected_from_its_first_moment(resource: Resource, obj: Json, finalizer: str) -> None:
    named = {**obj, "metadata": {"name": "a", "finalizers": ["a/b"]}}
    assert admitted(resource, named)["metadata"]["finalizers"] == ["a/b", finalizer]
    held = {**obj, "metadata": {"name": "a", "finalizers": [finalizer]}}
    assert admitted(resource, held)["metadata"]["finalizers"] == [finalizer]


def test_pods_and_nodes_get_what_the_stock_server_adds() -> None:
    pod = admitted(
        POD, {"spec": {"containers": [{"name": "c", "image": "i"}], "tolerations": [{"operator": "Exists"}]}}
    )
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["priority"] == 0
    pod = admitted(POD, {"spec": {"containers": [{"name": "c", "image": "i"}]}})
    assert [entry["key"] for entry in pod["spec"]["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    assert admitted(NODE, {})["spec"]["taints"] == [taint]
    assert admitted(NODE, {"spec": {"taints": [taint]}})["spec"]["taints"] == [taint]


def test_every_plugin_can_be_switched_off_by_its_name() -> None:
    claim = admitted(PVC, CLAIM, storage_class("a"), disabled=PLUGINS)
    assert "finalizers" not in claim["metadata"]
    assert "storageClassName" not in claim["spec"]
    assert "taints" not in admitted(NODE, {}, disabled=PLUGINS)["spec"]
    with pytest.raises(ValueError, match=r"unknown admission plugin Nope: there are .*DefaultStorageClass"):
        Admission(list, ["Nope"])


def test_a_change_is_not_a_creation() -> None:
    made = begun(PVC, CLAIM)
    Admission(lambda: [storage_class("a")]).admit(PVC, made, made)
    assert "storageClassName" not in made["spec"]


NOT_RESIZABLE = (
    "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
)


@pytest.mark.parametrize(
    ("claim", "phase", "size", "why"),
    [
        pytest.param({"storageClassName": "grows"}, "Bound", "2Gi", "", id="the class allows it"),
        pytest.param({"storageClassName": "stays"}, "Bound", "2Gi", NOT_RESIZABLE, id="the class does not"),
        pytest.param({"storageClassName": "gone"}, "Bound", "2Gi", NOT_RESIZABLE, id="the class is gone"),
        pytest.param({"storageClassName": ""}, "Bound", "2Gi", NOT_RESIZABLE, id="no class"),
        pytest.param(
            {"storageClassName": "grows"},
            "Pending",
            "2Gi",
            "Only bound persistent volume claims can be expanded",
            id="unbound",
        ),
        pytest.param({"storageClassName": "stays"}, "Bound", "1Gi", "", id="not growing"),
    ],
)
def test_a_claim_grows_only_where_its_class_allows(claim: Json, phase: str, size: str, why: str) -> None:
    classes = [storage_class("grows", allowVolumeExpansion=True), storage_class("stays")]
    old = merge(begun(PVC, merge(CLAIM, {"spec": claim})), {"status": {"phase": phase}})
    new = merge(old, {"spec": {"resources": {"requests": {"storage": size}}}})
    assert Admission(lambda: classes).forbid_update(PVC, new, old, "") == why
    assert Admission(lambda: classes).forbid_update(PVC, new, old, "status") == ""
    assert Admission(lambda: classes, PLUGINS).forbid_update(PVC, new, old, "") == ""
    assert Admission(lambda: classes).forbid_update(PV, new, old, "") == ""
