"""Nodes whose kubelets leave attaching to the controller: they report what they use, and wait for what they need.

A node can be lost: its kubelet does nothing, and what it has mounted stays mounted, until it returns. A node can be
made anew under its name: what ran on the former machine is gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final

from volplane.attach.desired import attachment_name
from volplane_testing import clock
from volplane_testing.simulation.attached_storage import Machines
from volplane_testing.simulation.attachments import OUT_OF_SERVICE
from volplane_testing.simulation.cluster_view import Json
from volplane_testing.simulation.nodes import NODES, Nodes, RunningPod

__all__ = ["AttachingNodes", "SimulatedMachines", "node_body"]

_NEXT_STATUS: Final = 11.0
"""Seconds after which a kubelet has written its status again."""
_ME: Final = "cluster"
_USER: Final = "user"
_MERGE: Final = {"content-type": "application/merge-patch+json"}
_JSON: Final = {"content-type": "application/json"}


def node_body(name: str, labels: Any, machine: str, csi_ids: Mapping[str, str], boot: str = "") -> Json:
    """Return a Node whose kubelet leaves attaching to the controller, and has just been started.

    machine: its id for the storage. csi_ids: for CSI drivers. boot: the id of its boot, "" for a kubelet that does not
    know it.
    """
    attaches = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
    ids = {"csi.volume.kubernetes.io/nodeid": json.dumps(dict(csi_ids))} if csi_ids else {}
    return {
        "metadata": {
            "name": name,
            "labels": dict(labels),
            "annotations": attaches | ids,
        },
        "spec": {"providerID": machine},
        "status": {"conditions": [_ready("True", 0.0)], "nodeInfo": {"bootID": boot}},
    }


def _ready(status: str, seconds: float) -> Json:
    """Return the condition. seconds: for which the kubelet has written that."""
    times = {
        f"last{key}Time": (clock.now() - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
        for key, ago in (("Transition", seconds), ("Heartbeat", 0.0))
    }
    return {"type": "Ready", "status": status, **times}


class SimulatedMachines:
    """As many machines as anybody wants."""

    def __init__(self) -> None:
        self._made = 0

    def machine_for(self, node: str) -> str:
        self._made += 1
        return f"sim:///{node}-{self._made}"

    def csi_ids(self, machine: str) -> Mapping[str, str]:
        return {}


class AttachingNodes(Nodes):
    """The nodes of a run in which volumes are attached."""

    FOLLOWED: ClassVar[frozenset[str]] = frozenset({"volume", "claim", "pod", "node", "attachment"})
    ATTACHES: ClassVar[bool] = True

    def __init__(self, machines: Machines, *more: Any) -> None:
        super().__init__(*more)
        self._lost: set[str] = set()
        self._machines = machines
        self._names: dict[str, set[str]] = {}
        """Uid of a pod that has mounted its volumes -> their unique names: its claims may be gone before they are."""
        self._unmounting: dict[str, RunningPod] = {}
        """By uid: pods that are over, whose volumes are still to be unmounted."""
        self._silent: dict[str, float] = {}
        """Node -> loop time before which its kubelet does not report what it uses."""

    @property
    def busy(self) -> bool:
        return super().busy or bool(self._unmounting)

    # --- trouble ------------------------------------------------------------------------------------------------

    def lose_node(self, node: str) -> None:
        """Stop its kubelet; the cluster notices that."""
        self._trace.happened["node: is lost"] += 1
        self._lost.add(node)
        self._condition(node, "Unknown")

    def taint_node(self, node: str) -> None:
        """Switch the machine off, and declare that with the out-of-service taint."""
        if node in self._lost:
            self._trace.happened["node: out of service"] += 1
            self._drop(node)
            self._patch(node, {"spec": {"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]}}, _USER)

    def evict_pods(self, node: str) -> None:
        """Delete the pods of a node without waiting for its kubelet, as a person does."""
        for key, pod in list(self._view.pods.items()):
            if pod["spec"].get("nodeName") == node:
                namespace, _, name = key.partition("/")
                path = f"/api/v1/namespaces/{namespace}/pods/{name}"
                self._view.send(_USER, "DELETE", path, json.dumps({"gracePeriodSeconds": 0}).encode(), headers=_JSON)

    def return_node(self, node: str) -> None:
        """Let its kubelet run again."""
        if node in self._lost:
            self._lost.discard(node)
            self._patch(node, {"spec": {"taints": None}}, _USER)
            self._condition(node, "True")
            asyncio.get_running_loop().call_later(_NEXT_STATUS, self._write_status, node)
            self._changed.set()

    def renew_node(self, node: str) -> None:
        """Give the name of a lost node to another machine."""
        machine = self._machines.machine_for(node) if node in self._lost else ""
        if not machine:
            return
        self._trace.happened["node: is made anew"] += 1
        if (former := self._view.nodes.get(node)) is not None:
            self._safety.attachments.gone.add(former["spec"]["providerID"])
        self._drop(node)
        self._view.send(_USER, "DELETE", f"/api/v1/nodes/{node}", b"{}", headers=_JSON)
        self.evict_pods(node)
        body = node_body(node, self._labels[node], machine, self._machines.csi_ids(machine), f"boot-{machine}")
        self._view.send(_USER, "POST", "/api/v1/nodes", json.dumps(body).encode(), headers=_JSON)
        self._lost.discard(node)
        self._condition(node, "True")
        asyncio.get_running_loop().call_later(_NEXT_STATUS, self._write_status, node)
        self._changed.set()

    async def register_again(self, node: str, seconds: float, silent: float, known: bool) -> None:
        """Delete the Node while its machine works on; after some seconds its kubelet, started again, registers it.

        silent: for how long that does not report yet what is in use. known: it tells its boot.
        """
        found, loop = self._view.nodes.get(node), asyncio.get_running_loop()
        if found is None or node in self._lost or node in self._silent:
            return
        self._trace.happened["node: is registered again"] += 1
        machine, boot = found["spec"]["providerID"], found["status"].get("nodeInfo", {}).get("bootID", "")
        self._silent[node] = float("inf")
        self._safety.attachments.restarting.add(node)
        self._view.send(_USER, "DELETE", f"/api/v1/nodes/{node}", b"{}", headers=_JSON)
        await asyncio.sleep(seconds)
        body = node_body(node, self._labels[node], machine, self._machines.csi_ids(machine), boot if known else "")
        self._view.send(_ME, "POST", "/api/v1/nodes", json.dumps(body).encode(), headers=_JSON)
        self._silent[node] = loop.time() + silent
        await asyncio.sleep(silent)
        self._silent.pop(node, None)
        self._safety.attachments.restarting.discard(node)
        self._changed.set()
        await asyncio.sleep(_NEXT_STATUS - silent)
        self._write_status(node)

    def _write_status(self, node: str) -> None:
        """Write that it works on, as a kubelet does some time after its Node was made; not while it starts anew."""
        if node in self._view.nodes and node not in self._lost and node not in self._silent:
            self._patch(node, {"status": {"conditions": [_ready("True", _NEXT_STATUS)]}}, _ME, "status")

    def recover(self) -> None:
        for node in sorted(self._lost):
            self.return_node(node)

    def _drop(self, node: str) -> None:
        """Stop all that runs on the machine: it is off."""
        for running in [each for each in self._pods.running.values() if _node_of(each.pod) == node]:
            self._take_down(running, cut_off=True)
        for uid, running in list(self._unmounting.items()):
            if _node_of(running.pod) == node:
                self._unmounted(uid)

    # --- the kubelet --------------------------------------------------------------------------------------------

    def _choose(self, places: list[Json], pod: Json) -> str:
        well = [node for node in NODES if node not in self._lost] or list(NODES)
        return str(self._chance.choice(well, f"place {pod['metadata']['name']} {self._turns}"))

    def _attend(self, pod: Json) -> None:
        if _node_of(pod) not in self._lost:
            super()._attend(pod)

    def _follow(self, running: RunningPod) -> None:
        if _node_of(running.pod) not in self._lost:
            super()._follow(running)

    def _due(self, running: RunningPod) -> float:
        return float("inf") if _node_of(running.pod) in self._lost else super()._due(running)

    def _start(self, pod: Json) -> None:
        if not all(self._ready(pod, volume) for volume in self._volumes(pod)):
            if not self._needed_on(_node_of(pod)) <= self._reported_in_use(_node_of(pod)):
                self._changed.set()  # it was placed just now; nobody else may change anything any more
            return
        super()._start(pod)
        uid = pod["metadata"]["uid"]
        if uid in self._pods.running:
            self._names[uid] = {_unique(volume) for volume in self._volumes(pod)}
            self._safety.attachments.mounted |= {
                (disk.key, _node_of(pod), uid) for disk, claim in self._pods.running[uid].disks if claim
            }

    def _take_down(self, running: RunningPod, *, cut_off: bool) -> None:
        """End the pod. Its volumes are unmounted a little later, when its object may be gone."""
        super()._take_down(running, cut_off=cut_off)
        uid = running.pod["metadata"]["uid"]
        self._unmounting[uid] = running
        later = self._chance.between(0.0, self._faults.notice, f"unmount {running.pod['metadata']['name']}")
        asyncio.get_running_loop().call_later(later, self._unmount, uid)

    def _unmount(self, uid: str) -> None:
        running = self._unmounting.get(uid)
        if running is None:
            return
        if _node_of(running.pod) in self._lost:
            asyncio.get_running_loop().call_later(1.0, self._unmount, uid)
        else:
            self._unmounted(uid)

    def _unmounted(self, uid: str) -> None:
        del self._unmounting[uid], self._names[uid]
        mounted = self._safety.attachments.mounted
        mounted -= {each for each in mounted if each[2] == uid}
        self._changed.set()

    def _ready(self, pod: Json, volume: Json) -> bool:
        """Tell whether the volume was reported as in use, and then found to be attached."""
        node = self._view.nodes.get(_node_of(pod))
        if node is None or _unique(volume) not in (node["status"].get("volumesInUse") or ()):
            return False
        if _unique(volume) not in [each["name"] for each in node["status"].get("volumesAttached") or ()]:
            return False
        csi = volume["spec"]["csi"]
        name = attachment_name(csi["driver"], csi["volumeHandle"], node["metadata"]["name"])
        found = self._view.attachments.get(name)
        return found is not None and found["status"]["attached"] and "deletionTimestamp" not in found["metadata"]

    def _report(self) -> None:
        for name, node in list(self._view.nodes.items()):
            if name in self._lost or name in self._silent:
                continue
            used = self._mounted_on(name) | self._needed_on(name)
            if used != set(node["status"].get("volumesInUse") or ()):
                self._patch(name, {"status": {"volumesInUse": sorted(used) or None}}, _ME, "status")
                self._changed.set()

    def _reported_in_use(self, node: str) -> set[str]:
        found = self._view.nodes.get(node, {})
        return set(found.get("status", {}).get("volumesInUse") or ())

    def _mounted_on(self, node: str) -> set[str]:
        pods = [*self._pods.running.values(), *self._unmounting.values()]
        uids = (each.pod["metadata"]["uid"] for each in pods if _node_of(each.pod) == node)
        return {name for uid in uids for name in self._names[uid]}

    def _needed_on(self, node: str) -> set[str]:
        """Return the volumes of the pods that are to run there."""
        coming = [
            pod
            for pod in self._view.pods.values()
            if _node_of(pod) == node
            and "deletionTimestamp" not in pod["metadata"]
            and pod.get("status", {}).get("phase") in ("Pending", None)
        ]
        return {_unique(volume) for pod in coming for volume in self._volumes(pod)}

    def _volumes(self, pod: Json) -> list[Json]:
        """Return the attached volumes of its bound claims."""
        claims = [claim for claim in self._claims(pod) if claim is not None]
        found = [self._view.volumes.get(claim["spec"].get("volumeName", "")) for claim in claims]
        return [volume for volume in found if volume is not None and "csi" in volume["spec"]]

    def _condition(self, node: str, status: str) -> None:
        self._patch(node, {"status": {"conditions": [_ready(status, 0.0)]}}, _ME, "status")

    def _patch(self, node: str, body: Json, who: str, subresource: str = "") -> None:
        path = f"/api/v1/nodes/{node}" + (f"/{subresource}" if subresource else "")
        self._view.send(who, "PATCH", path, json.dumps(body).encode(), headers=_MERGE)


def _node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _unique(volume: Json) -> str:
    csi = volume["spec"]["csi"]
    return f"kubernetes.io/csi/{csi['driver']}^{csi['volumeHandle']}"
