"""The Helm chart installs what `volplane manifests` prints, and refuses values that cannot be."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import chart_rules, helm
from typer.main import get_command

from api_fields import unknown_fields_of_object
from volplane.cli import main as cli
from volplane.cli.installation import Installation, documents
from volplane.cli.manifests import MOST_REPLICAS
from volplane.controller import config

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "deploy" / "chart"
PAGE = REPOSITORY / "docs" / "how-to" / "serve-a-backend-by-csi.md"
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
CSI_ALONE = "controllers: []\n"
CSI = {
    "directory": """
csi:
  enabled: true
  backend: hostpath
  driverName: hostpath.volplane.dev
  cluster: prod
  options: {root: /srv/volumes, shared: true, mode: "0770"}
  mounts: [/srv/volumes]
""",
    "root-of-each-node": """
csi:
  enabled: true
  backend: hostpath
  driverName: local.example.com
  cluster: prod
  options: {root: /srv/volumes}
  mounts: [/srv/volumes]
  perNode: true
  snapshots: true
  storageCapacity: true
  node: {devices: true}
""",
    "nfs": """
csi:
  enabled: true
  backend: nfs
  driverName: nfs.volplane.dev
  cluster: prod
  options: {shares: "filer:/export", key: "env:KEY"}
  env: [{name: KEY, valueFrom: {secretKeyRef: {name: filer, key: key}}}]
""",
    "disks": """
imagePullSecrets: [{name: registry}]
nodeSelector: {node-role.kubernetes.io/infra: ""}
csi:
  enabled: true
  backend: aws_ebs
  driverName: ebs.csi.aws.com
  cluster: prod
  options: {region: eu-central-1, attach: true}
  attach: true
  snapshots: true
  fsGroupPolicy: ReadWriteOnceWithFSType
  node: {enabled: false}
""",
}
"""Values with a CSI driver."""
REFUSED = {
    "csi-cluster": (
        "csi: {enabled: true, backend: hostpath, driverName: hostpath.volplane.dev}",
        "at '/csi/cluster': minLength: got 0, want 1",
    ),
    "csi-driver": (
        "csi: {enabled: true, backend: hostpath, driverName: Fast_Disks, cluster: prod}",
        "at '/csi/driverName': 'Fast_Disks' does not match",
    ),
    "csi-driver-of-controllers": (
        """
config: {drivers: [{name: hostpath.volplane.dev, backend: hostpath}]}
csi: {enabled: true, backend: hostpath, driverName: hostpath.volplane.dev, cluster: prod}
""",
        "csi.driverName: hostpath.volplane.dev is also a driver of config.drivers",
    ),
    "csi-marks-of-controllers": (
        """
config: {clusterId: prod/csi}
csi: {enabled: true, backend: hostpath, driverName: hostpath.volplane.dev, cluster: prod}
""",
        "config.clusterId ends with /csi",
    ),
    "csi-option": (
        "csi: {enabled: true, backend: hostpath, driverName: a.b, cluster: prod, options: {root: [/srv]}}",
        "at '/csi/options/root': got array, want",
    ),
    "nobody": (
        "controllers: []",
        "controllers: none, but for csi.enabled without config.drivers",
    ),
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


TWO_RELEASES = """\
config:
  drivers:
    - {name: local.NAMESPACE, backend: hostpath, distributed: true, options: {root: /srv/volumes}}
    - {name: ebs.NAMESPACE, backend: aws_ebs, options: {access_key_id: "secret:cloud/aws/id"}}
