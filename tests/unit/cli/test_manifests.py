"""The printed objects: complete, narrow, and what the controllers take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from api_fields import unknown_fields, unknown_fields_of_object
from volplane.cli.installation import Installation, cluster_rules, documents, namespace_rules
from volplane.cli.main import main
from volplane.controller.config import ScrubberSettings, parse_configuration
from volplane.kube.objects import Volume
from volplane.process.duties import ALL_CONTROLLERS
from volplane.reclaim.scrub_pod import pod_body
from volplane.state.records import INTENT_VERSION, RecycleIntent, ScrubPlan, Sealer


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The objects by kind."""
    assert main(["manifests", *arguments]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    policies = {each["metadata"]["name"]: each for each in objects if each["kind"] == "NetworkPolicy"}
    kinds = {each["kind"]: each for each in objects if each["kind"] != "NetworkPolicy"}
    assert len(kinds) + len(policies) == len(objects)
    return {**kinds, "NetworkPolicy": policies}


def test_everything_lies_in_the_namespace_and_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    objects = printed(capsys, "--namespace", "storage", "--image", "registry.example.com/v:1", "--controllers", "all")
    namespaced = {"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Deployment", "ResourceQuota"}
    namespaced |= {"PodDisruptionBudget"}
    assert set(objects) == namespaced | {"Namespace", "ClusterRole", "ClusterRoleBinding", "NetworkPolicy"}
    assert {each["metadata"]["namespace"] for each in objects["NetworkPolicy"].values()} == {"storage"}
    assert objects["Namespace"]["metadata"]["name"] == "storage"
    assert {objects[kind]["metadata"]["namespace"] for kind in namespaced} == {"storage"}
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        (subject,) = objects[kind]["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": "volplane", "namespace": "storage"}
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/v:1"
    assert {"--controllers=all", "--namespace=storage"} <= set(container["args"])


def test_the_pod_may_do_little_and_is_probed(capsys: pytest.CaptureFixture[str]) -> None:
    pod = printed(capsys)["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["ports"] == [{"name": "http", "containerPort": 9809}]
    assert container["image"].startswith("volplane:0.")


def test_the_network_reaches_one_port_of_the_controllers_and_nothing_of_scrubber_pods(
    capsys: pytest.CaptureFixture[str],
) -> None:
    objects = printed(capsys)
    template = objects["Deployment"]["spec"]["template"]
    ours, scrubs = objects["NetworkPolicy"]["volplane"]["spec"], objects["NetworkPolicy"]["volplane-scrub"]["spec"]
    assert ours["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert ours["policyTypes"] == ["Ingress"]
    [port] = template["spec"]["containers"][0]["ports"]
    assert ours["ingress"] == [{"ports": [{"protocol": "TCP", "port": port["containerPort"]}]}]
    intent = RecycleIntent(v=INTENT_VERSION, claim="c")
    item = msgspec.convert({"metadata": {"name": "v", "uid": "u"}, "spec": {"hostPath": {"path": "/x"}}}, Volume)
    pod = pod_body(
        item, intent, ScrubPlan(None), ScrubberSettings(), namespace="volplane-system", sealer=Sealer(b"k" * 32)
    )
    assert scrubs["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert scrubs["policyTypes"] == ["Ingress", "Egress"]
    assert not scrubs.keys() & {"ingress", "egress"}, "none is allowed"


def test_the_command_of_the_pod_is_one_that_volplane_takes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (container,) = printed(capsys, "--controllers", "all")["Deployment"]["spec"]["template"]["spec"]["containers"]
    program, *command = [*container["command"], *container["args"]]
    assert program == "volplane"
    # In a process of its own: it sets up the logging of the whole process.
    ended = subprocess.run(
        [sys.executable, "-m", "volplane", *command, "--config", str(tmp_path / "none.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, "none.yaml: cannot be read" in ended.stderr) == (1, True), ended.stderr


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        (["--controllers", "provisioner"], "restricted"),
        ([], "baseline"),
        (["--controllers", "all"], "baseline"),
        (["--controllers", "all", "--mount", "/srv/a"], "privileged"),
    ],
    ids=["nothing is erased", "default", "all", "in directories of nodes"],
)
def test_the_namespace_admits_what_the_drivers_need_and_no_more(
    capsys: pytest.CaptureFixture[str], arguments: list[str], level: str
) -> None:
    labels = printed(capsys, *arguments)["Namespace"]["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": level}


def test_every_pod_is_under_a_network_policy_and_has_a_limit_of_memory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    driver = {"name": "d.example.com", "backend": "hostpath", "options": {"root": "/srv"}, "distributed": True}
    assert main(["manifests", "--config", written(tmp_path / "volplane.yaml", driver), "--mount", "/srv"]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    selected = [(each["metadata"]["namespace"], each["spec"]["podSelector"]["matchLabels"]) for each in policies]
    running = [each for each in objects if each["kind"] in ("Deployment", "DaemonSet")]
    assert len(running) == 2
    for each in running:
        template = each["spec"]["template"]
        assert (each["metadata"]["namespace"], template["metadata"]["labels"]) in selected, each["kind"]
        assert template["spec"]["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}


def test_the_configuration_is_the_one_given_and_else_one_without_drivers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = printed(capsys)["ConfigMap"]["data"]["volplane.yaml"]
    assert parse_configuration(text, "printed").drivers == ()
    given = tmp_path / "volplane.yaml"
    given.write_text("# mine\ndrivers:\n- {name: fast.example.com, backend: hostpath, options: {root: /srv}}\n")
    assert printed(capsys, "--config", str(given))["ConfigMap"]["data"]["volplane.yaml"] == given.read_text()
    given.write_text("drivrs: []\n")
    assert main(["manifests", "--config", str(given)]) == 1
    assert "drivrs: unknown key" in capsys.readouterr().err


def test_a_distributed_driver_brings_a_process_for_every_node_with_an_account_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = tmp_path / "volplane.yaml"
    given.write_text("drivers: [{name: d.example.com, backend: hostpath, options: {root: /srv}, distributed: true}]\n")
    assert main(["manifests", "--config", str(given)]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    (daemons,) = (each for each in objects if each["kind"] == "DaemonSet")
    pod = daemons["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["serviceAccountName"] == "volplane-node"
    assert container["args"][-1] == "--node-name=$(NODE_NAME)"
    assert not any(argument.startswith("--controllers") for argument in container["args"])
    verbs = {
        (name, resource): set(rule["verbs"])
        for each in objects
        if each["kind"] in ("ClusterRole", "Role") and (name := each["metadata"]["name"])
        for rule in each["rules"]
        for resource in rule["resources"]
    }
    assert daemons["metadata"]["namespace"] == "volplane-system-nodes"
    assert ("volplane-node", "volumeattachments") not in verbs
    assert verbs["volplane-node", "nodes"] == {"get", "list", "watch"}
    assert "delete" not in verbs["volplane-node", "persistentvolumeclaims"]


TWO_DRIVERS = """
drivers:
- {name: local.example.com, backend: hostpath, distributed: true, options: {root: /srv/volumes}}
- name: ebs.example.com
  backend: aws_ebs
  options: {access_key_id: "secret:cloud/aws/id", secret_access_key: "secret:volplane-system/aws/key"}
"""


def name_and_place(item: dict[str, Any]) -> tuple[str, str]:
    return item["metadata"]["name"], item["metadata"].get("namespace", "")


def rules_of(objects: list[Any], account: str) -> list[tuple[str, dict[str, Any]]]:
    """The rules of a service account, with the namespace where each holds, "" = everywhere."""
    found = []
    for binding in (each for each in objects if each["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        (subject,) = binding["subjects"]
        if f"{subject['namespace']}/{subject['name']}" == account:
            place = binding["metadata"].get("namespace", "")
            named = (binding["roleRef"]["kind"], binding["roleRef"]["name"], place)
            (role,) = (each for each in objects if named == (each["kind"], *name_and_place(each)))
            found += [(place, rule) for rule in role["rules"]]
    return found


@pytest.fixture
def two_drivers() -> list[Any]:
    """What is printed where one driver is on the nodes, and another one has Secrets."""
    wanted = Installation(
        namespace="volplane-system",
        controllers="all",
        image="i",
        mounts=["/srv/volumes"],
        as_root=True,
    )
    return list(documents(wanted, TWO_DRIVERS))


def test_two_installations_have_no_object_in_common() -> None:
    """Whoever is installed second would take the rights of the first one, or give it other ones."""
    found = []
    for namespace in ("volplane-system", "node", "storage"):
        text = TWO_DRIVERS.replace("example.com", f"{namespace}.example.com")
        wanted = Installation(namespace=namespace, controllers="all", image="i")
        objects = [each for each in documents(wanted, text) if each["kind"] != "StorageClass"]
        assert readable_secrets(objects, "volplane")["cloud"] == {"aws"}
        assert any(place == "" for place, _ in rules_of(objects, f"{namespace}-nodes/volplane-node"))
        found += [(each["kind"], *name_and_place(each)) for each in objects]
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "name"),
    [
        ("get", "secrets", "cloud", "aws"),
        ("get", "secrets", "volplane-system", "aws"),
        ("get", "secrets", "volplane-system", "volplane-seal"),
        ("create", "secrets", "volplane-system", ""),
        ("create", "secrets", "volplane-system-nodes", "volplane-seal"),
        ("list", "pods", "default", ""),
        ("create", "pods", "volplane-system", ""),
        ("create", "pods", "volplane-system-nodes", ""),
        ("patch", "pods", "volplane-system", ""),
        ("patch", "leases", "volplane-system", "volplane"),
        ("create", "leases", "volplane-system", "volplane"),
        ("create", "volumeattachments", "", ""),
        ("get", "configmaps", "volplane-system", "volplane"),
    ],
)
def test_the_account_of_the_nodes_cannot_take_what_is_the_central_processs(
    two_drivers: list[Any], verb: str, resource: str, namespace: str, name: str
) -> None:
    """Whoever is root on one node has it."""
    granted = [
        rule
        for place, rule in rules_of(two_drivers, "volplane-system-nodes/volplane-node")
        if place in ("", namespace) and resource in rule["resources"] and verb in rule["verbs"]
    ]
    assert [rule for rule in granted if name in rule.get("resourceNames", [name])] == []


def test_the_processes_of_nodes_have_a_namespace_with_an_account_and_the_drivers_of_nodes_alone(
    two_drivers: list[Any],
) -> None:
    nodes = {each["kind"]: each for each in two_drivers if each["metadata"].get("namespace") == "volplane-system-nodes"}
    assert {"ServiceAccount", "DaemonSet", "ConfigMap", "NetworkPolicy", "ResourceQuota"} <= set(nodes)
    accounts = [each["metadata"] for each in two_drivers if each["kind"] == "ServiceAccount"]
    assert {(each["namespace"], each["name"]) for each in accounts} == {
        ("volplane-system", "volplane"),
        ("volplane-system-nodes", "volplane-node"),
    }
    (mounted,) = (
        each["configMap"] for each in nodes["DaemonSet"]["spec"]["template"]["spec"]["volumes"] if "configMap" in each
    )
    assert mounted == {"name": nodes["ConfigMap"]["metadata"]["name"]}
    said = parse_configuration(nodes["ConfigMap"]["data"]["volplane.yaml"], "the file")
    assert [driver.name for driver in said.drivers or ()] == ["local.example.com"]
    levels = {
        each["metadata"]["name"]: each["metadata"]["labels"] for each in two_drivers if each["kind"] == "Namespace"
    }
    assert set(levels) == {"volplane-system", "volplane-system-nodes"}
    assert readable_secrets(two_drivers, "volplane-node") == {"volplane-system-nodes": {"volplane-seal"}}


def test_the_nodes_read_secrets_of_their_own_drivers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = {"root": "/srv", "create_root": "secret:team-a/disks/key"}
    text = yaml.safe_dump({"drivers": [{"name": "d", "backend": "b", "distributed": True, "options": options}]})
    wanted = Installation(namespace="ours", controllers="all", image="i")
    found = readable_secrets(list(documents(wanted, text.replace("'", ""))), "volplane-node")
    assert found == {"ours-nodes": {"volplane-seal"}, "team-a": {"disks"}}


def readable_secrets(objects: list[Any], account: str) -> dict[str, set[str]]:
    """By namespace, the names of those that the account may get."""
    found: dict[str, set[str]] = {}
    roles = [each for each in objects if each["kind"] == "Role"]
    for role in (each for each in roles if each["metadata"]["labels"]["app.kubernetes.io/name"] == account):
        for rule in role["rules"]:
            if rule["resources"] == ["secrets"] and "get" in rule["verbs"]:
                found.setdefault(role["metadata"]["namespace"], set()).update(rule["resourceNames"])
    return found


def test_of_secrets_only_those_are_readable_that_options_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = tmp_path / "volplane.yaml"
    given.write_text("""
        drivers:
        - name: a.example.com
          backend: aws_ebs
          options: {region: eu-north-1, access_key_id: env:USER, secret_access_key: secret:volplane-system/filer/key}
        - name: b.example.com
          backend: aws_ebs
          options: {region: eu-north-1, access_key_id: secret:team-b/cloud/key, secret_access_key: secret:team-b/more/x}
        extensions: [{name: audit, options: {token: secret:team-c/audit/token}}]
        """)
    assert main(["manifests", "--config", str(given)]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert readable_secrets(objects, "volplane") == {
        "volplane-system": {"filer", "volplane-seal"},
        "team-b": {"cloud", "more"},
        "team-c": {"audit"},
    }
    for binding in (each for each in objects if each["kind"] == "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "volplane", "namespace": "volplane-system"}]
        assert binding["roleRef"]["kind"] == "Role"
    places = {each["metadata"]["namespace"] for each in objects if each["kind"] == "RoleBinding"}
    assert places == {"volplane-system", "team-b", "team-c"}


def test_a_single_replica_may_be_evicted_and_of_several_one_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    several, one = printed(capsys), printed(capsys, "--replicas", "1")
    assert (several["Deployment"]["spec"]["replicas"], one["Deployment"]["spec"]["replicas"]) == (2, 1)
    assert "PodDisruptionBudget" not in one, "it would hold up every drain of its node"
    template = several["Deployment"]["spec"]["template"]
    budget = several["PodDisruptionBudget"]["spec"]
    assert budget["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_replicas_go_to_different_nodes_where_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    template = printed(capsys)["Deployment"]["spec"]["template"]
    apart = template["spec"]["affinity"]["podAntiAffinity"]
    assert set(apart) == {"preferredDuringSchedulingIgnoredDuringExecution"}, "a cluster of one node runs both"
    (node, zone) = (each["podAffinityTerm"] for each in apart["preferredDuringSchedulingIgnoredDuringExecution"])
    assert (node["topologyKey"], zone["topologyKey"]) == ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    for term in (node, zone):
        assert term["labelSelector"]["matchLabels"] == template["metadata"]["labels"]


def test_a_quota_allows_the_pods_the_priority_that_they_ask_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = tmp_path / "volplane.yaml"
    given.write_text("drivers: [{name: d.example.com, backend: hostpath, options: {root: /srv}, distributed: true}]\n")
    assert main(["manifests", "--config", str(given)]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    asked = {
        each["spec"]["template"]["spec"]["priorityClassName"]
        for each in objects
        if each["kind"] in ("Deployment", "DaemonSet")
    }
    kinds = [each["kind"] for each in objects]
    assert kinds.index("ResourceQuota") < min(kinds.index("Deployment"), kinds.index("DaemonSet"))
    quota, also = (each["spec"] for each in objects if each["kind"] == "ResourceQuota")
    assert quota == also, "of the nodes"
    (selected,) = quota["scopeSelector"]["matchExpressions"]
    assert (selected["scopeName"], selected["operator"]) == ("PriorityClass", "In")
    assert asked == set(selected["values"]) == {"system-cluster-critical", "system-node-critical"}


def test_pods_are_replaced_when_the_configuration_changes_and_only_then(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = tmp_path / "volplane.yaml"

    def templates(root: str) -> list[Any]:
        driver = {"name": "d.example.com", "backend": "hostpath", "options": {"root": root}, "distributed": True}
        given.write_text(yaml.safe_dump({"drivers": [driver]}))
        assert main(["manifests", "--config", str(given)]) == 0
        objects = yaml.safe_load_all(capsys.readouterr().out)
        return [each["spec"]["template"] for each in objects if each["kind"] in ("Deployment", "DaemonSet")]

    first, again, other = templates("/srv"), templates("/srv"), templates("/data")
    assert len(first) == 2
    assert first == again
    assert all(old != new for old, new in zip(first, other, strict=True))


def test_a_monitor_is_printed_on_demand_and_reaches_every_process(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "PodMonitor" not in printed(capsys), "its definition may be absent, and kubectl apply would fail"
    given = tmp_path / "volplane.yaml"
    given.write_text("drivers: [{name: d.example.com, backend: hostpath, options: {root: /srv}, distributed: true}]\n")
    assert main(["manifests", "--monitoring", "--config", str(given)]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    (monitor,) = (each for each in objects if each["kind"] == "PodMonitor")
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    templates = [each["spec"]["template"] for each in objects if each["kind"] in ("Deployment", "DaemonSet")]
    assert expression["operator"] == "In"
    assert {each["metadata"]["labels"][expression["key"]] for each in templates} == set(expression["values"])
    for each in templates:
        (container,) = each["spec"]["containers"]
        assert [port["name"] for port in container["ports"]] == [endpoint["port"]]


@pytest.mark.parametrize("distributed", [False, True])
def test_every_field_is_one_of_the_api(capsys: pytest.CaptureFixture[str], tmp_path: Path, distributed: bool) -> None:
    """An API server drops a field that it does not know, or refuses the object: both would be seen too late."""
    given = tmp_path / "volplane.yaml"
    driver = {"name": "d.example.com", "backend": "hostpath", "options": {"root": "/srv"}, "distributed": distributed}
    given.write_text(yaml.safe_dump({"drivers": [driver]}))
    assert main(["manifests", "--controllers", "all", "--config", str(given)]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert {"Deployment", "PodDisruptionBudget", "ResourceQuota", "NetworkPolicy", "ClusterRole"} <= {
        each["kind"] for each in objects
    }
    for each in objects:
        assert unknown_fields_of_object(each) == []


def test_a_field_of_no_type_of_the_api_is_noticed() -> None:
    budget = {"spec": {"maxUnavailable": 1, "maxUnavailble": 1, "selector": {"matchLabels": {"a": 1}}}}
    assert unknown_fields(budget, "V1PodDisruptionBudget", "pdb") == [
        "pdb.spec.maxUnavailble: unknown",
        "pdb.spec.selector.matchLabels.a: 1 is no str",
    ]


def written(path: Path, *drivers: dict[str, Any]) -> str:
    path.write_text(yaml.safe_dump({"drivers": list(drivers)}))
    return str(path)


def pods(objects: list[Any]) -> dict[str, Any]:
    """The specs of pods by the kind of their owner."""
    return {each["kind"]: each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})}


def test_each_driver_has_a_class_that_waits_for_the_pod(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = ["fast.example.com", "slow.example.com", "slow.example.org"]
    given = written(
        tmp_path / "volplane.yaml",
        *({"name": name, "backend": "hostpath", "options": {"root": "/srv"}} for name in names),
    )
    assert main(["manifests", "--config", given]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    classes = {each["metadata"]["name"]: each for each in objects if each["kind"] == "StorageClass"}
    assert {name: each["provisioner"] for name, each in classes.items()} == {
        "fast": "fast.example.com",
        "slow.example.com": "slow.example.com",
        "slow.example.org": "slow.example.org",
    }
    assert {each["volumeBindingMode"] for each in classes.values()} == {"WaitForFirstConsumer"}
    assert main(["manifests", "--config", given, "--no-storage-classes", "--no-network-policies"]) == 0
    fewer = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each for each in objects if each not in fewer] == [
        each for each in objects if each["kind"] in ("StorageClass", "NetworkPolicy")
    ]


@pytest.mark.parametrize("distributed", [False, True])
def test_directories_are_mounted_where_a_backend_works_in_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, distributed: bool
) -> None:
    driver = {"name": "d.example.com", "backend": "hostpath", "options": {"root": "/srv/a"}, "distributed": distributed}
    given = written(tmp_path / "volplane.yaml", driver)
    command = ["manifests", "--controllers", "provisioner", "--config", given]
    assert main([*command, "--mount", "/srv/a", "--mount", "/srv/b"]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    found = pods(objects)
    pod = found.pop("DaemonSet" if distributed else "Deployment")
    (container,) = pod["containers"]
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    paths = {mounted[each["name"]]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    assert paths == {"/srv/a": "/srv/a", "/srv/b": "/srv/b"}
    assert not any("hostPath" in volume for other in found.values() for volume in other["volumes"])
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (65532, True)
    levels = {each["metadata"]["name"]: each["metadata"]["labels"] for each in objects if each["kind"] == "Namespace"}
    level = levels.pop("volplane-system-nodes" if distributed else "volplane-system")
    assert [*levels.values()] == [{"pod-security.kubernetes.io/enforce": "restricted"}] * distributed
    assert level == {"pod-security.kubernetes.io/enforce": "privileged"}, "the others admit no hostPath"


def test_what_mounts_directories_is_root_on_demand_and_nothing_else_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    driver = {"name": "d.example.com", "backend": "hostpath", "options": {"root": "/srv"}, "distributed": True}
    command = ["manifests", "--config", written(tmp_path / "volplane.yaml", driver), "--mount", "/srv", "--as-root"]
    assert main(command) == 0
    found = pods(list(yaml.safe_load_all(capsys.readouterr().out)))
    users = {kind: pod["securityContext"]["runAsUser"] for kind, pod in found.items()}
    assert users == {"Deployment": 65532, "DaemonSet": 0}
    (container,) = found["DaemonSet"]["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]}
    (container,) = found["Deployment"]["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mount", "srv"], '--mount is "srv"; it must be the absolute path'),
        (["--mount", "/srv/../etc"], '--mount is "/srv/../etc"; it must be the absolute path'),
        (["--mount", "/"], '--mount is "/"; it must be'),
        (["--mount", "/srv", "--mount", "/srv"], "--mount /srv is given twice"),
        (["--mount", "/etc/volplane"], "--mount /etc/volplane: the pods have something else there"),
        (["--as-root"], "--as-root needs --mount"),
        (["--replicas", "0"], "--replicas is 0; it must be 1 to 10"),
        (["--replicas", "11"], "--replicas is 11; it must be 1 to 10"),
        (["--controllers", "bider"], '"bider" is no controller'),
        (["--namespace", "No"], '--namespace is "No"; it must be a DNS label'),
        (["--namespace", "n" * 58], "of at most 57 letters"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_every_controller_has_rules_and_no_rule_reads_secrets_at_large() -> None:
    for controller in ALL_CONTROLLERS:
        assert cluster_rules([controller], "ours", distributed=True)
    everywhere = cluster_rules(ALL_CONTROLLERS, "ours", distributed=True)
    assert not any(rule.resource == "secrets" for rule in everywhere)
    assert not any("*" in (rule.group, rule.resource, *rule.verbs) for rule in everywhere)
    reading = [rule for rule in namespace_rules(ALL_CONTROLLERS) if rule.resource == "secrets" and "get" in rule.verbs]
    assert [rule.names for rule in reading] == [("volplane-seal",)]


def test_the_rules_do_not_depend_on_the_order_of_the_controllers() -> None:
    forth = cluster_rules(ALL_CONTROLLERS, "volplane-system")
    assert cluster_rules(tuple(reversed(ALL_CONTROLLERS)), "volplane-system") == forth


def test_a_backend_that_is_not_installed_is_refused_with_the_nearest_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = tmp_path / "volplane.yaml"
    given.write_text("drivers: [{name: a.example.com, backend: hostpth}]")
    assert main(["manifests", "--config", str(given)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "drivers[0].backend: 'hostpth' is not installed here; did you mean 'hostpath'?" in shown.err


def test_an_option_that_no_backend_has_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Else the slip is found by pods that crash."""
    given = tmp_path / "volplane.yaml"
    given.write_text("drivers: [{name: a.example.com, backend: hostpath, options: {rot: /srv}}]")
    assert main(["manifests", "--config", str(given)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "drivers[0].options: unknown option 'rot' (value '/srv'); did you mean 'root'?" in shown.err
