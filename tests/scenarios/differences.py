"""Rows that record what a stock controller does wrong, or what we do otherwise; and what is expected instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scenarios.rows import Gone, Json, changed


@dataclass(frozen=True)
class Difference:
    """item: of docs/explanation/differences.md. edits: see `rows.changed`."""

    item: str
    why: str
    edits: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, row: Json) -> Json:
        return changed(row, self.edits)


def _scrubber(volume: str, **more: Any) -> Json:
    return {"metadata": {"name": f"$scrubber({volume})", "namespace": "volplane-system"}, **more}


_RWO = ["ReadWriteOnce"]
_INTENT = "volplane.dev/intent"
_PROVISIONER = {
    "volume.kubernetes.io/storage-provisioner": "kubernetes.io/mock-volume",
    "volume.beta.kubernetes.io/storage-provisioner": "kubernetes.io/mock-volume",
}
_RECYCLING = '{"claim":"$stale-uid(uid6-5)","installation":"volplane-system","v":1}'
_SEALED = {_INTENT: "$sealed(kubernetes.io/mock-volume)"}

VOLUME_DIFFERENCES: dict[str, Difference] = {
    "match-pre-self-wider": Difference(
        "21.4",
        "A reservation is looked up first, over all access modes: it does not lose to a free volume.",
        {
            "then/volumes/free-exact/metadata/annotations": None,
            "then/volumes/free-exact/spec/claimRef": None,
            "then/volumes/free-exact/status/phase": "Available",
            "then/volumes/reserved-wide/spec/claimRef/uid": "$uid(claim01)",
            "then/volumes/reserved-wide/status/phase": "Bound",
            "then/claims/claim01/spec/volumeName": "reserved-wide",
            "then/claims/claim01/status/accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        },
    ),
    "restore-misbound": Difference(
        "21.8",
        "Claim and volume came back from a backup and name each other: they are bound again, not lost.",
        {
            "then/volumes/v-restored/spec/claimRef/uid": "$uid(c-restored)",
            "then/volumes/v-restored/status/phase": "Bound",
            "then/claims/c-restored/status": {"phase": "Bound", "accessModes": _RWO, "capacity": {"storage": "1Gi"}},
            "events": [],
        },
    ),
    "finalizer-stuck-deleting": Difference(
        "21.9",
        "A finalizer is not added to what is being deleted: the volume is released and its asset deleted.",
        {"then/volumes/v-stuck/status/phase": "Released", "then/backend_calls/delete": 1},
    ),
    "recycle-6-5": Difference(
        "21.13",
        "The intent to scrub stands on the volume until it is scrubbed: attempts are counted, later ones wait longer.",
        {"then/volumes/volume6-5/metadata/annotations": {_INTENT: _RECYCLING}},
    ),
    "recycler-pod-deleted": Difference(
        "21.1",
        "The scrubber pod has a name of its own, by the volume's uid, in our namespace.",
        {
            "steps": [
                {"start": "controller"},
                {"wait": {"pods": [_scrubber("pv-rd", spec={"schedulingGates": None})]}},
                {"delete": {"pods": ["volplane-system/$scrubber(pv-rd)"]}},
                {"wait": {"volumes": [{"metadata": {"name": "pv-rd"}, "status": {"phase": "Failed"}}]}},
            ]
        },
    ),
    "recycler-pod-exists": Difference(
        "21.1",
        "A pod that is not the permitted one is deleted by its uid and never counts as a failed attempt.",
        {
            "given/pods/recycler-for-pv-re/metadata/namespace": "volplane-system",
            "given/pods/recycler-for-pv-re/metadata/name": "$scrubber(pv-re)",
            "steps": [
                {"start": "controller"},
                {
                    "wait": {
                        "pods": [
                            _scrubber("pv-re", spec={"schedulingGates": None, "containers": [{"name": "scrub"}]}),
                        ]
                    }
                },
                {"set-status": {"pods": [_scrubber("pv-re", status={"phase": "Succeeded"})]}},
            ],
            "events": ["Normal VolumeRecycled"],
        },
    ),
    "recycle-concurrent": Difference(
        "21.1",
        "One pod a volume, named by the volume's uid.",
        {"then/each_pod_seen": "exactly one pod $scrubber(rc-{i}) with hostPath /tmp/rc/{i} per PV"},
    ),
    "provision-11-4": Difference(
        "21.10",
        "A sealed intent stands on the claim while an asset may exist of which no volume tells.",
        {
            "then/claims/claim11-4/metadata/annotations": {**_PROVISIONER, **_SEALED},
            "then/claims/claim11-4/metadata/finalizers": ["volplane.dev/provisioning"],
        },
    ),
    "provision-11-7": Difference(
        "21.10",
        "The intent goes by the write that binds the claim, which is a later step.",
        {
            "then/claims/claim11-7/metadata/annotations": {**_PROVISIONER, **_SEALED},
            "then/claims/claim11-7/metadata/finalizers": ["volplane.dev/provisioning"],
        },
    ),
}


_FROM_THE_CACHE = Difference(
    "A5",
    "The alpha condition `Unused` (gate PersistentVolumeClaimUnusedSinceTime) follows the watch: no pods are listed.",
    {"then/liveLists": []},
)


UNUSED_GATE = "PersistentVolumeClaimUnusedSinceTime"


PROTECTION_DIFFERENCES: dict[str, Difference] = dict.fromkeys(("PVC-21", "PVC-22", "PVC-23", "PVC-27"), _FROM_THE_CACHE)


_VOLUME = "kubernetes.io/csi/fake.csi.volplane.test^vol-1"
_GCE = "kubernetes.io/csi/pd.csi.storage.gke.io^projects/UNSPECIFIED/zones/UNSPECIFIED/disks/vol1"


def _attach_state(state: str, node: str, volume: str = _VOLUME) -> Json:
    return {"volume": volume, "node": node, "state": state}


def _new_pod(name: str, node: str) -> Json:
    """A step that makes a pod with the row's claim on a node."""
    spec = {
        "nodeName": node,
        "containers": [{"name": "c", "image": "pause"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "pvc-1"}}],
    }
    return {"op": "create", "object": {"kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}}


ATTACH_DIFFERENCES: dict[str, Difference] = {
    "AD-R05": Difference(
        "B7",
        "What no node lists as attached need not be withdrawn: the node is read live, and the volume is detached.",
        {
            "then/attachments": [
                {"name": "csi-ae1fbcd076c6378067f50b0d75067d4f017182c248f4eb4f245867fcf5ffee46", "exists": False}
            ],
            "then/attachState": [_attach_state("Detached", "node-name")],
            "then/backendCalls": {"attach": 1, "detach": 1},
        },
    ),
    "AD-R10": Difference(
        "B9",
        "A detach that has begun ends before the volume is attached again: it is not reported meanwhile.",
        {
            "steps": [
                {"op": "start"},
                {"op": "settle", "within": "10s"},
                {"op": "expect", "then": {"attachState": [_attach_state("Attached", "node-a")]}},
                {"op": "delete", "ref": "pods/default/pod1", "gracePeriodSeconds": 0},
                {"op": "settle", "within": "10s"},
                {"op": "expect", "then": {"attachState": [_attach_state("Uncertain", "node-a")]}},
                _new_pod("pod2", "node-a"),
                {"op": "settle", "within": "5s"},
                {"op": "mark", "name": "afterReattach"},
                _new_pod("pod3", "node-b"),
                {"op": "settle", "within": "3s"},
            ],
            "then/attachState": [_attach_state("Uncertain", "node-a"), _attach_state("Detached", "node-b")],
            "then/events": [
                {
                    "involved": "pods/default/pod2",
                    "type": "Warning",
                    "reason": "FailedAttachVolume",
                    "messageContains": "volume attachment is being deleted",
                    "count": 1,
                }
            ],
        },
    ),
    "AD-C09": Difference(
        "B6",
        "What the attachment says counts, under the name of the CSI driver; an earlier report does not.",
        {
            "steps": [{"op": "start"}, {"op": "settle", "within": "5s"}],
            "then/attachState": [
                _attach_state("Detached", "mynode-1", _GCE),
                _attach_state("Detached", "mynode-1", "kubernetes.io/gce-pd/vol1"),
            ],
        },
    ),
    "AD-D12": Difference(
        "B7",
        "The write that withdraws the report carries the version of the node: what the kubelet reported meanwhile makes"
        " the server refuse it, so nothing is withdrawn.",
        {
            "then/attachState": [_attach_state("Attached", "node-x")],
            "then/nodeStatus": [{"node": "node-x", "volumesAttachedInclude": [_VOLUME]}],
            "then/readWriteOrder": ["patch nodes/status (refused)", "get nodes (live)", "no delete volumeattachments"],
        },
    ),
}


__all__ = ["ATTACH_DIFFERENCES", "PROTECTION_DIFFERENCES", "VOLUME_DIFFERENCES", "Difference", "Gone"]
