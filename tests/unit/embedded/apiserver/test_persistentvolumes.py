from __future__ import annotations

import pytest

from unit.embedded.apiserver.rules import STAMP, Json, begun, changed, kind, merge, refused, refused_change

PV = kind("PersistentVolume")
AFFINITY = {
    "required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["n"]}]}]}
}


def volume(**spec: object) -> Json:
    return {
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/srv"}, **spec}
    }


def sourced(source: str, content: Json, **spec: object) -> Json:
    obj = volume(**{source: content}, **spec)
    if source != "hostPath":
        del obj["spec"]["hostPath"]
    return obj


def test_a_new_volume_has_the_stock_defaults_and_is_pending() -> None:
    made = begun(PV, {**volume(capacity={"storage": "1024Mi"}), "status": {"phase": "Bound"}})
    assert made["spec"] == {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/srv", "type": ""},
        "persistentVolumeReclaimPolicy": "Retain",
        "volumeMode": "Filesystem",
    }
    assert made["status"] == {"phase": "Pending", "lastPhaseTransitionTime": STAMP}


@pytest.mark.parametrize(
    ("obj", "causes"),
    [
        pytest.param(volume(), [], id="whole"),
        pytest.param(volume(persistentVolumeReclaimPolicy="Recycle"), [], id="recycled"),
        pytest.param(volume(volumeMode="Block"), [], id="block"),
        pytest.param(volume(claimRef={"name": "x"}), [], id="a reference is not validated"),
        pytest.param(volume(accessModes=[]), [("spec.accessModes", "Required")], id="no modes"),
        pytest.param(volume(accessModes=["Never"]), [("spec.accessModes", "NotSupported")], id="bad mode"),
        pytest.param(
            volume(accessModes=["ReadWriteOncePod", "ReadWriteOnce"]),
            [("spec.accessModes", "Forbidden")],
            id="pod alone",
        ),
        pytest.param(volume(accessModes=["ReadWriteOncePod"]), [], id="one pod"),
        pytest.param(
            volume(capacity={}), [("spec.capacity", "Required"), ("spec.capacity", "NotSupported")], id="no capacity"
        ),
        pytest.param(volume(capacity={"storage": "0"}), [("spec.capacity[storage]", "Invalid")], id="zero"),
        pytest.param(volume(capacity={"storage": "-1Gi"}), [("spec.capacity[storage]", "Invalid")] * 2, id="negative"),
        pytest.param(volume(capacity={"storage": "1", "cpu": "1"}), [("spec.capacity", "NotSupported")], id="cpu"),
        pytest.param(
            volume(persistentVolumeReclaimPolicy="Shred"),
            [("spec.persistentVolumeReclaimPolicy", "NotSupported")],
            id="policy",
        ),
        pytest.param(
            volume(persistentVolumeReclaimPolicy="Recycle", hostPath={"path": "//./"}),
            [("spec.persistentVolumeReclaimPolicy", "Forbidden")],
            id="root is not recycled",
        ),
        pytest.param(volume(volumeMode="Tape"), [("spec.volumeMode", "NotSupported")], id="volume mode"),
        pytest.param(volume(storageClassName="A_b"), [("spec.storageClassName", "Invalid")], id="class name"),
        pytest.param(
            volume(volumeAttributesClassName="gold"), [("spec.csi", "Required")], id="attributes class wants csi"
        ),
        pytest.param(
            sourced("csi", {"driver": "a.b", "volumeHandle": "h"}, volumeAttributesClassName=""),
            [("spec.volumeAttributesClassName", "Required")],
            id="attributes class without name",
        ),
        pytest.param({"spec": {**volume()["spec"], "hostPath": None}}, [("spec", "Required")], id="no source"),
        pytest.param(volume(nfs={"server": "s", "path": "/"}), [("spec.nfs", "Forbidden")], id="two sources"),
        pytest.param(sourced("hostPath", {"path": ""}), [("spec.hostPath.path", "Required")], id="no path"),
        pytest.param(sourced("hostPath", {"path": "/a/../b"}), [("spec.hostPath.path", "Invalid")], id="step back"),
        pytest.param(
            sourced("hostPath", {"path": "/a", "type": "Tree"}),
            [("spec.hostPath.type", "NotSupported")],
            id="path type",
        ),
        pytest.param(
            sourced("local", {"path": "/a"}), [("spec.nodeAffinity", "Required")], id="local without affinity"
        ),
        pytest.param(sourced("local", {"path": "/a"}, nodeAffinity=AFFINITY), [], id="local"),
        pytest.param(
            sourced("local", {}, nodeAffinity=AFFINITY), [("spec.local.path", "Required")], id="local without path"
        ),
        pytest.param(
            sourced("nfs", {"server": "s", "path": "exports"}), [("spec.nfs.path", "Invalid")], id="relative export"
        ),
        pytest.param(
            sourced("nfs", {}),
            [("spec.nfs.server", "Required"), ("spec.nfs.path", "Required"), ("spec.nfs.path", "Invalid")],
            id="incomplete nfs",
        ),
        pytest.param(
            sourced("csi", {}),
            [("spec.csi.driver", "Required"), ("spec.csi.volumeHandle", "Required")],
            id="incomplete csi",
        ),
        pytest.param(
            sourced("csi", {"driver": "a.b", "volumeHandle": "h", "nodePublishSecretRef": {"name": "S"}}),
            [
                ("spec.csi.nodePublishSecretRef.name", "Invalid"),
                ("spec.csi.nodePublishSecretRef.namespace", "Required"),
            ],
            id="secret of csi",
        ),
        pytest.param(
            sourced("csi", {"driver": "a" * 64, "volumeHandle": "h"}),
            [("spec.csi.driver", "TooLong")],
            id="long driver",
        ),
        pytest.param(sourced("flocker", {}), [("spec.flocker", "Required")], id="flocker"),
        pytest.param(sourced("fc", {}), [("spec.fc.targetWWNs", "Required")], id="fc"),
        pytest.param(sourced("fc", {"targetWWNs": ["1"]}), [("spec.fc.lun", "Required")], id="fc without lun"),
        pytest.param(
            volume(nodeAffinity={}), [("spec.nodeAffinity.required", "Required")], id="affinity without requirement"
        ),
        pytest.param(
            volume(nodeAffinity={"required": {"nodeSelectorTerms": []}}),
            [("spec.nodeAffinity.required.nodeSelectorTerms", "Required")],
            id="affinity without terms",
        ),
    ],
)
def test_a_volume_must_be_whole(obj: Json, causes: list[tuple[str, str]]) -> None:
    assert refused(PV, obj) == causes


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ({"key": "a", "operator": "Maybe"}, "operator"),
        ({"key": "a", "operator": "In"}, "values"),
        ({"key": "a", "operator": "Exists", "values": ["x"]}, "values"),
        ({"key": "a", "operator": "Gt", "values": ["1", "2"]}, "values"),
        ({"key": "a b", "operator": "Exists"}, "key"),
    ],
)
def test_terms_of_an_affinity_must_make_sense(expression: Json, field: str) -> None:
    term = {"matchExpressions": [expression]}
    path = "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0]"
    found = refused(PV, volume(nodeAffinity={"required": {"nodeSelectorTerms": [term]}}))
    assert [name for name, _ in found] == [f"{path}.{field}"]


