from __future__ import annotations

import copy
from typing import Any

import pytest

from volplane_embedded.apiserver.errors import StatusError
from volplane_embedded.apiserver.kinds import RESOURCES
from volplane_embedded.apiserver.strategic import strategic_merge

BY_KIND = {resource.kind: resource for resource in RESOURCES}


def merged(kind: str, original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    before = copy.deepcopy((original, patch))
    result = strategic_merge(BY_KIND[kind], original, patch)
    assert (original, patch) == before, "neither is changed"
    return result


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


@pytest.mark.parametrize(
    ("kind", "original", "patch", "result"),
    [
        pytest.param(
            "PersistentVolume",
            {"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}},
            {"metadata": {"finalizers": ["example.com/two"]}},
            {"metadata": {"finalizers": ["example.com/two", "kubernetes.io/pv-protection"]}},
            id="finalizers merge",
        ),
        pytest.param(
            "PersistentVolume",
            {"metadata": {"finalizers": ["a/a", "b/b", "c/c"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["b/b"]}},
            {"metadata": {"finalizers": ["a/a", "c/c"]}},
            id="an element of a list of texts is deleted",
        ),
        pytest.param(
            "PersistentVolume",
            {"metadata": {"finalizers": ["a/a", "b/b"]}},
            {
                "metadata": {
                    "$deleteFromPrimitiveList/finalizers": ["a/a"],
                    "$setElementOrder/finalizers": ["c/c", "b/b"],
                    "finalizers": ["c/c"],
                }
            },
            {"metadata": {"finalizers": ["c/c", "b/b"]}},
            id="as kubectl edits finalizers",
        ),
        pytest.param(
            "PersistentVolume",
            {"metadata": {"ownerReferences": [{"uid": "1", "name": "a"}]}},
            {"metadata": {"ownerReferences": [{"uid": "1", "controller": True}, {"uid": "2", "name": "b"}]}},
            {
                "metadata": {
                    "ownerReferences": [{"uid": "1", "name": "a", "controller": True}, {"uid": "2", "name": "b"}]
                }
            },
            id="owners merge by uid",
        ),
        pytest.param(
            "PersistentVolume",
            {"spec": {"accessModes": ["ReadWriteOnce"]}},
            {"spec": {"accessModes": ["ReadOnlyMany"]}},
            {"spec": {"accessModes": ["ReadOnlyMany"]}},
            id="access modes are replaced",
        ),
        pytest.param(
            "PersistentVolume",
            {"metadata": {"labels": {"a": "1", "b": "2"}}},
            {"metadata": {"labels": {"a": None, "c": "3"}}},
            {"metadata": {"labels": {"b": "2", "c": "3"}}},
            id="null removes",
        ),
        pytest.param(
            "PersistentVolume",
            {"metadata": {"labels": {"a": "1"}}},
            {"metadata": {"labels": {"$patch": "replace", "b": "2"}}},
            {"metadata": {"labels": {"b": "2"}}},
            id="a map is replaced",
        ),
        pytest.param(
            "PersistentVolume",
            {"metadata": {"labels": {"a": "1"}}, "spec": {"nfs": {"path": "/"}}},
            {"metadata": {"labels": {"$patch": "delete"}}, "spec": {"claimRef": {"name": "c", "uid": None}}},
            {"metadata": {"labels": {}}, "spec": {"nfs": {"path": "/"}, "claimRef": {"name": "c"}}},
            id="a map is emptied; nulls of a new map are dropped",
        ),
        pytest.param(
            "PersistentVolumeClaim",
            {"status": {"phase": "Bound", "conditions": [{"type": "A", "status": "True", "reason": "x"}]}},
            {"status": {"conditions": [{"type": "A", "status": "False"}, {"type": "B", "status": "True"}]}},
            {
                "status": {
                    "phase": "Bound",
                    "conditions": [
                        {"type": "A", "status": "False", "reason": "x"},
                        {"type": "B", "status": "True"},
                    ],
                }
            },
            id="conditions merge by type",
        ),
        pytest.param(
            "PersistentVolumeClaim",
            {"status": {"conditions": [{"type": "A"}, {"type": "B"}]}},
            {"status": {"conditions": [{"type": "A", "$patch": "delete"}]}},
            {"status": {"conditions": [{"type": "B"}]}},
            id="a condition is deleted",
        ),
        pytest.param(
            "PersistentVolumeClaim",
            {"status": {"conditions": [{"type": "A"}, {"type": "B"}]}},
            {"status": {"conditions": [{"type": "C"}, {"$patch": "replace"}]}},
            {"status": {"conditions": [{"type": "C"}]}},
            id="a list is replaced",
        ),
        pytest.param(
            "PersistentVolumeClaim",
            {"status": {}},
            {"status": {"conditions": [{"type": "C", "message": None}, {"type": "D", "$patch": "delete"}]}},
            {"status": {"conditions": [{"type": "C"}]}},
            id="a list that was not there is taken without directives and nulls",
        ),
        pytest.param(
            "Pod",
            pod(
                containers=[
                    {"name": "a", "image": "x", "env": [{"name": "K", "value": "1"}]},
                    {"name": "b", "image": "y"},
                ]
            ),
            pod(containers=[{"name": "a", "env": [{"name": "L", "value": "2"}]}]),
            pod(
                containers=[
                    {"name": "a", "image": "x", "env": [{"name": "L", "value": "2"}, {"name": "K", "value": "1"}]},
                    {"name": "b", "image": "y"},
                ]
            ),
            id="containers by name, variables by name",
        ),
        pytest.param(
            "Pod",
            pod(
                containers=[
                    {"name": "a", "ports": [{"containerPort": 80}], "volumeMounts": [{"mountPath": "/a", "name": "v"}]}
                ]
            ),
            pod(
                containers=[
                    {
                        "name": "a",
                        "ports": [{"containerPort": 80, "name": "http"}],
                        "volumeMounts": [{"mountPath": "/a", "readOnly": True}],
                    }
                ]
            ),
            pod(
                containers=[
                    {
                        "name": "a",
                        "ports": [{"containerPort": 80, "name": "http"}],
                        "volumeMounts": [{"mountPath": "/a", "name": "v", "readOnly": True}],
                    }
                ]
            ),
            id="ports by number, mounts by path",
        ),
        pytest.param(
            "Pod",
            pod(tolerations=[{"key": "a"}, {"key": "b"}]),
            pod(tolerations=[{"key": "c"}]),
            pod(tolerations=[{"key": "c"}]),
            id="tolerations are one",
        ),
        pytest.param(
            "Pod",
            pod(schedulingGates=[{"name": "volplane.dev/scrub"}, {"name": "x/y"}]),
            pod(
                **{
                    "$setElementOrder/schedulingGates": [{"name": "x/y"}],
                    "schedulingGates": [{"name": "volplane.dev/scrub", "$patch": "delete"}],
                }
            ),
            pod(schedulingGates=[{"name": "x/y"}]),
            id="a gate is lifted",
        ),
        pytest.param(
            "Pod",
            pod(volumes=[{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]),
            pod(volumes=[{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]),
            pod(volumes=[{"name": "v", "hostPath": {"path": "/x"}}, {"name": "w", "emptyDir": {}}]),
            id="the source of a volume is exchanged",
        ),
        pytest.param(
            "Pod",
            pod(containers=[{"name": n} for n in ("a", "b", "c", "d")]),
            pod(**{"$setElementOrder/containers": [{"name": "d"}, {"name": "a"}]}),
            pod(containers=[{"name": n} for n in ("b", "c", "d", "a")]),
            id="order is what the patch says, others keep their places",
        ),
        pytest.param(
            "Node",
            {"status": {"addresses": [{"type": "Hostname", "address": "a"}], "volumesAttached": [{"name": "a"}]}},
            {"status": {"addresses": [{"type": "InternalIP", "address": "b"}], "volumesAttached": [{"name": "b"}]}},
            {
                "status": {
                    "addresses": [{"type": "InternalIP", "address": "b"}, {"type": "Hostname", "address": "a"}],
                    "volumesAttached": [{"name": "b"}],
                }
            },
            id="addresses merge, attached volumes are replaced",
        ),
        pytest.param(
            "CSINode",
            {"spec": {"drivers": [{"name": "a", "nodeID": "1"}]}},
            {"spec": {"drivers": [{"name": "b", "nodeID": "2"}]}},
            {"spec": {"drivers": [{"name": "b", "nodeID": "2"}, {"name": "a", "nodeID": "1"}]}},
            id="drivers by name",
        ),
        pytest.param("Secret", {"data": {"a": "1"}}, {"data": ["x"]}, {"data": ["x"]}, id="another type is taken"),
        pytest.param("Secret", {"bogus": [1]}, {"bogus": [2]}, {"bogus": [2]}, id="unknown fields are replaced"),
    ],
)
def test_a_patch_is_merged_as_the_server_does(
    kind: str, original: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]
) -> None:
    assert merged(kind, original, patch) == result


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"spec": {"containers": [{"image": "x"}]}}, 422),
        ({"spec": {"containers": [{"$patch": "delete"}]}}, 422),
        ({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}, 422),
        ({"spec": {"$patch": "merge"}}, 500),
        ({"spec": {"$retainKeys": "name"}}, 400),
        ({"spec": {"$retainKeys": ["containers"], "volumes": []}}, 400),
        ({"spec": {"$setElementOrder/containers": "a"}}, 400),
        ({"spec": {"$setElementOrder/containers": [], "containers": {"a": 1}}}, 400),
    ],
)
def test_a_malformed_directive_is_refused(patch: dict[str, Any], code: int) -> None:
    with pytest.raises(StatusError) as refused:
        merged("Pod", pod(containers=[{"name": "a"}]), patch)
    assert refused.value.code == code
