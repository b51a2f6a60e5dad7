"""The Helm chart installs what `volplane manifests` prints, and refuses values that cannot be."""

from __future__ import annotations

import functools
import json
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import chart_rules, helm

from api_fields import unknown_fields_of_object
from volplane.cli.installation import Installation, documents
from volplane.cli.manifests import MOST_REPLICAS
from volplane.controller import config
from volplane.process.duties import parse_controllers

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "deploy" / "chart"
NAMESPACE = "volplane-system"
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))["$defs"]

RENDERED = {
    "default": """
{}
""",
    "distributed-as-root": """
config:
  drivers:
    - {name: local.volplane.dev, backend: hostpath, options: {root: /srv/volumes}, distributed: true}
mounts: [/srv/volumes]
asRoot: true
storageClasses:
  perDriver: false
""",
    "distributed": """
controllers: [provisioner, reclaimer, assigner, capacity]
config:
  drivers:
    - name: local.volplane.dev
      backend: hostpath
      options: {root: /srv/volumes, key: "secret:volplane-system/disks/key"}
      distributed: true
    - {name: local.example.com, backend: hostpath, options: {root: /srv/shared, shared: true}}
mounts: [/srv/volumes]
""",
    "little": """
controllers: [provisioner]
replicas: 1
networkPolicies: false
storageClasses: {perDriver: false}
""",
    "pods-of-the-chart": """
image: {repository: registry.example.com/volplane, tag: next, pullPolicy: Always}
imagePullSecrets: [{name: registry}]
config:
  drivers:
    - {name: local.volplane.dev, backend: hostpath, options: {root: /srv/volumes}, distributed: true}
mounts: [/srv/volumes]
resources: {limits: {memory: 512Mi}, requests: {cpu: 200m, memory: 256Mi}}
nodeSelector: {node-role.kubernetes.io/infra: ""}
tolerations: [{key: node-role.kubernetes.io/infra, operator: Exists}]
node:
  nodeSelector: {disks: local}
  tolerations: [{operator: Exists}]
storageClasses:
  perDriver: false
  more:
    - name: kept
      provisioner: local.volplane.dev
      reclaimPolicy: Retain
      volumeBindingMode: WaitForFirstConsumer
      parameters: {mode: "0700"}
      annotations: {storageclass.kubernetes.io/is-default-class: "true"}
""",
    "whole-control-plane": """
image:
  repository: registry.example.com/volplane
  tag: "0.1.0@sha256:0000000000000000000000000000000000000000000000000000000000000000"
controllers: [all]
replicas: 3
monitoring: true
config:
  clusterId: prod-eu-1
  drivers:
    - name: fast.example.com
      backend: hostpath
      options: {root: /srv/volumes, shared: true}
    - name: files.example.com
      backend: nfs
      options: {user: "env:USER", key: "secret:volplane-system/filer/key"}
      concurrency: 20
      rate: 2.5
      storageCapacity: true
    - name: ebs.example.com
      backend: aws_ebs
      options:
        key: "secret:team-b/cloud/key"
        other: " secret:team-b/account/x "
        again: "secret:team-b/cloud/id"
        not: "secret:team-b"
  extensions:
    - name: quota
      options: {token: "secret:team-c/audit/token"}
  scrubber: {image: "registry.example.com/scrub:1", deadlinePerGiB: 60}
mounts: [/srv/volumes, /srv/more]
asRoot: true
""",
}
"""Values that the chart accepts, as YAML."""
REFUSED = {
    "all": (
        "controllers: [all, binder]",
        "all stands alone",
    ),
    "backend": (
        "config: {drivers: [{name: fast.example.com}]}",
        "at '/config/drivers/0': missing property 'backend'",
    ),
    "controller": (
        "controllers: [bider]",
        "controllers: bider is no controller; give all, or some of binder, provisioner",
    ),
    "driver": (
        "config: {drivers: [{name: Fast_Disks, backend: hostpath}]}",
        "at '/config/drivers/0/name': 'Fast_Disks' does not match",
    ),
    "image": (
        'image: {repository: "registry.example.com/volplane; rm"}',
        "at '/image/repository'",
    ),
    "key": (
        "config: {drivrs: []}",
        "at '/config': additional properties 'drivrs' not allowed",
    ),
    "mount": (
        "mounts: [srv/volumes]",
        "at '/mounts/0': 'srv/volumes' does not match",
    ),
    "replicas": (
        "replicas: 11",
        "at '/replicas': maximum: got 11, want 10",
    ),
    "type": (
        'asRoot: "yes"',
        "at '/asRoot': got string, want boolean",
    ),
}
"""Values that it refuses, and a part of the message."""
OWN = ("imagePullSecrets", "nodeSelector", "tolerations")
"""Fields of pods that only the chart can set; beside them imagePullPolicy and resources of the container."""


