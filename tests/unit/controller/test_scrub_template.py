"""What an operator may lay over the scrubber pod, and that nothing weakens its sandbox unless the operator says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from volplane.controller.config import Configuration, parse_configuration, template_flaws
from volplane.errors import ConfigurationError
from volplane.reclaim.scrub_pod import overlaid

POD: dict[str, Any] = {
    "metadata": {"name": "volplane-scrub-1", "labels": {"ours": "1"}, "annotations": {"volplane.dev/a": "b"}},
    "spec": {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "scrub",
                "image": "i",
                "volumeMounts": [{"name": "volume", "mountPath": "/scrub"}],
                "securityContext": {
                    "runAsUser": 0,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]},
                },
            }
        ],
        "volumes": [{"name": "volume", "hostPath": {"path": "/x"}}],
    },
}


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [fields]}}


def context(**fields: Any) -> dict[str, Any]:
    return container(securityContext=fields)


def flaws(template: dict[str, Any], *, allow_unsafe: bool = False) -> list[str]:
    return list(template_flaws(template, allow_unsafe=allow_unsafe))


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"metadata": {"labels": {"team": "storage"}, "annotations": {"sidecar.istio.io/inject": "false"}}},
        {"spec": {"priorityClassName": "low", "nodeSelector": {"disk": "ssd"}, "imagePullSecrets": [{"name": "r"}]}},
        {"spec": {"securityContext": {"seLinuxOptions": {"level": "s0"}, "supplementalGroups": [7]}}},
        {"spec": {"hostNetwork": False, "automountServiceAccountToken": False, "runtimeClassName": "gvisor"}},
        container(name="scrub", imagePullPolicy="Always", args=["x"], env=[{"name": "A", "value": "b"}]),
        context(runAsUser=1000, runAsGroup=1000, readOnlyRootFilesystem=True, privileged=False, procMount="Default"),
        context(capabilities={"drop": ["ALL"], "add": ["FOWNER"]}, seccompProfile={"type": "Localhost"}),
    ],
)
def test_what_is_harmless_is_taken(template: dict[str, Any]) -> None:
    assert flaws(template) == []


WEAKENING: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"hostNetwork": True}}, "spec.hostNetwork: is True, which weakens the sandbox"),
    ({"spec": {"hostPID": True}}, "spec.hostPID: is True, which weakens the sandbox"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC: is True, which weakens the sandbox"),
    ({"spec": {"hostUsers": True}}, "spec.hostUsers: is True, which weakens the sandbox"),
    ({"spec": {"shareProcessNamespace": True}}, "spec.shareProcessNamespace: is True, which weakens the sandbox"),
    (
        {"spec": {"automountServiceAccountToken": True}},
        "spec.automountServiceAccountToken: is True, which weakens the sandbox",
    ),
    ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName: reaches beyond the sandbox"),
    ({"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}}, "spec.volumes: reaches beyond the sandbox"),
    ({"spec": {"initContainers": [{"name": "x"}]}}, "spec.initContainers: reaches beyond the sandbox"),
    ({"spec": {"somethingNew": 1}}, "spec.somethingNew: reaches beyond the sandbox"),
    (
        {"spec": {"securityContext": {"sysctls": [{"name": "a"}]}}},
        "spec.securityContext.sysctls: reaches beyond the sandbox",
    ),
    (
        {"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}},
        "spec.securityContext.seccompProfile: is {'type': 'Unconfined'}, which weakens the sandbox",
    ),
    (context(privileged=True), "spec.containers[0].securityContext.privileged: is True, which weakens the sandbox"),
    (
        context(allowPrivilegeEscalation=True),
        "spec.containers[0].securityContext.allowPrivilegeEscalation: is True, which weakens the sandbox",
    ),
    (
        context(readOnlyRootFilesystem=False),
        "spec.containers[0].securityContext.readOnlyRootFilesystem: is False, which weakens the sandbox",
    ),
    (
        context(procMount="Unmasked"),
        "spec.containers[0].securityContext.procMount: is 'Unmasked', which weakens the sandbox",
    ),
    (
        context(capabilities={"add": ["SYS_ADMIN", "FOWNER", "CHOWN"]}),
        "spec.containers[0].securityContext.capabilities.add: CHOWN, SYS_ADMIN weakens the sandbox",
    ),
    (
        context(capabilities={"drop": []}),
        "spec.containers[0].securityContext.capabilities.drop: is [], which weakens the sandbox; ALL are dropped",
    ),
    (
        context(seccompProfile={"type": "Unconfined"}),
        "spec.containers[0].securityContext.seccompProfile: is {'type': 'Unconfined'}, which weakens the sandbox",
    ),
    (context(seccompProfile=None), "spec.containers[0].securityContext.seccompProfile: is None"),
    (context(windowsOptions={}), "spec.containers[0].securityContext.windowsOptions: reaches beyond the sandbox"),
    (container(envFrom=[{"secretRef": {"name": "s"}}]), "spec.containers[0].envFrom: reaches beyond the sandbox"),
    (
        container(env=[{"name": "A", "value": "b"}, {"name": "B", "valueFrom": {"secretKeyRef": {}}}]),
        "spec.containers[0].env[1]: takes its value from elsewhere, which may be a secret",
    ),
    (
        container(volumeMounts=[{"name": "root", "mountPath": "/host"}]),
        "spec.containers[0].volumeMounts: reaches beyond the sandbox",
    ),
    (container(volumeDevices=[]), "spec.containers[0].volumeDevices: reaches beyond the sandbox"),
    (container(lifecycle={}), "spec.containers[0].lifecycle: reaches beyond the sandbox"),
    (container(ports=[{"hostPort": 1}]), "spec.containers[0].ports: reaches beyond the sandbox"),
]


@pytest.mark.parametrize(("template", "told"), WEAKENING)
def test_what_weakens_the_sandbox_is_refused_unless_it_is_allowed(template: dict[str, Any], told: str) -> None:
    [flaw] = flaws(template)
    assert flaw.startswith(told)
    assert flaw.endswith("; refused unless scrubber.allowUnsafe is true")
    assert flaws(template, allow_unsafe=True) == []


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ({"spce": {}}, "spce: unknown key; did you mean 'spec'?"),
        ({"metadata": {"name": "mine"}}, "metadata.name: only labels and annotations can be added"),
        ({"metadata": {"labels": {"a": 1}}}, "metadata.labels: expected a mapping of texts; quote them"),
        (
            {"metadata": {"annotations": {"volplane.dev/scrub-volume": "another"}}},
            "metadata.annotations.volplane.dev/scrub-volume: is volplane's own",
        ),
        ({"spec": None}, "spec: is None, expected a mapping"),
        ({"metadata": []}, "metadata: is [], expected a mapping"),
        ({"spec": {"securityContext": None}}, "spec.securityContext: is None, expected a mapping"),
        (container(securityContext=None), "spec.containers[0].securityContext: is None, expected a mapping"),
        (context(capabilities=None), "spec.containers[0].securityContext.capabilities: is None, expected a mapping"),
        ({"spec": {"containers": None}}, "spec.containers: expected a list with at most one container"),
        ({"spec": {"tolerations": []}}, "spec.tolerations: has a key of its own, scrubber.tolerations"),
        (container(image="x"), "spec.containers[0].image: has a key of its own, scrubber.image"),
        (container(command=["x"]), "spec.containers[0].command: has a key of its own, scrubber.command"),
        (container(resources={}), "spec.containers[0].resources: has a key of its own, scrubber.resources"),
        ({"spec": {"schedulingGates": []}}, "spec.schedulingGates: is volplane's own; a scrub could not be trusted"),
        ({"spec": {"activeDeadlineSeconds": 9}}, "spec.activeDeadlineSeconds: is volplane's own"),
        ({"spec": {"nodeName": "n"}}, "spec.nodeName: is volplane's own"),
        ({"spec": {"affinity": {}}}, "spec.affinity: is volplane's own"),
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy: is volplane's own"),
        (container(name="another"), "spec.containers[0].name: is volplane's own"),
        ({"spec": {"containers": [{}, {}]}}, "spec.containers: expected a list with at most one container"),
        ({"spec": {"containers": {}}}, "spec.containers: expected a list with at most one container"),
        ({"spec": {"volumes": [{"name": "volume"}]}}, "spec.volumes: 'volume' is the volume that is erased"),
        ({"spec": {"volumes": ["x"]}}, "spec.volumes: expected a list of mappings, each with a name"),
        (
            container(volumeMounts=[{"name": "volume", "mountPath": "/etc"}]),
            "spec.containers[0].volumeMounts: 'volume' is the volume that is erased",
        ),
    ],
)
def test_what_is_volplanes_own_cannot_be_changed_even_then(template: dict[str, Any], told: str) -> None:
    found = flaws(template, allow_unsafe=True)
    assert len(found) == 1
    assert found[0].startswith(told)


def test_the_configuration_is_refused_with_every_reason_and_its_place() -> None:
    text = "scrubber: {template: {spec: {hostNetwork: true, hostPID: true}}}"
    with pytest.raises(ConfigurationError) as refused:
        parse_configuration(text, "v.yaml")
    assert str(refused.value) == (
        "v.yaml: scrubber.template.spec.hostNetwork: is True, which weakens the sandbox; refused unless "
        "scrubber.allowUnsafe is true; v.yaml: scrubber.template.spec.hostPID: is True, which weakens the sandbox; "
        "refused "
        "unless scrubber.allowUnsafe is true"
    )
    allowed = parse_configuration(text.replace("scrubber: {", "scrubber: {allowUnsafe: true, "), "v.yaml")
    assert allowed.scrubber.template == {"spec": {"hostNetwork": True, "hostPID": True}}


def test_to_allow_it_without_a_template_changes_nothing() -> None:
    allowed = parse_configuration("scrubber: {allowUnsafe: true}", "v.yaml").scrubber
    assert (allowed.template, Configuration().scrubber.template) == ({}, {})


def test_a_template_is_laid_over_the_pod_and_leaves_the_rest_of_it() -> None:
    template = {
        "metadata": {"labels": {"team": "storage"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "volumes": [{"name": "more", "emptyDir": {}}],
            "containers": [
                {
                    "imagePullPolicy": "Always",
                    "volumeMounts": [{"name": "more", "mountPath": "/more"}],
                    "securityContext": {"runAsUser": 1000, "capabilities": {"add": []}},
                }
            ],
        },
    }
    pod = overlaid(POD, template)
    assert pod["metadata"] == {**POD["metadata"], "labels": {"ours": "1", "team": "storage"}}
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert [each["name"] for each in pod["spec"]["volumes"]] == ["volume", "more"]
    [scrub] = pod["spec"]["containers"]
    assert (scrub["name"], scrub["image"], scrub["imagePullPolicy"]) == ("scrub", "i", "Always")
    assert [each["name"] for each in scrub["volumeMounts"]] == ["volume", "more"]
    assert scrub["securityContext"] == {
        "runAsUser": 1000,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": []},
    }
    assert overlaid(POD, {}) == POD
    assert POD["spec"]["containers"][0]["securityContext"]["runAsUser"] == 0, "ours is as it was"


def test_the_how_to_page_shows_a_configuration_that_is_taken(repository: Path) -> None:
    page = (repository / "docs" / "how-to" / "configure-scrubbing.md").read_text("utf-8")
    [block] = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert parse_configuration(block, "volplane.yaml").scrubber.template["spec"]["priorityClassName"] == "low"
