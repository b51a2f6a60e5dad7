"""The wire contract of CSI 1.12: services, messages, fields, numbers and types, of which `wire` makes classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PACKAGE: Final = "csi.v1"

SERVICES: Final[Mapping[str, tuple[str, ...]]] = {
    "Identity": ("GetPluginInfo", "GetPluginCapabilities", "Probe"),
    "Controller": (
        *("CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume"),
        *("ValidateVolumeCapabilities", "ListVolumes", "GetCapacity", "ControllerGetCapabilities"),
        *("CreateSnapshot", "DeleteSnapshot", "ListSnapshots", "GetSnapshot"),
        *("ControllerExpandVolume", "ControllerGetVolume", "ControllerModifyVolume"),
    ),
    "GroupController": (
        *("GroupControllerGetCapabilities", "CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot"),
        "GetVolumeGroupSnapshot",
    ),
    "Node": (
        *("NodeStageVolume", "NodeUnstageVolume", "NodePublishVolume", "NodeUnpublishVolume"),
        *("NodeGetVolumeStats", "NodeExpandVolume", "NodeGetCapabilities", "NodeGetInfo"),
    ),
}
"""Service -> its methods. Method X takes the message XRequest and returns XResponse."""

MESSAGES: Final = """
GetPluginInfoRequest
GetPluginInfoResponse
  1 name string
  2 vendor_version string
  3 manifest map
GetPluginCapabilitiesRequest
GetPluginCapabilitiesResponse
  1 capabilities PluginCapability[]
PluginCapability
  1 service Service of type
  2 volume_expansion VolumeExpansion of type
PluginCapability.Service
  1 type Type
enum PluginCapability.Service.Type
  0 UNKNOWN
  1 CONTROLLER_SERVICE
  2 VOLUME_ACCESSIBILITY_CONSTRAINTS
  3 GROUP_CONTROLLER_SERVICE
  4 SNAPSHOT_METADATA_SERVICE
PluginCapability.VolumeExpansion
  1 type Type
enum PluginCapability.VolumeExpansion.Type
  0 UNKNOWN
  1 ONLINE
  2 OFFLINE
ProbeRequest
ProbeResponse
  1 ready .BoolValue
CreateVolumeRequest
  1 name string
  2 capacity_range CapacityRange
  3 volume_capabilities VolumeCapability[]
  4 parameters map
  5 secrets map secret
  6 volume_content_source VolumeContentSource
  7 accessibility_requirements TopologyRequirement
  8 mutable_parameters map
VolumeContentSource
  1 snapshot SnapshotSource of type
  2 volume VolumeSource of type
VolumeContentSource.SnapshotSource
  1 snapshot_id string
VolumeContentSource.VolumeSource
  1 volume_id string
CreateVolumeResponse
  1 volume Volume
VolumeCapability
  1 block BlockVolume of access_type
  2 mount MountVolume of access_type
  3 access_mode AccessMode
VolumeCapability.BlockVolume
VolumeCapability.MountVolume
  1 fs_type string
  2 mount_flags string[]
  3 volume_mount_group string
VolumeCapability.AccessMode
  1 mode Mode
enum VolumeCapability.AccessMode.Mode
  0 UNKNOWN
  1 SINGLE_NODE_WRITER
  2 SINGLE_NODE_READER_ONLY
  3 MULTI_NODE_READER_ONLY
  4 MULTI_NODE_SINGLE_WRITER
  5 MULTI_NODE_MULTI_WRITER
  6 SINGLE_NODE_SINGLE_WRITER
  7 SINGLE_NODE_MULTI_WRITER
CapacityRange
  1 required_bytes int64
  2 limit_bytes int64
Volume
  1 capacity_bytes int64
  2 volume_id string
  3 volume_context map
  4 content_source VolumeContentSource
  5 accessible_topology Topology[]
TopologyRequirement
  1 requisite Topology[]
  2 preferred Topology[]
Topology
  1 segments map
DeleteVolumeRequest
  1 volume_id string
  2 secrets map secret
