"""The messages of CSI as this process knows them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from volplane.csi import wire
from volplane.csi.contract import SERVICES
from volplane.csi.wire import build, without_secrets


def test_another_package_of_the_process_that_knows_csi_disturbs_nothing() -> None:
    other = descriptor_pb2.FileDescriptorProto(name="elsewhere/csi.proto", package="csi.v1", syntax="proto3")
    other.message_type.add(name="CreateVolumeRequest")
    descriptor_pool.Default().Add(other)
    assert build("CreateVolumeRequest", name="a").name == "a"


def test_secrets_are_dropped_before_anything_reads_them() -> None:
    request = build("NodePublishVolumeRequest", volume_id="a", secrets={"password": "hunter2"})
    assert "hunter2" not in str(without_secrets(request))
    assert request.volume_id == "a"


def published(text: str) -> Iterator[str]:
    """Yield what the file of the specification declares, a fact a line as in `declared`."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    scope: list[tuple[str, str]] = []
    for part in re.findall(r"[^{};]*[{};]", text):
        words = re.findall(r"[\w.]+", part)
        kind, inner = scope[-1] if scope else ("", "")
        name = ".".join(each for what, each in scope if what in ("message", "enum"))
        if words[:1] == ["rpc"]:
            yield f"{inner}.{words[1]}"
        elif words[:1] != ["option"] and words[:1] != ["reserved"] and part.endswith(";") and "=" in part:
            if kind == "enum":
                yield f"{name} {words[1]} {words[0]}"
            elif kind in ("message", "oneof"):
                many, words = words[0] == "repeated", words[words[0] == "repeated" :]
                if words[0] == "map":
                    words = ["map", *words[3:]]
                type_ = words[0].removeprefix(".").removeprefix("google.protobuf") + "[]" * many
                more = f" of {inner}" * (kind == "oneof") + " secret" * ("csi_secret" in part)
                yield f"{name} {words[2]} {words[1]} {type_}{more}"
        if part.endswith("{"):
            scope.append((words[0], words[1]) if len(words) > 1 else ("", ""))
        elif part.endswith("}"):
            scope.pop()


def declared() -> Iterator[str]:
    """Yield service.method, enumeration number value, and message number field type, with more about it."""
    yield from (f"{service}.{method}" for service, methods in SERVICES.items() for method in methods)
    registration = ("PluginInfo", "InfoRequest", "RegistrationStatus", "RegistrationStatusResponse")
    yield from (" ".join((name, *row)) for name, _, rows in wire._blocks() if name not in registration for row in rows)


@pytest.mark.soak
def test_the_contract_is_that_of_the_published_file() -> None:
    """VOLPLANE_CSI_PROTO: path of csi.proto of CSI's specification."""
    if not (path := os.environ.get("VOLPLANE_CSI_PROTO")):
        pytest.skip("VOLPLANE_CSI_PROTO names no csi.proto")
    ours, theirs = {*declared()}, {*published(Path(path).read_text("utf-8"))}
    assert len(theirs) > 250
    assert sorted(ours - theirs) == []
    not_served = re.compile(r"SnapshotMetadata\.|GetMetadata(Allocated|Delta)|BlockMetadata")
    assert [each for each in sorted(theirs - ours) if not not_served.match(each)] == []


def test_the_secrets_of_all_calls_are_known() -> None:
    found = {name for name, fields in wire._secrets().items() if fields}
    assert {fields for fields in wire._secrets().values() if fields} == {("secrets",)}
    of_volumes = ("CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume")
    others = ("ValidateVolumeCapabilities", "ControllerExpandVolume", "ControllerModifyVolume")
    of_snapshots = ("CreateSnapshot", "DeleteSnapshot", "ListSnapshots", "GetSnapshot")
    of_groups = ("CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot")
    of_nodes = ("NodeStageVolume", "NodePublishVolume", "NodeExpandVolume")
    assert found == {f"{each}Request" for each in (*of_volumes, *others, *of_snapshots, *of_groups, *of_nodes)}
