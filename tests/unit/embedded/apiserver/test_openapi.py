from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from volplane_embedded.apiserver.definitions import names
from volplane_embedded.apiserver.descriptions import descriptions_of
from volplane_embedded.apiserver.errors import StatusError
from volplane_embedded.apiserver.kinds import RESOURCES
from volplane_embedded.apiserver.openapi import OpenApi

OPENAPI = OpenApi(RESOURCES)


def document(path: str, accept: str = "application/json") -> Any:
    found = OPENAPI.document(path, accept)
    assert found is not None
    assert found[1] == "application/json"
    return json.loads(found[0])


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_the_index_leads_to_every_version() -> None:
    paths = document("/openapi/v3")["paths"]
    assert set(paths) == {resource.prefix.strip("/") for resource in RESOURCES}
    for entry in paths.values():
        assert document(entry["serverRelativeURL"].partition("?")[0])["openapi"] == "3.0.0"


@pytest.mark.parametrize("path", ["/openapi/v3/api/v1", "/openapi/v3/apis/storage.k8s.io/v1", "/openapi/v2"])
def test_every_reference_resolves(path: str) -> None:
    whole = document(path)
    schemas = whole["definitions"] if path.endswith("v2") else whole["components"]["schemas"]
    assert {reference.rpartition("/")[2] for reference in references(whole)} <= set(schemas)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: f"{resource.plural}.{resource.group}")
def test_kubectl_finds_that_patches_are_validated(resource: Any) -> None:
    wanted = {"group": resource.group, "kind": resource.kind, "version": resource.version}
    whole = document(f"/openapi/v3{resource.prefix}")
    patches = [item["patch"] for item in whole["paths"].values() if "patch" in item]
    own = [patch for patch in patches if patch["x-kubernetes-group-version-kind"] == wanted]
    assert own
    for patch in own:
        queries = {parameter["name"] for parameter in patch["parameters"] if parameter["in"] == "query"}
        assert {"fieldValidation", "dryRun"} <= queries
        strategic = "application/strategic-merge-patch+json" in patch["requestBody"]["content"]
        assert strategic == (resource.schema is None)
    schemas = whole["components"]["schemas"].values()
    assert sum(wanted in schema.get("x-kubernetes-group-version-kind", []) for schema in schemas) == 1


def test_lists_say_how_they_merge() -> None:
    schemas = document("/openapi/v3/api/v1")["components"]["schemas"]
    spec = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]
    assert spec["containers"]["x-kubernetes-patch-merge-key"] == "name"
    assert spec["volumes"]["x-kubernetes-patch-strategy"] == "merge,retainKeys"
    assert "x-kubernetes-patch-strategy" not in spec["tolerations"]
    assert spec["containers"]["items"] == {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"}]}
    meta = schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]
    assert meta["finalizers"]["x-kubernetes-patch-strategy"] == "merge"


def test_the_texts_are_those_of_the_models_of_the_kubernetes_package() -> None:
    """The models are imported here alone; the server reads their files."""
    models = importlib.import_module("kubernetes.client.models")
    by_short = {"Event": "CoreV1Event", "EventSeries": "CoreV1EventSeries"}
    for name in names():
        short = name.rpartition(".")[2]
        if ".events." in name:
            model = getattr(models, f"EventsV1{short}")
        else:
            candidates = (by_short.get(short, ""), f"V1{short}", f"CoreV1{short}", f"StorageV1{short}")
            model = next(found for each in candidates if (found := getattr(models, each, None)) is not None)
        described = {
            (field.serialization_alias or key).removeprefix("var_"): field.description
            for key, field in model.model_fields.items()
            if field.description
        }
        texts = dict(descriptions_of(name))
        about = texts.pop("", "")
        assert texts == described, name
        assert about in model.__doc__, name


def test_without_the_files_of_the_package_schemas_have_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert descriptions_of.__wrapped__("io.k8s.api.core.v1.Pod") == {}


def test_no_model_is_imported_for_the_texts() -> None:
    code = (
        "import sys; from volplane_embedded.apiserver.descriptions import descriptions_of as of; "
        "assert of('io.k8s.api.core.v1.PodSpec')['containers']; assert 'kubernetes' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fields_are_typed_and_explained() -> None:
    claim = document("/openapi/v3/api/v1")["components"]["schemas"]["io.k8s.api.core.v1.PersistentVolumeClaimSpec"]
    assert claim["properties"]["accessModes"]["type"] == "array"
    assert "StorageClass" in claim["properties"]["storageClassName"]["description"]
    assert claim["properties"]["resources"]["description"]


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message of protocol buffers: number and content; of one that is a number, the number alone."""

    def number() -> int:
        nonlocal message
        found = shift = 0
        while True:
            byte, message = message[0], message[1:]
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    while message:
        tag, size = number(), number()
        if tag & 7 == 2:
            yield tag >> 3, message[:size]
            message = message[size:]
        else:
            yield tag >> 3, bytes([size])


def named(message: bytes, number: int) -> dict[str, bytes]:
    """A map, which is a repeated field of name and value."""
    items = [dict(fields(each)) for at, each in fields(message) if at == number]
    return {item[1].decode(): item[2] for item in items}


def test_version_2_is_in_protocol_buffers_for_who_asks_for_these() -> None:
    """kubectl validates lists by it. Both names of the form are asked for; the answer has the one that is a type."""
    asked = "application/com.github.proto-openapi.spec.v2{}v1.0+protobuf"
    found = OPENAPI.document("/openapi/v2", asked.format("@"))
    assert found is not None
    assert found == OPENAPI.document("/openapi/v2", asked.format("."))
    assert found[1] == asked.format(".")
    whole, plain = dict(fields(found[0])), document("/openapi/v2")
    paths, definitions = named(whole[8], 2), named(whole[9], 1)
    assert paths.keys() == plain["paths"].keys()
    assert definitions.keys() == plain["definitions"].keys()
    kind = "io.k8s.api.core.v1.PersistentVolumeClaim"
    assert named(dict(fields(definitions[kind]))[25], 1).keys() == plain["definitions"][kind]["properties"].keys()
    patch = dict(fields(paths["/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"]))[8]
    said = dict(fields(named(patch, 13)["x-kubernetes-group-version-kind"]))[2]
    assert json.loads(said) == {"group": "", "kind": "PersistentVolumeClaim", "version": "v1"}


def test_clients_that_want_another_form_are_told() -> None:
    with pytest.raises(StatusError) as refused:
        OPENAPI.document("/openapi/v3", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf")
    assert refused.value.code == 406


@pytest.mark.parametrize("path", ["/openapi/v3/apis/nope/v1", "/openapi", "/openapi/v4", "/api/v1"])
def test_there_is_nothing_at_other_paths(path: str) -> None:
    assert OPENAPI.document(path) is None
