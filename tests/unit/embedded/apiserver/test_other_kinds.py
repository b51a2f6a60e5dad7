"""Rules of the kinds that have few."""

from __future__ import annotations

import pytest

from unit.embedded.apiserver.rules import Json, begun, changed, kind, merge, refused, refused_change
from volplane_embedded.apiserver.resources import Resource

SC, VAC = kind("StorageClass"), kind("VolumeAttributesClass")
VA, NODE, LEASE, NAMESPACE = kind("VolumeAttachment"), kind("Node"), kind("Lease"), kind("Namespace")
DRIVER, CSI_NODE, CAPACITY = kind("CSIDriver"), kind("CSINode"), kind("CSIStorageCapacity")
MAP, SECRET = kind("ConfigMap"), kind("Secret")
CLASS = {"provisioner": "hostpath.volplane.dev", "parameters": {"mode": "0700"}}
GOLD = {"driverName": "a.b", "parameters": {"iops": "5"}}
ATTACHMENT = {"spec": {"attacher": "a.b", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}
INLINE = {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "a.b", "volumeHandle": "h"}}


def topology(*keys: str) -> Json:
    return {"allowedTopologies": [{"matchLabelExpressions": [{"key": key, "values": ["a"]} for key in keys]}]}


def attachment(**spec: object) -> Json:
    return merge(ATTACHMENT, {"spec": spec})


