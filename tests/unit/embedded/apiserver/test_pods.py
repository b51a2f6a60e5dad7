from __future__ import annotations

import pytest

from unit.embedded.apiserver.rules import STAMP, Json, begun, changed, kind, merge, refused, refused_change

POD = kind("Pod")
STRATEGY = POD.strategy
SPEC = "spec.containers[0]"


def pod(**spec: object) -> Json:
    return {"spec": {"containers": [{"name": "c", "image": "busybox"}], **spec}}


def one(**container: object) -> Json:
    return pod(containers=[{"name": "c", "image": "busybox", **container}])


def test_a_new_pod_has_the_stock_defaults() -> None:
    made = begun(POD, {**one(ports=[{"containerPort": 80}]), "status": {"phase": "Running"}})
    assert made["spec"] == {
        "containers": [
            {
                "name": "c",
                "image": "busybox",
                "imagePullPolicy": "Always",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    }
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1", "IfNotPresent"),
        ("host:5000/busybox", "Always"),
        ("host:5000/busybox:1", "IfNotPresent"),
        ("busybox@sha256:0", "IfNotPresent"),
    ],
)
def test_only_a_floating_image_is_pulled_always(image: str, policy: str) -> None:
    assert begun(POD, one(image=image))["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_volumes_probes_and_references_have_defaults_too() -> None:
    volumes = [
        {"name": "a"},
        {"name": "b", "secret": {"secretName": "s"}},
        {"name": "c", "hostPath": {"path": "/x"}},
        {"name": "d", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
        {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
    ]
    probe = {"httpGet": {"port": 80}}
    field = {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {"name": "c", "image": "i:1", "livenessProbe": probe, "env": [field]}
    spec = begun(POD, pod(volumes=volumes, containers=[container]))["spec"]
    assert spec["volumes"][:3] == [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "secret": {"secretName": "s", "defaultMode": 0o644}},
        {"name": "c", "hostPath": {"path": "/x", "type": ""}},
    ]
    assert spec["volumes"][3]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] == 3600
    assert spec["volumes"][4]["ephemeral"]["volumeClaimTemplate"]["spec"]["volumeMode"] == "Filesystem"
    assert spec["containers"][0]["livenessProbe"] == {
        "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
        "failureThreshold": 3,
        "periodSeconds": 10,
        "successThreshold": 1,
        "timeoutSeconds": 1,
    }
    assert spec["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
def test_quality_of_service_follows_from_the_resources(resources: Json, quality: str) -> None:
    assert begun(POD, one(resources=resources))["status"]["qosClass"] == quality


@pytest.mark.parametrize(
    ("obj", "causes"),
    [
        pytest.param(pod(), [], id="whole"),
        pytest.param(pod(containers=[]), [("spec.containers", "Required")], id="no containers"),
        pytest.param(one(name=""), [(f"{SPEC}.name", "Required")], id="no name"),
        pytest.param(one(name="A"), [(f"{SPEC}.name", "Invalid")], id="bad name"),
        pytest.param(one(image=""), [(f"{SPEC}.image", "Required")], id="no image"),
        pytest.param(
            pod(initContainers=[{"name": "c", "image": "x"}]),
            [("spec.initContainers[0].name", "Duplicate")],
            id="same name twice",
        ),
        pytest.param(one(imagePullPolicy="x"), [(f"{SPEC}.imagePullPolicy", "NotSupported")], id="pull policy"),
        pytest.param(pod(restartPolicy="x"), [("spec.restartPolicy", "NotSupported")], id="restart policy"),
        pytest.param(pod(dnsPolicy="x"), [("spec.dnsPolicy", "NotSupported")], id="dns policy"),
        pytest.param(pod(activeDeadlineSeconds=0), [("spec.activeDeadlineSeconds", "Invalid")], id="deadline"),
        pytest.param(pod(terminationGracePeriodSeconds=-1), [], id="a negative grace is one second"),
        pytest.param(pod(nodeName="A"), [("spec.nodeName", "Invalid")], id="node name"),
        pytest.param(pod(nodeSelector={"a b": "c"}), [("spec.nodeSelector", "Invalid")], id="node selector"),
        pytest.param(
            pod(nodeName="n", schedulingGates=[{"name": "a/b"}]),
            [("spec.nodeName", "Forbidden")],
            id="gated and placed",
        ),
        pytest.param(
            pod(schedulingGates=[{"name": "a/b"}, {"name": "a/b"}]),
            [("spec.schedulingGates[1]", "Duplicate")],
            id="same gate twice",
        ),
        pytest.param(pod(schedulingGates=[{"name": "-"}]), [("spec.schedulingGates[0]", "Invalid")], id="gate"),
        pytest.param(
            one(volumeMounts=[{"name": "v", "mountPath": "/x"}]),
            [(f"{SPEC}.volumeMounts[0].name", "NotFound")],
            id="mount of nothing",
        ),
        pytest.param(
            pod(volumes=[{"name": "v"}, {"name": "v"}]), [("spec.volumes[1].name", "Duplicate")], id="volume twice"
        ),
        pytest.param(
            pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]),
            [("spec.volumes[0].hostPath", "Forbidden")],
            id="two sources",
        ),
        pytest.param(
            pod(volumes=[{"name": "v", "persistentVolumeClaim": {}}]),
            [("spec.volumes[0].persistentVolumeClaim.claimName", "Required")],
            id="no claim",
        ),
        pytest.param(
            pod(volumes=[{"name": "v", "hostPath": {"path": "/../x"}}]),
            [("spec.volumes[0].hostPath.path", "Invalid")],
            id="step back",
        ),
        pytest.param(
            pod(
                volumes=[{"name": "v"}],
                containers=[
                    {
                        "name": "c",
                        "image": "i",
                        "volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "../y"}],
                        "volumeDevices": [{"name": "v", "devicePath": "/x"}],
                    }
                ],
            ),
            [
                (f"{SPEC}.volumeMounts[0].name", "Invalid"),
                (f"{SPEC}.volumeMounts[0].mountPath", "Invalid"),
                (f"{SPEC}.volumeMounts.subPath", "Invalid"),
                (f"{SPEC}.volumeDevices[0].name", "Invalid"),
                (f"{SPEC}.volumeDevices[0].name", "Invalid"),
                (f"{SPEC}.volumeDevices[0].devicePath", "Invalid"),
            ],
            id="mounts",
        ),
        pytest.param(one(env=[{"name": "a=b"}]), [(f"{SPEC}.env[0].name", "Invalid")], id="variable"),
        pytest.param(one(env=[{"name": "a", "valueFrom": {}}]), [(f"{SPEC}.env[0].valueFrom", "Invalid")], id="value"),
        pytest.param(one(ports=[{"containerPort": 70000}]), [(f"{SPEC}.ports[0].containerPort", "Invalid")], id="port"),
        pytest.param(
            one(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
            [(f"{SPEC}.resources.requests", "Invalid")],
            id="more than the limit",
        ),
        pytest.param(
            pod(tolerations=[{"operator": "Equal"}]), [("spec.tolerations[0].operator", "Invalid")], id="toleration"
        ),
        pytest.param(
            pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}),
            [
                (
                    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
                    "Required",
                )
            ],
            id="affinity",
        ),
    ],
)
def test_a_pod_must_be_whole(obj: Json, causes: list[tuple[str, str]]) -> None:
    assert refused(POD, obj) == causes