"""


def template(values: str, namespace: str = NAMESPACE) -> subprocess.CompletedProcess[str]:
    """Run `helm template` with these values."""
    program = helm.find()
    if program is None:
        pytest.skip("helm is not installed (`make helm`)")
    command = [program, "template", "volplane", str(CHART), "--namespace", namespace, "--values", "-"]
    return subprocess.run(command, input=values, capture_output=True, text=True, check=False)


@functools.cache
def rendering(name: str) -> str:
    ended = template(RENDERED[name] if name in RENDERED else CSI_ALONE + CSI[name])
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
    wanted = Installation(
        namespace=NAMESPACE,
        controllers=",".join(values["controllers"]),
        image=f"{values['image']['repository']}:{tag}",
        replicas=values["replicas"],
        monitoring=values["monitoring"],
        network_policies=values["networkPolicies"],
        admission_policy=values["admissionPolicy"],
        storage_classes=values["storageClasses"]["perDriver"],
        mounts=values["mounts"],
        as_root=values["asRoot"],
    )
    return [
        each
        for each in documents(wanted, configuration)
        if (each["kind"], each["metadata"]["name"]) != ("Namespace", NAMESPACE)
    ]


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


def test_releases_in_two_namespaces_have_no_object_in_common() -> None:
    named = []
    for namespace in (NAMESPACE, "storage"):
        text = TWO_RELEASES.replace("NAMESPACE", namespace)
        ended = template(text, namespace)
        assert ended.returncode == 0, ended.stderr
        objects = [each for each in yaml.safe_load_all(ended.stdout) if each and each["kind"] != "StorageClass"]
        bound = [each for each in objects if each["kind"].endswith("RoleBinding")]
        roles = {(each["kind"], each["metadata"]["name"]) for each in objects}
        assert {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bound} <= roles
        assert "cloud" in {each["metadata"].get("namespace") for each in bound}
        named += [(e["kind"], e["metadata"].get("namespace"), e["metadata"]["name"]) for e in objects]
    assert len(named) == len(set(named))


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


@pytest.mark.parametrize("name", [*RENDERED, *CSI])
def test_every_field_is_one_of_the_api(name: str) -> None:
    for each in rendered(name):
        if not each["apiVersion"].startswith("monitoring.coreos.com/"):
            assert unknown_fields_of_object(each) == []


def test_the_values_of_the_page_install_the_driver() -> None:
    (values,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    ended = template(values)
    assert ended.returncode == 0, ended.stderr
    kinds = {each["kind"] for each in yaml.safe_load_all(ended.stdout) if each}
    assert {"CSIDriver", "Deployment", "DaemonSet"} <= kinds


@functools.cache
def of_csi(name: str) -> dict[str, Any]:
    """The objects of a CSI driver by their kinds, but for the bindings."""
    return {each["kind"]: each for each in rendered(name) if not each["kind"].endswith("Binding")}


def containers(workload: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in workload["spec"]["template"]["spec"]["containers"]}


def test_a_csi_driver_changes_nothing_of_the_controllers() -> None:
    """... and without controllers only what belongs to it is installed."""
    quota = ("ResourceQuota", "volplane-critical")
    alone = {(each["kind"], each["metadata"]["name"]): each for each in rendered("directory")}
    ended = template(CSI["directory"])
    beside = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(ended.stdout) if each}
    usual = {(each["kind"], each["metadata"]["name"]): each for each in rendered("default")}
    assert beside == usual | alone
    assert alone.keys() & usual.keys() == {quota}
    names = {name for _, name in alone.keys() - {quota}}
    assert names == {"volplane-csi", "volplane-csi-node", "hostpath.volplane.dev"}


@pytest.mark.parametrize("name", CSI)
def test_the_bridge_gets_options_that_the_command_has(name: str) -> None:
    command = get_command(cli.application(["csi"])).commands["csi"]  # type: ignore[attr-defined]
    known = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
    for kind in of_csi(name).keys() & {"Deployment", "DaemonSet"}:
        bridge = containers(of_csi(name)[kind])["volplane"]
        assert bridge["command"] == ["volplane", "csi"]
        assert {argument.partition("=")[0] for argument in bridge["args"]} <= known
        wanted = yaml.safe_load(CSI[name])["csi"]
        given_options = {each.removeprefix("--option=") for each in bridge["args"] if each.startswith("--option=")}
        texts = {
            key: str(value).lower() if isinstance(value, bool) else value for key, value in wanted["options"].items()
        }
        assert given_options == {f"{key}={value}" for key, value in texts.items()}
        (endpoint,) = (each.removeprefix("--endpoint=unix://") for each in bridge["args"] if "--endpoint" in each)
        for each in containers(of_csi(name)[kind]).values():
            places = {mount["mountPath"] for mount in each["volumeMounts"] if mount["name"] == "socket"}
            assert places == {endpoint.removesuffix("/csi.sock")}
            assert each is bridge or f"--csi-address={endpoint}" in each["args"]


@pytest.mark.parametrize(
    ("name", "kind", "sidecars"),
    [
        ("directory", "Deployment", {"csi-provisioner", "csi-resizer"}),
        ("directory", "DaemonSet", set()),
        ("root-of-each-node", "DaemonSet", {"csi-provisioner", "csi-snapshotter"}),
        ("nfs", "Deployment", {"csi-provisioner", "csi-resizer"}),
        ("disks", "Deployment", {"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"}),
    ],
)
def test_the_stock_sidecars_run_that_the_backend_needs_and_exclude_each_other(
    name: str, kind: str, sidecars: set[str]
) -> None:
    found = containers(of_csi(name)[kind])
    assert found.keys() == {"volplane", *sidecars}
    for sidecar in sidecars:
        assert found[sidecar]["image"] == given("default")["csi"]["sidecars"][sidecar]
        assert ("--leader-election" if kind == "Deployment" else "--node-deployment") in found[sidecar]["args"]
    node_options = {"--services=node", "--services=controller,node"} & set(found["volplane"]["args"])
    assert bool(node_options) == (kind == "DaemonSet")


def test_no_second_bridge_works_beside_the_one_that_knows_which_attempts_are_in_doubt() -> None:
    spec = of_csi("disks")["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_object_of_the_driver_says_what_the_backend_does() -> None:
    spec = {name: of_csi(name)["CSIDriver"]["spec"] for name in CSI}
    assert {name: each["attachRequired"] for name, each in spec.items()} == {
        "directory": False,
        "root-of-each-node": False,
        "nfs": False,
        "disks": True,
    }
    assert [name for name, each in spec.items() if each["storageCapacity"]] == ["root-of-each-node"]
    assert "--enable-capacity" in containers(of_csi("root-of-each-node")["DaemonSet"])["csi-provisioner"]["args"]
    assert (spec["disks"]["fsGroupPolicy"], spec["nfs"]["fsGroupPolicy"]) == ("ReadWriteOnceWithFSType", "File")
    assert not any(each["seLinuxMount"] for each in spec.values())


def test_only_what_mounts_is_privileged_and_has_no_rights_in_the_cluster() -> None:
    for name in CSI:
        for kind in of_csi(name).keys() & {"Deployment", "DaemonSet"}:
            pod = of_csi(name)[kind]["spec"]["template"]["spec"]
            for container in pod["containers"]:
                mounts = kind == "DaemonSet" and container["name"] == "volplane"
                assert container["securityContext"].get("privileged", False) == mounts
                assert container["securityContext"]["readOnlyRootFilesystem"]
                both_ways = {each.get("mountPropagation") for each in container["volumeMounts"]} >= {"Bidirectional"}
                assert both_ways == mounts
            devices = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]} & {"/dev"}
            assert bool(devices) == (name == "root-of-each-node")
            # A client of NFS needs a network that outlives the pod.
            assert pod.get("hostNetwork", False) == (kind == "DaemonSet" and name == "nfs")
    assert of_csi("directory")["DaemonSet"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert of_csi("nfs")["Deployment"]["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]


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
    for name, key in (("Image", "image"), ("StorageClasses", "storageClasses"), ("Node", "node"), ("Csi", "csi")):
        assert set(SCHEMA[name]["properties"]) == set(values[key])
    for name, key in (("CsiNode", "node"), ("Sidecars", "sidecars")):
        assert set(SCHEMA[name]["properties"]) == set(values["csi"][key])
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