def template(values: str) -> subprocess.CompletedProcess[str]:
    """Run `helm template` with these values."""
    program = helm.find()
    if program is None:
        pytest.skip("helm is not installed (`make helm`)")
    command = [program, "template", "volplane", str(CHART), "--namespace", NAMESPACE, "--values", "-"]
    return subprocess.run(command, input=values, capture_output=True, text=True, check=False)


@functools.cache
def rendering(name: str) -> str:
    ended = template(RENDERED[name])
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def rendered(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(rendering(name)) if each]


def given(name: str) -> dict[str, Any]:
    """The values with the defaults of the chart."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    for key, value in (yaml.safe_load(RENDERED[name]) or {}).items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    return values


def plain(values: dict[str, Any], configuration: str) -> list[dict[str, Any]]:
    """What `volplane manifests` prints for the same wishes, but for the namespace, which Helm makes."""
    tag = values["image"]["tag"] or yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"]
    option = ",".join(values["controllers"])
    wanted = Installation(
        namespace=NAMESPACE,
        option=option,
        controllers=parse_controllers(option),
        image=f"{values['image']['repository']}:{tag}",
        configuration=configuration,
        replicas=values["replicas"],
        monitoring=values["monitoring"],
        network_policies=values["networkPolicies"],
        admission_policy=values["admissionPolicy"],
        storage_classes=values["storageClasses"]["perDriver"],
        mounts=values["mounts"],
        as_root=values["asRoot"],
    )
    return [each for each in documents(wanted) if (each["kind"], each["metadata"]["name"]) != ("Namespace", NAMESPACE)]


def compared(objects: Iterable[dict[str, Any]]) -> dict[tuple[str, str, str], Any]:
    """By kind, namespace and name. Of roles what they allow, as the chart merges no rules; of files what they say."""
    found: dict[tuple[str, str, str], Any] = {}
    for each in objects:
        body = dict(each)
        if "rules" in body:
            body["rules"] = {
                (group, resource, name, verb)
                for rule in body["rules"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for name in rule.get("resourceNames", [""])
                for verb in rule["verbs"]
            }
        if body["kind"] == "ConfigMap":
            body["data"] = {file: yaml.safe_load(text) for file, text in body["data"].items()}
        if body["kind"] == "Namespace":
            body["metadata"] = {key: value for key, value in body["metadata"].items() if key != "annotations"}
        key = (body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"])
        assert key not in found
        found[key] = body
    return found


def pods(objects: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})}


def take_own(pod: dict[str, Any]) -> dict[str, Any]:
    """Take away what only the chart can set."""
    (container,) = pod["containers"]
    own = {key: pod.pop(key) for key in OWN if key in pod}
    return own | {key: container.pop(key, None) for key in ("imagePullPolicy", "resources")}


def test_the_chart_has_the_version_of_the_distributions() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])
    assert (chart["name"], chart["description"]) == (project["name"], project["description"])


@pytest.mark.parametrize("name", RENDERED)
def test_the_chart_installs_what_the_command_prints(name: str) -> None:
    values, objects = given(name), rendered(name)
    texts = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    configuration = texts["volplane"]["volplane.yaml"]
    assert yaml.safe_load(configuration) == values["config"]
    printed = plain(values, configuration)
    for pod in (*pods(objects).values(), *pods(printed).values()):
        take_own(pod)
    more = {("StorageClass", "", each["name"]) for each in values["storageClasses"]["more"]}
    found = compared(objects)
    assert {key: body for key, body in found.items() if key not in more} == compared(printed)
    assert more <= found.keys()


def test_values_of_the_chart_alone_reach_the_pods() -> None:
    values, objects = given("pods-of-the-chart"), rendered("pods-of-the-chart")
    own = {kind: take_own(pod) for kind, pod in pods(objects).items()}
    shared = {
        "imagePullSecrets": values["imagePullSecrets"],
        "imagePullPolicy": "Always",
        "resources": {"limits": {"memory": "512Mi"}, "requests": {"cpu": "200m", "memory": "256Mi"}},
    }
    assert own["Deployment"] == {
        **shared,
        "nodeSelector": {"node-role.kubernetes.io/infra": ""},
        "tolerations": [{"key": "node-role.kubernetes.io/infra", "operator": "Exists"}],
    }
    assert own["DaemonSet"] == {
        **shared,
        "nodeSelector": {"disks": "local"},
        "tolerations": [{"operator": "Exists"}],
    }
    (kept,) = (each for each in objects if each["kind"] == "StorageClass")
    assert kept["parameters"] == {"mode": "0700"}
    assert (kept["reclaimPolicy"], kept["volumeBindingMode"]) == ("Retain", "WaitForFirstConsumer")
    assert kept["metadata"]["annotations"] == {"storageclass.kubernetes.io/is-default-class": "true"}


@pytest.mark.parametrize("name", RENDERED)
def test_every_field_is_one_of_the_api(name: str) -> None:
    for each in rendered(name):
        if not each["apiVersion"].startswith("monitoring.coreos.com/"):
            assert unknown_fields_of_object(each) == []


@pytest.mark.parametrize("name", REFUSED)
def test_helm_refuses_what_cannot_be_and_says_where(name: str) -> None:
    values, message = REFUSED[name]
    ended = template(values)
    assert ended.returncode != 0
    assert message in ended.stderr


def test_resources_are_those_of_the_command() -> None:
    (container,) = pods(rendered("default"))["Deployment"]["containers"]
    (printed,) = pods(plain(given("default"), "drivers: []"))["Deployment"]["containers"]
    assert container["resources"] == printed["resources"] == given("default")["resources"]


def test_the_schema_has_every_value_of_the_file() -> None:
    values = given("default")
    assert set(SCHEMA["Values"]["properties"]) == {*values, "global"}
    for name, key in (("Image", "image"), ("StorageClasses", "storageClasses"), ("Node", "node")):
        assert set(SCHEMA[name]["properties"]) == set(values[key])
    assert SCHEMA["Values"]["properties"]["replicas"]["maximum"] == MOST_REPLICAS


@pytest.mark.parametrize(
    ("definition", "keys"),
    [
        ("Configuration", config._KEYS),
        ("Driver", config._DRIVER_KEYS),
        ("Extension", config._EXTENSION_KEYS),
        ("Scrubber", config._SCRUBBER_KEYS),
    ],
)
def test_the_schema_has_the_keys_of_the_configuration_file(definition: str, keys: tuple[str, ...]) -> None:
    assert set(SCHEMA[definition]["properties"]) == set(keys)


def test_the_rights_in_the_chart_are_those_of_the_code() -> None:
    assert chart_rules.FILE.read_text("utf-8") == chart_rules.content(), "`make chart` writes them"
    assert chart_rules.POLICY.read_text("utf-8") == chart_rules.policy(), "`make chart` writes it"