GATED = {"schedulingGates": [{"name": "volplane.dev/scrub"}, {"name": "a/b"}]}
TOLERATION = {"key": "a", "operator": "Exists", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("old", "new", "causes"),
    [
        pytest.param({}, {"containers": [{"name": "c", "image": "other"}]}, [], id="image"),
        pytest.param({}, {"activeDeadlineSeconds": 5}, [], id="deadline set"),
        pytest.param({"activeDeadlineSeconds": 9}, {"activeDeadlineSeconds": 5}, [], id="deadline shortened"),
        pytest.param(
            {"activeDeadlineSeconds": 5},
            {"activeDeadlineSeconds": 9},
            [("spec.activeDeadlineSeconds", "Invalid")],
            id="deadline extended",
        ),
        pytest.param(
            {"tolerations": [TOLERATION]}, {"tolerations": [TOLERATION, {"operator": "Exists"}]}, [], id="more"
        ),
        pytest.param(
            {"tolerations": [TOLERATION]}, {"tolerations": None}, [("spec.tolerations", "Forbidden")], id="less"
        ),
        pytest.param(GATED, {"schedulingGates": [{"name": "a/b"}]}, [], id="a gate lifted"),
        pytest.param(GATED, {"schedulingGates": None}, [], id="all gates lifted"),
        pytest.param(
            {},
            GATED,
            [("spec.schedulingGates[0].name", "Forbidden"), ("spec.schedulingGates[1].name", "Forbidden")],
            id="gates added",
        ),
        pytest.param({}, {"nodeName": "n"}, [("spec", "Forbidden")], id="node"),
        pytest.param({}, {"restartPolicy": "Never"}, [("spec", "Forbidden")], id="restart policy"),
        pytest.param({}, {"volumes": [{"name": "v"}]}, [("spec", "Forbidden")], id="volumes"),
        pytest.param({}, {"nodeSelector": {"a": "b"}}, [("spec", "Forbidden")], id="selector"),
        pytest.param(GATED, {"nodeSelector": {"a": "b"}}, [], id="a gated pod's selector may narrow"),
        pytest.param(
            {**GATED, "nodeSelector": {"a": "b"}},
            {"nodeSelector": {"a": "c"}},
            [("spec.nodeSelector", "Invalid")],
            id="not turn",
        ),
    ],
)
def test_what_may_change_in_a_pod(old: Json, new: Json, causes: list[tuple[str, str]]) -> None:
    stored = begun(POD, pod(**old))
    assert refused_change(POD, stored, merge(stored, {"spec": new})) == causes


