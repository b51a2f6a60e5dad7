"""Variables of a container."""

import base64
from typing import Any

import msgspec
import pytest

from volplane.kube.objects import Secret
from volplane_embedded.kubelet.environment import ConfigObjects, Missing, config_references, expand, make_environment
from volplane_embedded.objects import ConfigMap, Container, Pod

SETTINGS = ConfigMap(data={"colour": "green"}, binary_data={"raw": base64.b64encode(b"\x00x").decode()})
KEY = Secret(data={"token": base64.b64encode(b"hush").decode()})
FOUND = ConfigObjects({"settings": SETTINGS, "gone": None}, {"key": KEY})


def container(**fields: Any) -> Container:
    return msgspec.convert({"name": "main", **fields}, Container)


def pod(**metadata: Any) -> Pod:
    body = {"metadata": {"name": "web", "namespace": "team", "uid": "u-1", **metadata}, "spec": {"nodeName": "node-1"}}
    return msgspec.convert(body, Pod)


def from_map(name: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    return {"configMapKeyRef": {"name": name, "key": key, "optional": optional}}


def field(path: str) -> dict[str, Any]:
    return {"fieldRef": {"fieldPath": path}}


def value(source: dict[str, Any], one: Pod | None = None) -> str | None:
    env = [{"name": "X", "valueFrom": source}]
    return make_environment(one or pod(), container(env=env), FOUND).get("X")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)/$(B)", "1/2"),
        ("$$(A)", "$(A)"),
        ("$(MISSING) $A $", "$(MISSING) $A $"),
        ("a$$b", "a$b"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expected


def test_variables_see_those_before_them() -> None:
    env = make_environment(pod(), container(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}]), FOUND)
    assert (env["A"], env["B"], env["HOSTNAME"]) == ("1", "12", "web")


def test_values_come_from_fields_and_objects() -> None:
    labelled = pod(labels={"app": "web"}, annotations={"note": "n"})
    assert value(field("metadata.namespace")) == "team"
    assert value(field("spec.nodeName")) == "node-1"
    assert value(field("metadata.labels['app']"), labelled) == "web"
    assert value(from_map("settings", "colour")) == "green"
    assert value(from_map("settings", "raw")) == "x"
    assert value({"secretKeyRef": {"name": "key", "key": "token"}}) == "hush"


def test_what_is_missing_is_named_unless_it_is_optional() -> None:
    assert value(from_map("gone", "x", optional=True)) is None
    assert value(from_map("settings", "x", optional=True)) is None
    for source, message in (
        (from_map("gone", "x"), 'configmap "gone" not found'),
        (from_map("settings", "x"), "couldn't find key x in configmap team/settings"),
        ({"secretKeyRef": {"name": "none", "key": "k"}}, 'secret "none" not found'),
        (field("spec.secret"), "field spec.secret cannot be had"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef"),
    ):
        with pytest.raises(Missing, match=message):
            value(source)


def test_whole_objects_become_variables_with_a_prefix() -> None:
    sources = [{"prefix": "P_", "configMapRef": {"name": "settings"}}, {"secretRef": {"name": "key"}}]
    made = make_environment(pod(), container(envFrom=sources), FOUND)
    assert (made["P_colour"], made["token"]) == ("green", "hush")


def test_the_objects_to_read_are_known_beforehand() -> None:
    env = [{"name": "X", "valueFrom": from_map("a", "k")}, {"name": "Y", "valueFrom": {"secretKeyRef": {"name": "b"}}}]
    assert config_references(container(env=env, envFrom=[{"secretRef": {"name": "c"}}])) == ({"a"}, {"b", "c"})