DeleteVolumeResponse
ControllerPublishVolumeRequest
  1 volume_id string
  2 node_id string
  3 volume_capability VolumeCapability
  4 readonly bool
  5 secrets map secret
  6 volume_context map
ControllerPublishVolumeResponse
  1 publish_context map
ControllerUnpublishVolumeRequest
  1 volume_id string
  2 node_id string
  3 secrets map secret
ControllerUnpublishVolumeResponse
ValidateVolumeCapabilitiesRequest
  1 volume_id string
  2 volume_context map
  3 volume_capabilities VolumeCapability[]
  4 parameters map
  5 secrets map secret
  6 mutable_parameters map
ValidateVolumeCapabilitiesResponse
  1 confirmed Confirmed
  2 message string
ValidateVolumeCapabilitiesResponse.Confirmed
  1 volume_context map
  2 volume_capabilities VolumeCapability[]
  3 parameters map
  4 mutable_parameters map
ListVolumesRequest
  1 max_entries int32
  2 starting_token string
ListVolumesResponse
  1 entries Entry[]
  2 next_token string
ListVolumesResponse.VolumeStatus
  1 published_node_ids string[]
  2 volume_condition VolumeCondition
ListVolumesResponse.Entry
  1 volume Volume
  2 status VolumeStatus
ControllerGetVolumeRequest
  1 volume_id string
ControllerGetVolumeResponse
  1 volume Volume
  2 status VolumeStatus
ControllerGetVolumeResponse.VolumeStatus
  1 published_node_ids string[]
  2 volume_condition VolumeCondition
ControllerModifyVolumeRequest
  1 volume_id string
  2 secrets map secret
  3 mutable_parameters map
ControllerModifyVolumeResponse
GetCapacityRequest
  1 volume_capabilities VolumeCapability[]
  2 parameters map
  3 accessible_topology Topology
GetCapacityResponse
  1 available_capacity int64
  2 maximum_volume_size .Int64Value
  3 minimum_volume_size .Int64Value
ControllerGetCapabilitiesRequest
ControllerGetCapabilitiesResponse
  1 capabilities ControllerServiceCapability[]
ControllerServiceCapability
  1 rpc RPC of type
ControllerServiceCapability.RPC
  1 type Type
enum ControllerServiceCapability.RPC.Type
  0 UNKNOWN
  1 CREATE_DELETE_VOLUME
  2 PUBLISH_UNPUBLISH_VOLUME
  3 LIST_VOLUMES
  4 GET_CAPACITY
  5 CREATE_DELETE_SNAPSHOT
  6 LIST_SNAPSHOTS
  7 CLONE_VOLUME
  8 PUBLISH_READONLY
  9 EXPAND_VOLUME
  10 LIST_VOLUMES_PUBLISHED_NODES
  11 VOLUME_CONDITION
  12 GET_VOLUME
  13 SINGLE_NODE_MULTI_WRITER
  14 MODIFY_VOLUME
  15 GET_SNAPSHOT
CreateSnapshotRequest
  1 source_volume_id string
  2 name string
  3 secrets map secret
  4 parameters map
CreateSnapshotResponse
  1 snapshot Snapshot
Snapshot
  1 size_bytes int64
  2 snapshot_id string
  3 source_volume_id string
  4 creation_time .Timestamp
  5 ready_to_use bool
  6 group_snapshot_id string
DeleteSnapshotRequest
  1 snapshot_id string
  2 secrets map secret
DeleteSnapshotResponse
ListSnapshotsRequest
  1 max_entries int32
  2 starting_token string
  3 source_volume_id string
  4 snapshot_id string
  5 secrets map secret
ListSnapshotsResponse
  1 entries Entry[]
  2 next_token string
ListSnapshotsResponse.Entry
  1 snapshot Snapshot
GetSnapshotRequest
  1 snapshot_id string
  2 secrets map secret
GetSnapshotResponse
  1 snapshot Snapshot
ControllerExpandVolumeRequest
  1 volume_id string
  2 capacity_range CapacityRange
  3 secrets map secret
  4 volume_capability VolumeCapability
ControllerExpandVolumeResponse
  1 capacity_bytes int64
  2 node_expansion_required bool