def test_a_gated_pod_may_have_its_node_terms_narrowed_but_not_others() -> None:
    def affinity(*keys: str) -> Json:
        expressions = [{"key": key, "operator": "Exists"} for key in keys]
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}

    stored = begun(POD, pod(**GATED, **affinity("a")))
    assert refused_change(POD, stored, merge(stored, {"spec": affinity("a", "b")})) == []
    terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    assert refused_change(POD, stored, merge(stored, {"spec": affinity("b")})) == [(f"{terms}[0]", "Invalid")]


@pytest.mark.parametrize(
    ("spec", "phase", "asked", "seconds"),
    [
        ({"nodeName": "n"}, "Running", None, 30),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 5}, "Running", None, 5),
        ({"nodeName": "n"}, "Running", 7, 7),
        ({"nodeName": "n"}, "Running", 0, 0),
        ({"nodeName": "n"}, "Running", -1, 1),
        ({"nodeName": "n"}, "Succeeded", None, 0),
        ({"nodeName": "n"}, "Failed", 60, 0),
        ({}, "Pending", None, 0),
    ],
)
def test_what_runs_nowhere_needs_no_time_to_end(spec: Json, phase: str, asked: int | None, seconds: int) -> None:
    stored = merge(begun(POD, pod(**spec)), {"status": {"phase": phase}})
    assert STRATEGY.grace_seconds(stored, asked) == seconds


def binding(**more: object) -> Json:
    return {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}, **more}


