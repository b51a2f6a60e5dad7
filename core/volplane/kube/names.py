"""Names that stand in Kubernetes objects: annotations, finalizers, labels and what they mean.

Source: Kubernetes 1.36, `pkg/controller/volume/persistentvolume` and `k8s.io/component-helpers/storage`; of snapshots,
external-snapshotter and external-provisioner. Ours begin with `volplane.dev/`.
"""

from typing import Final

from volplane._templates import data_of

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
"""On a claim: it went through a complete bind once; from then on the rules of bound claims hold."""
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
"""On a claim or volume: the controller chose the pointer to the other; absent = a person did."""
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
"""On a volume: the driver that made it."""
MIGRATED_TO = "pv.kubernetes.io/migrated-to"
"""On a claim or volume: a CSI driver took over from an in-tree plugin."""
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
"""On a claim: who must provision; external provisioners start on it."""
BETA_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""On a claim: the scheduler's choice; its removal asks for another one."""
BETA_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
"""On a claim or volume: the class; wins over the spec field."""
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
DEFAULT_CLASS_BETA = "storageclass.beta.kubernetes.io/is-default-class"
NODE_EXPANSION_NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"
"""On a claim that has grown: a kubelet need not grow its file system. Source: external-resizer, `expandAndRecover`."""
PRE_RESIZE_CAPACITY = "volume.alpha.kubernetes.io/pre-resize-capacity"
GID = "pv.beta.kubernetes.io/gid"

CLAIM_PROTECTION = "kubernetes.io/pvc-protection"
VOLUME_PROTECTION = "kubernetes.io/pv-protection"
IN_TREE_FINALIZER = "kubernetes.io/pv-controller"
EXTERNAL_PROVISIONER_FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"

ATTACH_BY_CONTROLLER = "volumes.kubernetes.io/controller-managed-attach-detach"
"""On a node, by its kubelet, with any value: the attach-detach controller attaches and detaches there."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""A taint, by a person: the machine is off, so that its volumes may be detached though they were not unmounted."""
NODE_ID = "csi.alpha.kubernetes.io/node-id"
"""On an attachment, by its attacher: the node as the backend knows it, kept for the time when the node is gone."""
BOOT_ID = "volplane.dev/boot-id"
"""On an attachment, by our attacher: `status.nodeInfo.bootID` of the Node that it is for."""
NODE_UID = "volplane.dev/node-uid"
"""Uid of the Node that it is for. On an attachment by the attach-detach controller, on claims and volumes of
distributed drivers by the assigner: a node that is made again under its name has another uid."""
LEFTOVER = "volplane.dev/leftover"
"""On an attachment that was made to be deleted: the backend had the volume attached, and no attachment said so."""

CAPACITY_DRIVER = "csi.storage.k8s.io/drivername"
"""Label of a CSIStorageCapacity, as the external provisioner writes it: the driver."""
CAPACITY_PUBLISHER = "csi.storage.k8s.io/managed-by"
"""Label of a CSIStorageCapacity: who publishes it, and removes it when it is outdated."""
NODE = "volplane.dev/node"
"""Label of claims and volumes of distributed drivers: `volplane.state.naming.node_hash` of the name of their node."""
NODE_GONE_AFTER = "volplane.dev/node-gone-after"
"""Class parameter: how long a node must be gone until a claim whose volume it has not made goes to another one."""
PLACEMENT = "volplane.dev/placement"
"""Class parameter: how the assigner chooses among the nodes that have room."""

PROVISIONING_FINALIZER = "volplane.dev/provisioning"
"""On a claim: an asset may be in the making; the claim may not vanish before that is settled."""
RECLAIM_FINALIZER = "volplane.dev/reclaim"
"""On a volume: its asset goes before the object does."""
INTENT = "volplane.dev/intent"
"""On a claim, volume or attachment: the durable record that an operation may have side effects."""
ATTRIBUTES = "volplane.dev/attributes"
"""On our volumes without a csi source: the asset's attributes, a JSON object of texts."""
HANDLE = "volplane.dev/handle"
"""On a volume: the backend's id of its asset."""
DRIVER = "volplane.dev/driver"
"""On a volume: the driver that works on its asset."""
DRIVERS = "volplane.dev/drivers"
"""On our Lease: names of the drivers that its last holder was configured with, separated by commas."""
EXPANSION = "volplane.dev/expansion"
"""On a volume: the state that a long `expand` of its asset returned, and the size it is for."""
GENERATION = "volplane.dev/generation"
"""On a volume: which asset of the claim's intent it points at."""
MODIFICATION = "volplane.dev/modification"
"""On a volume: the state that a long `modify` of its asset returned, and the class it is for."""
ON_RELEASE = "volplane.dev/on-release"
"""On a volume, and as a class parameter: "delete" or "recycle"."""
SCHEMA_VERSION = "volplane.dev/schema-version"
"""On a volume: version of these annotations."""
SCRUB_VOLUME_UID = "volplane.dev/scrub-volume-uid"
"""On the pod and the claim of a scrub: uid of the volume that is erased."""

