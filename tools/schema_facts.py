"""Facts about the API's Go types that the schemas of the API server need and the client models lack.

Keys are `Definition.field` or, where a field means the same everywhere, `field` alone.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ALWAYS_SENT",
    "INT64",
    "KEPT_WHEN_EMPTY",
    "MERGE_KEYS",
    "MICRO_TIMES",
    "PACKAGES",
    "QUANTITIES",
    "RETAIN_KEYS",
    "ZERO_DROPPED",
]

_STORAGE: Final = "io.k8s.api.storage.v1"
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
PACKAGES: Final = {
    **dict.fromkeys(
        (
            "CSIDriver",
            "CSIDriverSpec",
            "CSINode",
            "CSINodeDriver",
            "CSINodeSpec",
            "CSINodeStatus",
            "CSIStorageCapacity",
            "StorageClass",
            "VolumeAttachment",
            "VolumeAttachmentSource",
            "VolumeAttachmentSpec",
            "VolumeAttachmentStatus",
            "VolumeAttributesClass",
            "VolumeError",
            "VolumeNodeResources",
            "TokenRequest",
            "StorageHealth",
            "StorageHealthCondition",
        ),
        _STORAGE,
    ),
    **dict.fromkeys(
        (
            "DeleteOptions",
            "LabelSelector",
            "LabelSelectorRequirement",
            "ListMeta",
            "ManagedFieldsEntry",
            "ObjectMeta",
            "OwnerReference",
            "Preconditions",
            "ShardInfo",
            "Status",
            "StatusCause",
            "StatusDetails",
        ),
        _META,
    ),
    "Eviction": "io.k8s.api.policy.v1",
    "Lease": "io.k8s.api.coordination.v1",
    "LeaseSpec": "io.k8s.api.coordination.v1",
}
"""Package of a definition; the others are core/v1."""

QUANTITIES: Final = frozenset(
    {
        "CSIStorageCapacity.capacity",
        "CSIStorageCapacity.maximumVolumeSize",
        "EmptyDirVolumeSource.sizeLimit",
        "ResourceFieldSelector.divisor",
        "ResourceQuotaSpec.hard",
        "ResourceQuotaStatus.hard",
        "ResourceQuotaStatus.used",
        "allocatable",
        "allocatedResources",
        "NodeStatus.capacity",
        "PersistentVolumeClaimStatus.capacity",
        "PersistentVolumeSpec.capacity",
        "limits",
        "overhead",
        "requests",
    }
)
MICRO_TIMES: Final = frozenset({"acquireTime", "renewTime", "eventTime", "lastObservedTime"})
INT64: Final = frozenset(
    {
        "activeDeadlineSeconds",
        "deletionGracePeriodSeconds",
        "expirationSeconds",
        "fsGroup",
        "generation",
        "gid",
        "gracePeriodSeconds",
        "nodeAllocatableUpdatePeriodSeconds",
        "NodeSwapStatus.capacity",
        "observedGeneration",
        "remainingItemCount",
        "runAsGroup",
        "runAsUser",
        "seconds",
        "sizeBytes",
        "supplementalGroups",
        "terminationGracePeriodSeconds",
        "tolerationSeconds",
        "LinuxContainerUser.uid",
    }
)

MERGE_KEYS: Final = {
    "ObjectMeta.finalizers": "",
    "ObjectMeta.ownerReferences": "uid",
    "PodSpec.containers": "name",
    "PodSpec.ephemeralContainers": "name",
    "PodSpec.hostAliases": "ip",
    "PodSpec.imagePullSecrets": "name",
    "PodSpec.initContainers": "name",
    "PodSpec.resourceClaims": "name",
    "PodSpec.schedulingGates": "name",
    "PodSpec.topologySpreadConstraints": "topologyKey",
    "PodSpec.volumes": "name",
    "PodStatus.conditions": "type",
    "PodStatus.hostIPs": "ip",
    "PodStatus.podIPs": "ip",
    "PodStatus.resourceClaimStatuses": "name",
    "Container.env": "name",
    "Container.ports": "containerPort",
    "Container.volumeDevices": "devicePath",
    "Container.volumeMounts": "mountPath",
    "EphemeralContainer.env": "name",
    "EphemeralContainer.ports": "containerPort",
    "EphemeralContainer.volumeDevices": "devicePath",
    "EphemeralContainer.volumeMounts": "mountPath",
    "CSINodeSpec.drivers": "name",
    "NamespaceStatus.conditions": "type",
    "NodeSpec.podCIDRs": "",
    "NodeStatus.addresses": "type",
    "NodeStatus.conditions": "type",
    "PersistentVolumeClaimStatus.conditions": "type",
    "ServiceAccount.secrets": "name",
}
"""Lists that a strategic merge patch merges, by the key of their elements ("" for lists of scalars)."""
RETAIN_KEYS: Final = frozenset({"PodSpec.volumes", "PodSpec.resourceClaims", "PodStatus.resourceClaimStatuses"})

KEPT_WHEN_EMPTY: Final = frozenset(
    {
        "AppArmorProfile.localhostProfile",
        "AzureDiskVolumeSource.cachingMode",
        "AzureDiskVolumeSource.fsType",
        "AzureDiskVolumeSource.kind",
        "AzureDiskVolumeSource.readOnly",
        "AzureFilePersistentVolumeSource.secretNamespace",
        "CSIDriverSpec.fsGroupPolicy",
        "CSIStorageCapacity.capacity",
        "CSIStorageCapacity.maximumVolumeSize",
        "CSIVolumeSource.fsType",
        "CSIVolumeSource.readOnly",
        "ClusterTrustBundleProjection.name",
        "ClusterTrustBundleProjection.signerName",
        "Container.restartPolicy",
        "EphemeralContainer.restartPolicy",
        "GRPCAction.service",
        "GlusterfsPersistentVolumeSource.endpointsNamespace",
        "HostPathVolumeSource.type",
        "ISCSIPersistentVolumeSource.initiatorName",
        "ISCSIVolumeSource.initiatorName",
        "LeaseSpec.holderIdentity",
        "LeaseSpec.preferredHolder",
        "LeaseSpec.strategy",
        "LocalVolumeSource.fsType",
        "PersistentVolumeClaimSpec.storageClassName",
        "PersistentVolumeClaimSpec.volumeAttributesClassName",
        "PersistentVolumeClaimSpec.volumeMode",
        "PersistentVolumeClaimStatus.currentVolumeAttributesClassName",
        "PersistentVolumeSpec.volumeAttributesClassName",
        "PersistentVolumeSpec.volumeMode",
        "PodDNSConfigOption.value",
        "PodSecurityContext.fsGroupChangePolicy",
        "PodSecurityContext.seLinuxChangePolicy",
        "PodSecurityContext.supplementalGroupsPolicy",
        "PodSpec.hostnameOverride",
        "PodSpec.preemptionPolicy",
        "PodSpec.runtimeClassName",
        "ResourceFieldSelector.divisor",
        "SeccompProfile.localhostProfile",
        "SecurityContext.procMount",
        "StorageClass.reclaimPolicy",
        "StorageClass.volumeBindingMode",
        "TopologySpreadConstraint.nodeAffinityPolicy",
        "TopologySpreadConstraint.nodeTaintsPolicy",
        "TypedLocalObjectReference.apiGroup",
        "TypedObjectReference.apiGroup",
        "TypedObjectReference.namespace",
        "VolumeAttachmentSource.persistentVolumeName",
        "VolumeNodeResources.count",
        "VolumeMount.mountPropagation",
        "VolumeMount.recursiveReadOnly",
        "WindowsSecurityContextOptions.gmsaCredentialSpec",
        "WindowsSecurityContextOptions.gmsaCredentialSpecName",
        "WindowsSecurityContextOptions.runAsUserName",
        "resourceClaimName",
        "resourceClaimTemplateName",
        "EmptyDirVolumeSource.sizeLimit",
    }
)
"""Optional texts that are pointers in Go: "" is kept there, elsewhere it means absent."""
ALWAYS_SENT: Final = frozenset(
    {
        "CSINodeDriver.topologyKeys",
        "ContainerImage.names",
        "ProjectedVolumeSource.sources",
        "TypedLocalObjectReference.apiGroup",
        "TypedObjectReference.apiGroup",
    }
)
"""Optional fields that are null where they are absent. Required ones have the zero value of their type there."""
ZERO_DROPPED: Final = frozenset(
    {
        "chapAuthDiscovery",
        "chapAuthSession",
        "code",
        "count",
        "deprecatedCount",
        "failureThreshold",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostPort",
        "initialDelaySeconds",
        "observedGeneration",
        "partition",
        "periodSeconds",
        "readOnly",
        "retryAfterSeconds",
        "signal",
        "sizeBytes",
        "sslEnabled",
        "stdin",
        "stdinOnce",
        "successThreshold",
        "timeoutSeconds",
        "tty",
        "unschedulable",
    }
)
"""Numbers and booleans whose zero means absent; the others are pointers in Go."""