GroupControllerGetCapabilitiesRequest
GroupControllerGetCapabilitiesResponse
  1 capabilities GroupControllerServiceCapability[]
GroupControllerServiceCapability
  1 rpc RPC of type
GroupControllerServiceCapability.RPC
  1 type Type
enum GroupControllerServiceCapability.RPC.Type
  0 UNKNOWN
  1 CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
CreateVolumeGroupSnapshotRequest
  1 name string
  2 source_volume_ids string[]
  3 secrets map secret
  4 parameters map
CreateVolumeGroupSnapshotResponse
  1 group_snapshot VolumeGroupSnapshot
VolumeGroupSnapshot
  1 group_snapshot_id string
  2 snapshots Snapshot[]
  3 creation_time .Timestamp
  4 ready_to_use bool
DeleteVolumeGroupSnapshotRequest
  1 group_snapshot_id string
  2 snapshot_ids string[]
  3 secrets map secret
DeleteVolumeGroupSnapshotResponse
GetVolumeGroupSnapshotRequest
  1 group_snapshot_id string
  2 snapshot_ids string[]
  3 secrets map secret
GetVolumeGroupSnapshotResponse
  1 group_snapshot VolumeGroupSnapshot
NodeStageVolumeRequest
  1 volume_id string
  2 publish_context map
  3 staging_target_path string
  4 volume_capability VolumeCapability
  5 secrets map secret
  6 volume_context map
NodeStageVolumeResponse
NodeUnstageVolumeRequest
  1 volume_id string
  2 staging_target_path string
NodeUnstageVolumeResponse
NodePublishVolumeRequest
  1 volume_id string
  2 publish_context map
  3 staging_target_path string
  4 target_path string
  5 volume_capability VolumeCapability
  6 readonly bool
  7 secrets map secret
  8 volume_context map
NodePublishVolumeResponse
NodeUnpublishVolumeRequest
  1 volume_id string
  2 target_path string
NodeUnpublishVolumeResponse
NodeGetVolumeStatsRequest
  1 volume_id string
  2 volume_path string
  3 staging_target_path string
NodeGetVolumeStatsResponse
  1 usage VolumeUsage[]
  2 volume_condition VolumeCondition
VolumeUsage
  1 available int64
  2 total int64
  3 used int64
  4 unit Unit
enum VolumeUsage.Unit
  0 UNKNOWN
  1 BYTES
  2 INODES
VolumeCondition
  1 abnormal bool
  2 message string
NodeGetCapabilitiesRequest
NodeGetCapabilitiesResponse
  1 capabilities NodeServiceCapability[]
NodeServiceCapability
  1 rpc RPC of type
NodeServiceCapability.RPC
  1 type Type
enum NodeServiceCapability.RPC.Type
  0 UNKNOWN
  1 STAGE_UNSTAGE_VOLUME
  2 GET_VOLUME_STATS
  3 EXPAND_VOLUME
  4 VOLUME_CONDITION
  5 SINGLE_NODE_MULTI_WRITER
  6 VOLUME_MOUNT_GROUP
NodeGetInfoRequest
NodeGetInfoResponse
  1 node_id string
  2 max_volumes_per_node int64
  3 accessible_topology Topology
NodeExpandVolumeRequest
  1 volume_id string
  2 volume_path string
  3 capacity_range CapacityRange
  4 staging_target_path string
  5 volume_capability VolumeCapability
  6 secrets map secret
NodeExpandVolumeResponse
  1 capacity_bytes int64
"""
"""A line names a message, or `enum` and an enumeration, then come its fields: number, name, type.

Types are those of protocol buffers, messages of the same scope or of the package, and with a dot before them those of
google.protobuf. `map` is a map of strings, [] repeats. `of X` names the oneof that the field is part of; `secret` marks
what may be written nowhere (the option csi_secret).
"""

REGISTRATION: Final = """
InfoRequest
PluginInfo
  1 type string
  2 name string
  3 endpoint string
  4 supported_versions string[]
RegistrationStatus
  1 plugin_registered bool
  2 error string
RegistrationStatusResponse
"""
"""Messages of the kubelet's service Registration (pluginregistration.v1), in the same form."""
