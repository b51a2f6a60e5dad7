"""Bodies as kubectl 1.32 sent them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unit.embedded.apiserver.calls import Calls
from volplane_embedded.apiserver.errors import StatusError
from volplane_embedded.apiserver.protobuf import MEDIA_TYPE, decode_protobuf

EMPTY_META = b'\x12\x00\x1a\x00"\x00*\x002\x008\x00B\x00'


def message(*fields: tuple[int, bytes | int]) -> bytes:
    """Protobuf of fields: bytes with their length, numbers as they are."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    head = message((1, version.encode()), (2, kind.encode()))
    return b"k8s\x00" + message((1, head), (2, raw), (3, b""), (4, b""))


def test_a_namespace_from_kubectl_is_read() -> None:
    raw = message((1, message((1, b"foo")) + EMPTY_META), (2, b""), (3, message((1, b""))))
    read = decode_protobuf(envelope("v1", "Namespace", raw))
    assert read == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "foo", "generation": 0},
        "spec": {},
    }


def test_metadata_data_and_bytes_are_read() -> None:
    owner = message((5, b"v1"), (1, b"Pod"), (3, b"p"), (4, b"u"), (6, 1))
    meta = message(
        (1, b"s"),
        (8, message((1, 1767268800), (2, 5))),
        (10, 30),
        (11, message((1, b"k"), (2, b"v"))),
        (11, message((1, b"empty"))),
        (13, owner),
        (14, b"a.b/c"),
        (14, b"d.e/f"),
        (17, b"\x0a\x01x"),
    )
    raw = message((1, meta), (2, message((1, b"bin"), (2, b"\x00\xff"))), (3, b"Opaque"), (5, 1))
    read: Any = decode_protobuf(envelope("v1", "Secret", raw))
    assert read["metadata"] == {
        "name": "s",
        "creationTimestamp": "2026-01-01T12:00:00Z",
        "deletionGracePeriodSeconds": 30,
        "labels": {"k": "v", "empty": ""},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}],
        "finalizers": ["a.b/c", "d.e/f"],
    }
    assert (read["data"], read["type"], read["immutable"]) == ({"bin": "AP8="}, "Opaque", True)


def test_a_quota_from_kubectl_is_read() -> None:
    hard = message((1, b"requests.storage"), (2, message((1, b"1Gi"))))
    scope = message((1, b"VolumeAttributesClass"), (2, b"In"), (3, b"gold"), (3, b"tin"))
    spec = message((1, hard), (2, b"BestEffort"), (3, message((1, scope))))
    read: Any = decode_protobuf(envelope("v1", "ResourceQuota", message((1, message((1, b"q"))), (2, spec), (3, b""))))
    selected = {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold", "tin"]}
    assert read["spec"] == {
        "hard": {"requests.storage": "1Gi"},
        "scopes": ["BestEffort"],
        "scopeSelector": {"matchExpressions": [selected]},
    }


def test_a_deployment_from_kubectl_is_read() -> None:
    port = message((1, b""), (2, 0), (3, 80), (4, b""), (5, b""))
    container = message((1, b"c"), (2, b"i"), (3, b"sleep"), (3, b"1d"), (6, port), (8, b""))
    labels = message((1, b"app"), (2, b"x"))
    template = message((1, message((11, labels))), (2, message((2, container), (3, b""))))
    spec = message((1, 2), (2, message((1, labels))), (3, template), (4, message((1, b""))), (5, 0))
    read = decode_protobuf(envelope("apps/v1", "Deployment", message((1, message((1, b"x"))), (2, spec), (3, b""))))
    assert read is not None
    assert (read["spec"]["replicas"], read["spec"]["selector"]) == (2, {"matchLabels": {"app": "x"}})
    of_container = {"name": "c", "image": "i", "command": ["sleep", "1d"], "ports": [{"containerPort": 80}]}
    pod = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [of_container]}}
    assert read["spec"]["template"] == pod


def test_negative_numbers_and_fixed_size_fields_are_read() -> None:
    raw = message((1, (1 << 64) - 1)) + b"\x71" + b"\x00" * 8 + b"\x7d" + b"\x00" * 4
    assert decode_protobuf(envelope("v1", "DeleteOptions", raw))["gracePeriodSeconds"] == -1  # type: ignore[index]


def test_a_kind_that_is_not_known_in_this_form_is_none() -> None:
    assert decode_protobuf(envelope("v1", "Gadget", b"")) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"k8s\x00\xff",
        b"k8s\x00\x0a\x7f",
        b"k8s\x00\x0b",
        b"k8s\x00\x08\x01",
        envelope("v1", "Namespace", b"\x08\x01"),
        envelope("v1", "Namespace", message((1, message((1, b"\xff\xfe"))))),
        envelope("v1", "Secret", message((5, b"x"))),
        envelope("v1", "ConfigMap", message((1, message((8, message((1, 1 << 60))))))),
    ],
)
def test_what_is_no_message_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(StatusError) as refused:
        decode_protobuf(body)
    assert refused.value.code == 400


def test_the_server_takes_such_bodies_and_answers_in_json() -> None:
    calls = Calls()
    headers = {"Content-Type": MEDIA_TYPE, "Accept": f"{MEDIA_TYPE},application/json"}
    raw = message((1, message((1, b"team")) + EMPTY_META))
    body = envelope("v1", "Namespace", raw)
    answer = calls.server.handle("POST", "/api/v1/namespaces", {"fieldValidation": "Strict"}, headers, body)
    assert (answer.status, json.loads(answer.body)["metadata"]["name"]) == (201, "team")
    gadget = calls.server.handle("POST", "/api/v1/namespaces", {}, headers, envelope("v1", "Gadget", b""))
    assert gadget.status == 415