@pytest.mark.parametrize(
    ("resource", "obj", "causes"),
    [
        pytest.param(SC, CLASS, [], id="class"),
        pytest.param(SC, {}, [("provisioner", "Required")], id="class without provisioner"),
        pytest.param(SC, {"provisioner": "a b"}, [("provisioner", "Invalid")], id="provisioner"),
        pytest.param(SC, {**CLASS, "reclaimPolicy": "Recycle"}, [("reclaimPolicy", "NotSupported")], id="policy"),
        pytest.param(SC, {**CLASS, "volumeBindingMode": "x"}, [("volumeBindingMode", "NotSupported")], id="binding"),
        pytest.param(SC, {**CLASS, "parameters": {"": "x"}}, [("parameters", "Invalid")], id="empty key"),
        pytest.param(
            SC, {**CLASS, "parameters": {str(n): "" for n in range(513)}}, [("parameters", "TooLong")], id="many keys"
        ),
        pytest.param(SC, {**CLASS, "parameters": {"a": "x" * 2**18}}, [("parameters", "TooLong")], id="long values"),
        pytest.param(SC, {**CLASS, **topology("a", "b")}, [], id="topology"),
        pytest.param(
            SC,
            {**CLASS, **topology("a", "a")},
            [("allowedTopologies[0].matchLabelExpressions[1].key", "Duplicate")],
            id="topology key twice",
        ),
        pytest.param(VAC, GOLD, [], id="attributes class"),
        pytest.param(
            VAC,
            {},
            [("driverName", "Required"), ("parameters", "Required")],
            id="empty attributes class",
        ),
        pytest.param(VA, ATTACHMENT, [], id="attachment"),
        pytest.param(
            VA,
            {"spec": {"nodeName": "n"}},
            [("spec.attacher", "Required"), ("spec.source", "Required")],
            id="attachment of nothing",
        ),
        pytest.param(VA, attachment(nodeName=""), [("spec.nodeName", "Invalid")], id="attachment nowhere"),
        pytest.param(
            VA,
            attachment(source={"persistentVolumeName": "v", "inlineVolumeSpec": INLINE}),
            [("spec.source", "Forbidden")],
            id="attachment of two",
        ),
        pytest.param(
            VA,
            attachment(source={"persistentVolumeName": None, "inlineVolumeSpec": INLINE}),
            [],
            id="attachment of an inline volume",
        ),
        pytest.param(
            VA,
            attachment(
                source={"persistentVolumeName": None, "inlineVolumeSpec": {**INLINE, "capacity": {"storage": "1"}}}
            ),
            [("spec.source.inlineVolumeSpec.capacity", "Forbidden")],
            id="inline volume with capacity",
        ),
        pytest.param(NODE, {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, [], id="node"),
        pytest.param(
            NODE,
            {"spec": {"taints": [{"key": "a"}, {"key": "a b", "effect": "x"}]}},
            [
                ("metadata.taints[0].effect", "Required"),
                ("metadata.taints[1].key", "Invalid"),
                ("metadata.taints[1].effect", "NotSupported"),
            ],
            id="taints",
        ),
        pytest.param(LEASE, {"spec": {"leaseDurationSeconds": 15, "holderIdentity": "a"}}, [], id="lease"),
        pytest.param(
            LEASE,
            {"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1, "holderIdentity": ""}},
            [
                ("spec.leaseDurationSeconds", "Invalid"),
                ("spec.leaseTransitions", "Invalid"),
            ],
            id="bad lease",
        ),
        pytest.param(LEASE, {"spec": {"preferredHolder": "a"}}, [], id="field of a feature that is off"),
        pytest.param(DRIVER, {"spec": {}}, [], id="driver"),
        pytest.param(
            DRIVER,
            {
                "spec": {
                    "fsGroupPolicy": "x",
                    "volumeLifecycleModes": ["y"],
                    "tokenRequests": [{"expirationSeconds": 1}],
                }
            },
            [
                ("spec.fsGroupPolicy", "NotSupported"),
                ("spec.tokenRequests[0].expirationSeconds", "Invalid"),
                ("spec.volumeLifecycleModes", "NotSupported"),
            ],
            id="bad driver",
        ),
        pytest.param(CSI_NODE, {"spec": {"drivers": [{"name": "a.b", "nodeID": "n"}]}}, [], id="driver of a node"),
        pytest.param(
            CSI_NODE,
            {"spec": {"drivers": [{"name": "a.b", "topologyKeys": ["", "x"], "allocatable": {"count": -1}}]}},
            [
                ("spec.drivers[0].nodeID", "Required"),
                ("spec.drivers[0].allocatable.count", "Invalid"),
                ("spec.drivers[0]", "Required"),
                ("spec.drivers[0]", "Invalid"),
                ("spec.drivers[0]", "Invalid"),
            ],
            id="bad driver of a node",
        ),
        pytest.param(CAPACITY, {"storageClassName": "s", "capacity": "0"}, [], id="capacity"),
        pytest.param(
            CAPACITY,
            {"capacity": "-1", "nodeTopology": {"matchExpressions": [{"key": "a", "operator": "x"}]}},
            [
                ("nodeTopology.matchExpressions[0].operator", "Invalid"),
                ("storageClassName", "Invalid"),
                ("capacity", "Invalid"),
            ],
            id="bad capacity",
        ),
        pytest.param(MAP, {"data": {"a": "b"}, "binaryData": {"c": "dg=="}}, [], id="config map"),
        pytest.param(
            MAP,
            {"data": {"a/b": "", "..": "", "x": ""}, "binaryData": {"x": ""}},
            [("data[a/b]", "Invalid"), ("data[..]", "Invalid"), ("data[x]", "Invalid")],
            id="keys",
        ),
        pytest.param(MAP, {"data": {"a": "x" * (2**20 + 1)}}, [("", "TooLong")], id="size"),
        pytest.param(SECRET, {"stringData": {"a": "b"}}, [], id="secret"),
        pytest.param(
            SECRET, {"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}, [("data[tls.key]", "Required")], id="tls"
        ),
        pytest.param(
            SECRET,
            {"type": "kubernetes.io/service-account-token"},
            [("metadata.annotations[kubernetes.io/service-account.name]", "Required")],
            id="token",
        ),
    ],
)
def test_an_object_must_be_whole(resource: Resource, obj: Json, causes: list[tuple[str, str]]) -> None:
    assert refused(resource, obj) == causes


@pytest.mark.parametrize(
    ("resource", "old", "new", "causes"),
    [
        pytest.param(SC, CLASS, {"allowVolumeExpansion": True}, [], id="expansion"),
        pytest.param(SC, CLASS, {"mountOptions": ["ro"]}, [], id="options"),
        pytest.param(SC, CLASS, {"provisioner": "x.y"}, [("provisioner", "Invalid")], id="provisioner"),
        pytest.param(SC, CLASS, {"parameters": None}, [("parameters", "Invalid")], id="parameters"),
        pytest.param(SC, CLASS, {"reclaimPolicy": "Retain"}, [("reclaimPolicy", "Invalid")], id="policy"),
        pytest.param(
            SC, CLASS, {"volumeBindingMode": "WaitForFirstConsumer"}, [("volumeBindingMode", "Invalid")], id="binding"
        ),
        pytest.param(VAC, GOLD, {"parameters": {"iops": "6"}}, [("parameters", "Forbidden")], id="gold"),
        pytest.param(VAC, GOLD, {"driverName": "c.d"}, [("driverName", "Forbidden")], id="driver name"),
        pytest.param(VA, ATTACHMENT, {"spec": {"nodeName": "m"}}, [("spec", "Invalid")], id="attachment"),
        pytest.param(NODE, {}, {"spec": {"unschedulable": True, "providerID": "x"}}, [], id="node"),
        pytest.param(
            NODE,
            {"spec": {"providerID": "x"}},
            {"spec": {"providerID": "y"}},
            [("spec.providerID", "Forbidden")],
            id="id",
        ),
        pytest.param(DRIVER, {"spec": {}}, {"spec": {"storageCapacity": True}}, [], id="driver"),
        pytest.param(
            DRIVER,
            {"spec": {}},
            {"spec": {"attachRequired": False}},
            [("spec.attachedRequired", "Invalid")],
            id="attach",
        ),
        pytest.param(
            CSI_NODE,
            {"spec": {"drivers": [{"name": "a.b", "nodeID": "n"}]}},
            {"spec": {"drivers": [{"name": "a.b", "nodeID": "m"}, {"name": "c.d", "nodeID": "m"}]}},
            [("spec.drivers", "Invalid")],
            id="node id",
        ),
        pytest.param(
            CAPACITY,
            {"storageClassName": "s"},
            {"storageClassName": "t"},
            [("storageClassName", "Invalid")],
            id="class",
        ),
        pytest.param(CAPACITY, {"storageClassName": "s"}, {"capacity": "5Gi"}, [], id="capacity"),
        pytest.param(
            MAP, {"data": {"a": "b"}, "immutable": True}, {"metadata": {"labels": {"a": "b"}}}, [], id="label"
        ),
        pytest.param(
            MAP, {"data": {"a": "b"}, "immutable": True}, {"data": {"a": "c"}}, [("data", "Forbidden")], id="frozen"
        ),
        pytest.param(MAP, {"immutable": True}, {"immutable": None}, [("immutable", "Forbidden")], id="thawed"),
        pytest.param(SECRET, {}, {"type": "x/y"}, [("type", "Invalid")], id="type"),
        pytest.param(SECRET, {}, {"type": None}, [], id="type left out"),
    ],
)
def test_what_may_change(resource: Resource, old: Json, new: Json, causes: list[tuple[str, str]]) -> None:
    stored = begun(resource, old)
    assert refused_change(resource, stored, merge(stored, new)) == causes


def test_an_attachment_begins_detached_and_its_status_touches_nothing_else() -> None:
    stored = begun(VA, {**ATTACHMENT, "status": {"attached": True}})
    assert stored["status"] == {"attached": False}
    new = merge(stored, {"metadata": {"finalizers": ["a/b"]}, "spec": {"nodeName": "m"}, "status": {"attached": True}})
    after = changed(VA, stored, new, "status")
    assert (after["metadata"], after["spec"], after["status"]) == (
        stored["metadata"],
        stored["spec"],
        {"attached": True},
    )
    assert changed(VA, stored, new)["status"] == {"attached": False}


def test_errors_of_an_attachment_are_short_enough_to_keep() -> None:
    stored = begun(VA, ATTACHMENT)
    new = merge(stored, {"status": {"attachError": {"message": "x" * 1025}, "attachmentMetadata": {"a": "b" * 2**18}}})
    assert refused_change(VA, stored, new, "status") == [
        ("status.attachmentMetadata", "TooLong"),
        ("status.attachError.message", "TooLong"),
    ]


def test_a_node_shows_all_it_knows_of_itself() -> None:
    node = begun(NODE, {"status": {"capacity": {"memory": "1024Mi"}, "volumesAttached": [{"name": "a"}]}})
    assert node["status"]["nodeInfo"]["kubeletVersion"] == ""
    assert node["status"]["allocatable"] == {"memory": "1Gi"}
    assert node["status"]["volumesAttached"] == [{"name": "a", "devicePath": ""}]
    stored = merge(node, {"status": {"volumesAttached": [{"name": "a"}, {"name": "a"}]}})
    assert refused_change(NODE, node, stored, "status") == []


@pytest.mark.parametrize(
    ("node", "status", "roles"),
    [
        ({}, "Unknown", "<none>"),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready", "<none>"),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "NotReady", "<none>"),
        ({"spec": {"unschedulable": True}}, "Unknown,SchedulingDisabled", "<none>"),
        (
            {"metadata": {"name": "n", "labels": {"node-role.kubernetes.io/b": "", "kubernetes.io/role": "a"}}},
            "Unknown",
            "a,b",
        ),
    ],
)
def test_kubectl_sees_the_state_of_a_node(node: Json, status: str, roles: str) -> None:
    cells = {column.name: column.cell(begun(NODE, node)) for column in NODE.columns}
    assert (cells["Status"], cells["Roles"]) == (status, roles)


def test_a_namespace_is_active_and_labelled_by_its_name() -> None:
    made = begun(NAMESPACE, {"metadata": {"name": "team"}, "spec": {"finalizers": ["x/y"]}})
    assert made["spec"] == {"finalizers": ["x/y", "kubernetes"]}
    assert made["status"] == {"phase": "Active"}
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    assert refused(NAMESPACE, {"metadata": {"name": "a.b"}}) == [("metadata.name", "Invalid")]
    assert changed(NAMESPACE, made, merge(made, {"spec": {"finalizers": []}}))["spec"] == made["spec"]


def test_a_secret_takes_plain_text_and_keeps_base64() -> None:
    made = begun(SECRET, {"data": {"a": "eA==", "b": "eQ=="}, "stringData": {"b": "z"}})
    assert made == {
        "metadata": {"namespace": "default", "name": "a"},
        "data": {"a": "eA==", "b": "eg=="},
        "type": "Opaque",
    }


def test_a_driver_has_the_stock_defaults() -> None:
    assert begun(DRIVER, {"spec": {"attachRequired": False}})["spec"] == {
        "attachRequired": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "podInfoOnMount": False,
        "requiresRepublish": False,
        "seLinuxMount": False,
        "storageCapacity": False,
        "volumeLifecycleModes": ["Persistent"],
    }


def test_a_class_shows_that_it_is_the_default() -> None:
    marked = {"metadata": {"name": "std", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
    made = begun(SC, {**CLASS, **marked})
    assert (made["reclaimPolicy"], made["volumeBindingMode"]) == ("Delete", "Immediate")
    assert SC.columns[0].cell(made) == "std (default)"
