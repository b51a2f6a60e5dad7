"""The Helm chart installs what `volplane manifests` prints, and refuses values that cannot be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
import yaml
from tools.chart.__main__ import main
from tools.chart.renderings import CHART, NAMESPACE, RENDERINGS, cases, digest
from tools.chart.values import Configuration, Driver, Extension, Scrubber, Values, schema

from api_fields import unknown_fields_of_object
from volplane.cli.installation import Installation, documents
from volplane.controller import config
from volplane.process.duties import ALL_CONTROLLERS, parse_controllers

CASES = dict(cases())
REFUSED = sorted(name for name in CASES if name.startswith("wrong-"))
RENDERED = sorted(CASES.keys() - set(REFUSED))
OWN = ("imagePullSecrets", "nodeSelector", "tolerations")
"""Fields of pods that only the chart can set; beside them imagePullPolicy and resources of the container."""


def given(name: str) -> Values:
    return msgspec.yaml.decode(CASES[name].read_bytes(), type=Values)


def rendered(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((RENDERINGS / f"{name}.yaml").read_text("utf-8")) if each]


def plain(values: Values, configuration: str) -> list[dict[str, Any]]:
    """What `volplane manifests` prints for the same wishes, but for the namespace, which Helm makes."""
    tag = values.image.tag or yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"]
    option = ",".join(values.controllers)
    wanted = Installation(
        namespace=NAMESPACE,
        option=option,
        controllers=parse_controllers(option),
        image=f"{values.image.repository}:{tag}",
        configuration=configuration,
        replicas=values.replicas,
        monitoring=values.monitoring,
        network_policies=values.network_policies,
        storage_classes=values.storage_classes.per_driver,
        mounts=values.mounts,
        as_root=values.as_root,
    )
    return [each for each in documents(wanted) if each["kind"] != "Namespace"]


def compared(objects: Iterable[dict[str, Any]]) -> dict[tuple[str, str, str], Any]:
    """By kind, namespace and name. Of roles what they allow: the chart merges no rules."""
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


def test_templates_schema_and_version_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", CASES)
def test_a_rendering_is_of_these_values_and_this_chart(name: str) -> None:
    of = [path for path in RENDERINGS.glob(f"{name}.*") if path != CASES[name]]
    assert [path.name for path in of] == [f"{name}.refused.txt" if name in REFUSED else f"{name}.yaml"]
    assert of[0].read_text("utf-8").startswith(digest(CASES[name])), "stale: `make renderings`, with helm on the PATH"


@pytest.mark.parametrize("name", RENDERED)
def test_the_chart_installs_what_the_command_prints(name: str) -> None:
    values, objects = given(name), rendered(name)
    (configuration,) = (each["data"]["volplane.yaml"] for each in objects if each["kind"] == "ConfigMap")
    shown = yaml.safe_load(configuration)
    assert shown == {"drivers": []} | yaml.safe_load(CASES[name].read_text("utf-8")).get("config", {})
    printed = plain(values, configuration)
    for pod in (*pods(objects).values(), *pods(printed).values()):
        take_own(pod)
    more = {("StorageClass", "", each.name) for each in values.storage_classes.more}
    found = compared(objects)
    assert {key: body for key, body in found.items() if key not in more} == compared(printed)
    assert more <= found.keys()


def test_values_of_the_chart_alone_reach_the_pods() -> None:
    values, objects = given("pods-of-the-chart"), rendered("pods-of-the-chart")
    own = {kind: take_own(pod) for kind, pod in pods(objects).items()}
    shared = {
        "imagePullSecrets": values.image_pull_secrets,
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


SAID = {
    "wrong-all": "all stands alone",
    "wrong-backend": "at '/config/drivers/0': missing property 'backend'",
    "wrong-controller": "at '/controllers/0': value must be one of 'all', 'assigner'",
    "wrong-driver": "at '/config/drivers/0/name': 'Fast_Disks' does not match",
    "wrong-image": "at '/image/repository'",
    "wrong-key": "at '/config': additional properties 'drivrs' not allowed",
    "wrong-mount": "at '/mounts/0': 'srv/volumes' does not match",
    "wrong-replicas": "at '/replicas': maximum: got 11, want 10",
    "wrong-type": "at '/asRoot': got string, want boolean",
}


@pytest.mark.parametrize("name", REFUSED)
def test_helm_refuses_what_cannot_be_and_says_where(name: str) -> None:
    assert SAID[name] in (RENDERINGS / f"{name}.refused.txt").read_text("utf-8")
    if name != "wrong-all":  # A template refuses it.
        with pytest.raises(msgspec.ValidationError):
            given(name)


def test_the_defaults_of_the_schema_are_those_of_the_file() -> None:
    file = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    resources = file.pop("resources")
    told = msgspec.convert(file, Values)
    assert told == Values()
    (container,) = pods(rendered("default"))["Deployment"]["containers"]
    assert container["resources"] == resources
    (container,) = pods(plain(Values(), "drivers: []"))["Deployment"]["containers"]
    assert container["resources"] == resources
    assert set(file) | {"resources", "global"} == set(schema()["$defs"]["Values"]["properties"])


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (Configuration, config._KEYS),
        (Driver, config._DRIVER_KEYS),
        (Extension, config._EXTENSION_KEYS),
        (Scrubber, config._SCRUBBER_KEYS),
    ],
)
def test_the_schema_has_the_keys_of_the_configuration_file(kind: type[msgspec.Struct], keys: tuple[str, ...]) -> None:
    assert {field.encode_name for field in msgspec.structs.fields(kind)} == set(keys)


def test_the_schema_has_every_controller() -> None:
    items = schema()["$defs"]["Values"]["properties"]["controllers"]["items"]
    assert set(items["enum"]) == {"all", *ALL_CONTROLLERS}


def test_a_file_of_the_chart_that_the_code_does_not_write_any_more_is_gone() -> None:
    from tools.chart.templates import templates

    assert {path.name for path in (CHART / "templates").iterdir()} == {*templates(), "NOTES.txt"}