@pytest.mark.parametrize(
    ("old", "new", "causes"),
    [
        pytest.param({}, {"claimRef": {"name": "c", "namespace": "d"}}, [], id="reserved"),
        pytest.param({"claimRef": {"name": "c"}}, {"claimRef": None}, [], id="released"),
        pytest.param({}, {"persistentVolumeReclaimPolicy": "Delete"}, [], id="another policy"),
        pytest.param({}, {"capacity": {"storage": "2Gi"}}, [], id="grown"),
        pytest.param({}, {"mountOptions": ["ro"]}, [], id="options"),
        pytest.param({}, {"nodeAffinity": AFFINITY}, [], id="affinity, once"),
        pytest.param(
            {"nodeAffinity": AFFINITY}, {"nodeAffinity": None}, [("nodeAffinity", "Invalid")], id="affinity stays"
        ),
        pytest.param(
            {}, {"hostPath": {"path": "/other"}}, [("spec.persistentvolumesource", "Forbidden")], id="another path"
        ),
        pytest.param(
            {},
            {"hostPath": None, "nfs": {"server": "s", "path": "/"}},
            [("spec.persistentvolumesource", "Forbidden")],
            id="another source",
        ),
        pytest.param({}, {"volumeMode": "Block"}, [("volumeMode", "Invalid")], id="mode stays"),
        pytest.param(
            {"hostPath": None, "csi": {"driver": "a.b", "volumeHandle": "h"}},
            {
                "csi": {
                    "driver": "a.b",
                    "volumeHandle": "h",
                    "controllerExpandSecretRef": {"name": "s", "namespace": "n"},
                }
            },
            [],
            id="a secret for expansion may be added",
        ),
        pytest.param(
            {"hostPath": None, "csi": {"driver": "a.b", "volumeHandle": "h"}, "volumeAttributesClassName": "gold"},
            {"volumeAttributesClassName": None},
            [("spec.volumeAttributesClassName", "Forbidden")],
            id="attributes class stays",
        ),
    ],
)
def test_what_may_change_in_a_volume(old: Json, new: Json, causes: list[tuple[str, str]]) -> None:
    stored = begun(PV, merge(volume(), {"spec": old}))
    assert refused_change(PV, stored, merge(stored, {"spec": new})) == causes


def test_the_main_endpoint_keeps_status_and_the_status_endpoint_keeps_spec() -> None:
    stored = begun(PV, volume())
    new = merge(stored, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}, "status": {"message": "hello"}})
    main, status = changed(PV, stored, new), changed(PV, stored, new, "status")
    assert (main["spec"]["persistentVolumeReclaimPolicy"], main["status"]) == ("Delete", stored["status"])
    assert (status["spec"], status["status"]["message"]) == (stored["spec"], "hello")


@pytest.mark.parametrize(
    ("status", "time"),
    [
        ({"phase": "Available"}, STAMP),
        ({"phase": "Pending", "message": "x"}, "2020-01-01T00:00:00Z"),
        ({"phase": "Available", "lastPhaseTransitionTime": "2021-01-01T00:00:00Z"}, "2021-01-01T00:00:00Z"),
        ({"phase": "Sleeping"}, STAMP),
    ],
)
def test_a_new_phase_has_a_new_time(status: Json, time: str) -> None:
    stored = merge(begun(PV, volume()), {"status": {"lastPhaseTransitionTime": "2020-01-01T00:00:00Z"}})
    new = merge(stored, {"status": status})
    assert changed(PV, stored, new, "status")["status"]["lastPhaseTransitionTime"] == time
    assert refused_change(PV, stored, new, "status") == []