def test_a_binding_places_a_pod_and_says_when() -> None:
    stored = begun(POD, pod())
    assert STRATEGY.bind(stored, binding(metadata={"annotations": {"a": "b"}})) == ""
    assert stored["spec"]["nodeName"] == "n1"
    assert stored["metadata"]["annotations"] == {"a": "b"}
    assert stored["status"]["conditions"] == [
        {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": STAMP}
    ]


@pytest.mark.parametrize(
    ("change", "given", "why"),
    [
        ({"spec": {"nodeName": "n0"}}, binding(), 'pod a is already assigned to node "n0"'),
        ({"spec": GATED}, binding(), "pod a has non-empty .spec.schedulingGates"),
        ({"metadata": {"deletionTimestamp": STAMP}}, binding(), "pod a is being deleted, cannot be assigned to a host"),
        (
            {"metadata": {"uid": "1"}},
            binding(metadata={"uid": "2"}),
            "Precondition failed: UID in precondition: 2, UID in object meta: 1",
        ),
    ],
)
def test_a_pod_is_not_bound_twice_nor_gated_nor_ending(change: Json, given: Json, why: str) -> None:
    stored = merge(begun(POD, pod()), change)
    before = merge(stored, {})
    assert STRATEGY.bind(stored, given) == why
    assert stored == before


def test_a_binding_must_name_a_node() -> None:
    found = STRATEGY.validate_binding({"target": {"kind": "Machine"}})
    assert [(cause.field, cause.reason) for cause in found] == [
        ("target.kind", "FieldValueNotSupported"),
        ("target.name", "FieldValueRequired"),
    ]


def test_a_gated_pod_says_that_it_waits() -> None:
    stored = begun(POD, pod(**GATED))
    assert stored["status"]["conditions"][0]["reason"] == "SchedulingGated"
    assert {column.name: column.cell(stored) for column in POD.columns}["Status"] == "SchedulingGated"


def test_a_container_that_ended_for_good_stays_ended() -> None:
    ended = {"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 0}}}]}
    running = {"containerStatuses": [{"name": "c", "state": {"running": {}}}]}
    for policy, causes in (("Always", []), ("Never", [("status.containerStatuses[0].state", "Forbidden")])):
        stored = merge(begun(POD, pod(restartPolicy=policy)), {"status": ended})
        assert refused_change(POD, stored, merge(stored, {"status": running}), "status") == causes


def test_status_does_not_change_spec_and_keeps_its_quality() -> None:
    stored = begun(POD, pod())
    after = changed(
        POD, stored, {**stored, "spec": pod(restartPolicy="Never")["spec"], "status": {"phase": "Running"}}, "status"
    )
    assert after["spec"] == stored["spec"]
    assert after["status"] == {"phase": "Running", "qosClass": "BestEffort"}


def state(**kinds: object) -> Json:
    return {"name": "c", "state": kinds, "restartCount": 0, "ready": "running" in kinds}


@pytest.mark.parametrize(
    ("status", "ready", "shown"),
    [
        ({"phase": "Pending"}, "0/1", "Pending"),
        ({"phase": "Pending", "reason": "Evicted"}, "0/1", "Evicted"),
        ({"phase": "Running", "containerStatuses": [state(running={})]}, "1/1", "Running"),
        ({"phase": "Pending", "containerStatuses": [state(waiting={"reason": "ErrImagePull"})]}, "0/1", "ErrImagePull"),
        ({"phase": "Failed", "containerStatuses": [state(terminated={"exitCode": 3})]}, "0/1", "ExitCode:3"),
        ({"phase": "Failed", "containerStatuses": [state(terminated={"signal": 9})]}, "0/1", "Signal:9"),
        ({"phase": "Failed", "containerStatuses": [state(terminated={"reason": "Error"})]}, "0/1", "Error"),
        ({"phase": "Pending", "initContainerStatuses": [state(running={})]}, "0/1", "Init:0/1"),
        ({"phase": "Pending", "initContainerStatuses": [state(terminated={"exitCode": 1})]}, "0/1", "Init:ExitCode:1"),
        ({"phase": "Pending", "initContainerStatuses": [state(waiting={"reason": "Oops"})]}, "0/1", "Init:Oops"),
    ],
)
def test_kubectl_sees_what_the_containers_do(status: Json, ready: str, shown: str) -> None:
    stored = merge(begun(POD, pod(initContainers=[{"name": "i", "image": "x"}])), {"status": status})
    cells = {column.name: column.cell(stored) for column in POD.columns}
    assert (cells["Ready"], cells["Status"]) == (ready, shown)
    ending = merge(stored, {"metadata": {"deletionTimestamp": STAMP}})
    last = {column.name: column.cell(ending) for column in POD.columns}["Status"]
    assert last == (shown if status["phase"] == "Failed" else "Terminating")
