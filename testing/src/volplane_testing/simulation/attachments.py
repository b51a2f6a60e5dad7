"""What is attached where, recorded at the backend, and the invariants over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from volplane.attach.desired import attachment_name
from volplane.kube import names
from volplane_testing.simulation.cluster_view import ClusterView, Commit, Json, annotations_of
from volplane_testing.simulation.disks import Disks, source_of
from volplane_testing.simulation.trace import FirstViolation

__all__ = ["OUT_OF_SERVICE", "Attachments", "is_ready"]

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
_GRACE: Final = 60.0
"""Seconds after which a decision made while a node was sick must have taken effect."""


def is_ready(node: Json | None) -> bool:
    """Tell whether the node exists, is ready, and is not declared to be off."""
    if node is None or any(taint["key"] == OUT_OF_SERVICE for taint in node["spec"].get("taints") or ()):
        return False
    conditions = node.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


class Attachments:
    """Every asset that is attached, by `source_key` and node. `mounted` is filled by the nodes."""

    def __init__(
        self, view: ClusterView, disks: Disks, violations: FirstViolation, *, excused: Callable[[], bool]
    ) -> None:
        """excused: whether what takes effect now may be of a leader that is none any more."""
        self.at: set[tuple[str, str]] = set()
        """(`source_key`, node)."""
        self.mounted: set[tuple[str, str, str]] = set()
        """(`source_key`, node, uid of the pod)."""
        self.restarting: set[str] = set()
        """Nodes whose Node is gone or new, while what runs there runs on."""
        self.gone: set[str] = set()
        """Machines that are no more: their node has another one now."""
        self._view = view
        self._disks = disks
        self._violations = violations
        self._excused = excused
        self._sick: dict[str, float] = {}
        """Node -> loop time at which it was last seen not to be ready."""
        self._volume_uids: dict[str, str] = {}
        """Uid of an attachment -> uid of its volume when it was made."""
        view.listeners.append(self._committed)

    def _committed(self, commit: Commit) -> None:
        if commit.kind == "attachment" and commit.old is None and commit.new is not None:
            volume = self._view.volumes.get(commit.new["spec"]["source"].get("persistentVolumeName", ""))
            self._volume_uids[commit.new["metadata"]["uid"]] = volume["metadata"]["uid"] if volume is not None else ""
        if commit.kind == "node" and (not is_ready(commit.old) or not is_ready(commit.new)):
            name = (commit.new or commit.old or {})["metadata"]["name"]
            if name not in self.restarting:
                self._sick[name] = asyncio.get_running_loop().time()

    def attached(self, key: str, node: str) -> None:
        """Note that the backend attached it."""
        others = sorted(there for asset, there in self.at if asset == key and there != node)
        self.at.add((key, node))
        if others and not self._excused():
            self._violations.report("one-node", f"{key} is attached to {node} while it is attached to {others[0]}")

    def detached(self, key: str, node: str) -> None:
        """Note that the backend detached it."""
        self.at.discard((key, node))
        if self._excused():
            return
        pods = [pod for asset, there, pod in self.mounted if (asset, there) == (key, node)]
        if pods and not self._was_sick(node):
            self._violations.report(
                "mounted-stays-attached", f"{key} is detached from {node} while a pod has it mounted"
            )
        for attachment in self.of(key):
            # One that somebody made by hand may come while a detach goes on, and is attached then.
            counts = attachment["metadata"]["name"].startswith("csi-") or attachment["status"].get("attached")
            stays = "deletionTimestamp" not in attachment["metadata"] and counts and self._is_about(attachment, key)
            if attachment["spec"]["nodeName"] == node and stays:
                self._violations.report("no-late-detach", f"{key} is detached from {node}, where it is to be attached")

    def torn(self, key: str, pod: str) -> bool:
        """Tell whether the pod has a mount of a detached asset, as the rules for sick nodes allow."""
        return any((asset, uid) == (key, pod) and (asset, node) not in self.at for asset, node, uid in self.mounted)

    def of(self, key: str) -> Iterator[Json]:
        """Return the VolumeAttachments of an asset."""
        return (each for each in self._view.attachments.values() if self._key_of(each) == key)

    def _key_of(self, attachment: Json) -> str:
        """Return the `source_key` of its asset; "" if its volume is gone, or was made again with another one."""
        volume = self._view.volumes.get(attachment["spec"]["source"].get("persistentVolumeName", ""))
        csi = volume["spec"].get("csi") if volume is not None else None
        name, node = attachment["metadata"]["name"], attachment["spec"]["nodeName"]
        if csi and name.startswith("csi-") and name != attachment_name(csi["driver"], csi["volumeHandle"], node):
            return ""
        return source_of(volume["spec"]) if volume is not None else ""

    def _is_about(self, attachment: Json, key: str) -> bool:
        """Tell whether it is about this asset: if its volume is younger than it is, its record says so."""
        volume = self._view.volumes.get(attachment["spec"]["source"].get("persistentVolumeName", ""))
        if volume is not None and self._volume_uids.get(attachment["metadata"]["uid"]) == volume["metadata"]["uid"]:
            return True
        record = annotations_of(attachment).get(names.INTENT, "")
        return '"handle":' not in record or f'"handle":"{key.rpartition(":")[2]}"' in record

    def _was_sick(self, node: str) -> bool:
        now = asyncio.get_running_loop().time()
        sick = not is_ready(self._view.nodes.get(node)) and node not in self.restarting
        return sick or now - self._sick.get(node, float("-inf")) < _GRACE

    def wrong_at_rest(self, wanted: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Describe what must not be so once nothing happens any longer. wanted: (`source_key`, node) of pods."""
        stand: set[tuple[str, str]] = set()
        for name, attachment in sorted(self._view.attachments.items()):
            node = attachment["spec"]["nodeName"]
            place = (self._key_of(attachment), node)
            if place not in wanted:
                yield "attachments-have-a-reason", f"{name} to {node}: no pod needs {place[0] or 'its volume'} there"
            elif not attachment["status"].get("attached") and place in self.at:
                yield "what-can-proceed-does", f"{name} to {node} is not attached: {attachment['status']}"
            stand.add(place)
        for key, node in sorted(self.at - stand):
            yield "attachments-have-a-reason", f"{key} is attached to {node} without a VolumeAttachment"
        for key, node in sorted(wanted - self.at):
            if any(asset == key for asset, _ in self.at & wanted):
                continue  # Another pod has it, and it may be on one node at a time.
            yield "what-can-proceed-does", f"{key} is not attached to {node}, where a pod needs it"
