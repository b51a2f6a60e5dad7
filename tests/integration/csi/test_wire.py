"""The messages of CSI as this process knows them."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool

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