TRASH = "volplane.dev/trash"
"""How long a deleted volume is kept: on a class, as parameter or annotation, and on a volume the longest time; on a
claim its choice within that, or "skip"."""
TRASH_CHOICE = "volplane.dev/trash-choice"
"""On a volume: what its claim chose, as it outlives the claim."""
TRASH_EARLY = "volplane.dev/trash-early"
"""On a class, as parameter or annotation, and on its volumes: "oldest-first" = if room is short for a claim of the
class, volumes leave the trash early."""
TRASHED = "volplane.dev/trashed"
"""On a volume: the record that it is in the trash, and until when."""
UNDELETE = "volplane.dev/undelete"
"""On a volume, by an administrator: the claim that gets it out of the trash. On a claim that names a volume in the
trash: the uid of the former claim, as proof that both have one owner."""

SNAPSHOT_AS_SOURCE = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"
SNAPSHOT_BOUND = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
"""On a VolumeSnapshot whose content is deleted with it."""
CONTENT_BOUND = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
CLAIM_AS_SOURCE = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
"""On a claim while a snapshot of it is not ready."""
SNAPSHOT_IN_GROUP = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection"
RESTORED_SNAPSHOT = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
CLONED_CLAIM = "provisioner.storage.kubernetes.io/cloning-protection"
DEFAULT_SNAPSHOT_CLASS = "snapshot.storage.kubernetes.io/is-default-class"
SNAPSHOT_BEING_CREATED = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
"""On a content, "yes": the backend may be cutting a snapshot for it."""
SNAPSHOT_BEING_DELETED = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
"""On a content, "yes": its VolumeSnapshot is being deleted."""
SNAPSHOT_SECRET_NAME = "snapshot.storage.kubernetes.io/deletion-secret-name"  # noqa: S105 - no secret
"""On a content: the Secret of all calls about its snapshot."""
SNAPSHOT_SECRET_NAMESPACE = "snapshot.storage.kubernetes.io/deletion-secret-namespace"  # noqa: S105 - no secret
ALLOW_VOLUME_MODE_CHANGE = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
GROUP_BOUND = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection"
GROUP_CONTENT_BOUND = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection"
DEFAULT_GROUP_CLASS = "groupsnapshot.storage.kubernetes.io/is-default-class"
GROUP_BEING_CREATED = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created"
GROUP_BEING_DELETED = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted"
GROUP_SNAPSHOT_HANDLE = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"
"""On a content: its snapshot is cut with those of a group."""
SNAPSHOT_MANAGED_BY = "snapshot.storage.kubernetes.io/managed-by"

SNAPSHOT_SCHEDULE = "volplane.dev/snapshot-schedule"
"""On a claim, or on a class for its claims: when snapshots are taken, and how many stay. Label of a VolumeSnapshot that
was taken so: uid of the claim."""
SNAPSHOT_SUSPEND = "volplane.dev/snapshot-suspend"
"""On a claim, or on a class for its claims: "true" = by no schedule are snapshots taken or deleted."""
SNAPSHOT_RUN = "volplane.dev/snapshot-run"
"""On a claim: the record of its last run. On a VolumeSnapshot: the number of its run."""

VOLUME_SOURCES: Final = data_of("volplane.kube", "volume_sources.yaml")
MIGRATED_PLUGINS: Final = {
    each["plugin"]: each["driver"] for each in VOLUME_SOURCES["sources"].values() if "plugin" in each
}
"""In-tree plugin -> the CSI driver that has taken over its volumes."""
