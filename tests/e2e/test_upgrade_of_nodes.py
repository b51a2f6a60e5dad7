"""A former version, whose nodes had the central key, and this one take turns on a node with work under way."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.e2e.processes import Command, kubectl, running, until
from tests.e2e.test_rolling_upgrade import BACKEND, BATCH, DRIVER, FEW, FORMER, Cluster, site

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]

HOST = "kubernetes.io/hostname"
ON_NODES = (
    BACKEND.replace(
        'DriverInfo(version="1", csi_driver_name="slow.example.com", attach_required=True)',
        f'DriverInfo(version="1", topology_keys=("{HOST}",))',
    )
    .replace(
        'VolumeSource(kind="csi", fields={"driver": "slow.example.com", "volumeHandle": handle})',
        'VolumeSource(kind="local", fields={"path": str(self.root / "assets" / handle)})',
    )
    .replace("capacity_bytes=size)", f'capacity_bytes=size, node_affinity=({{"{HOST}": "node-a"}},))')
)
SECONDS = 150
"""A process of a node leaves what is sealed by another key alone for a minute."""


def both(cluster: Cluster, version: str) -> tuple[Command, Command]:
    """The central process and that of the node."""
    return cluster.start(version), cluster.start(version, "--node-name", "node-a")


def begin(cluster: Cluster, old: str, new: str) -> None:
    """Delete claims, make others, and recycle the pool, until all is under way."""
    cluster.forget("pool", FEW)
    cluster.forget(old, BATCH)
    cluster.ask(new, BATCH, "slow")
    verbs = ("provision", "delete", "recycle")
    until("all is under way", lambda: all(cluster.under_way(verb) for verb in verbs), said=cluster.said)


def end(cluster: Cluster, old: str, new: str) -> None:
    until("claims are bound", lambda: cluster.bound(new) and cluster.gone(old), SECONDS, said=cluster.said)
    until("the pool is erased", lambda: cluster.offered() == FEW, SECONDS, said=cluster.said)
    cluster.ask("pool", FEW, "pool")
    until("the pool is used again", lambda: cluster.bound("pool"), SECONDS, said=cluster.said)


def test_a_former_version_and_this_one_take_turns_on_a_node(tmp_path: Path) -> None:
    kubeconfig, parts = tmp_path / "kubeconfig", tmp_path / "former"
    parts.mkdir()
    sites = {"former": site(parts, FORMER)}
    with running(tmp_path / "server.log", "apiserver", "--port", "0", "--kubeconfig-out", str(kubeconfig)) as server:
        until("the server is up", kubeconfig.exists, said=server.said)
        cluster = Cluster(tmp_path, kubeconfig, sites, ON_NODES, distributed=True)
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": DRIVER}
        recycled = {"metadata": {"name": "pool"}, "parameters": {"volplane.dev/on-release": "recycle"}}
        cluster.apply({**kind, "metadata": {"name": "slow"}}, {**kind, **recycled})
        cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "labels": {HOST: "node-a"}}})
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m"}]}}
        kubectl(kubeconfig, "patch", "node", "node-a", "--type=merge", "-p", json.dumps({"spec": {"taints": None}}))
        kubectl(kubeconfig, "patch", "node", "node-a", "--subresource=status", "--type=merge", "-p", json.dumps(ready))
        try:
            former = both(cluster, "former")
            for batch, many, storage_class in (("pool", FEW, "pool"), ("a", BATCH, "slow")):
                cluster.ask(batch, many, storage_class)
            for batch in ("pool", "a"):
                until(f"{batch} is bound", lambda batch=batch: cluster.bound(batch), said=cluster.said)  # type: ignore[misc]

            # An upgrade: the new process of the node waits for the former one, though it has a Lease of its own.
            begin(cluster, "a", "b")
            this = both(cluster, "this")
            until("it waits", lambda: "waits for lease volplane-system/volplane-" in this[1].said(), said=cluster.said)
            for command in former:
                command.stop()
            end(cluster, "a", "b")

            # The way back.
            begin(cluster, "b", "c")
            for command in this:
                assert command.stop() == 0
            both(cluster, "former")
            end(cluster, "b", "c")
        finally:
            for command in cluster.commands:
                if command.alive:
                    command.kill()
    made = Counter((cluster.root / "made").read_text().split())
    assert len(made) == 3 * BATCH + FEW
    assert set(made.values()) == {1}
    assert len(list((cluster.root / "assets").iterdir())) == BATCH + FEW
    assert "Traceback" not in cluster.said()
