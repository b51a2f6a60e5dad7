"""The section about attachments of volumes to nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from volplane.kube.kinds import ATTACHMENTS, CLAIMS, NODES, VOLUMES
from volplane.kube.names import SELECTED_NODE
from volplane.kube.objects import Volume, VolumeAttachment
from volplane_embedded.node_affinity import volume_allows
from volplane_testing.qualification.report import Failed, Measured, NotPossible
from volplane_testing.qualification.site import LABEL, Site

__all__ = ["attach"]

WATCHED_SECONDS = 3.0
NO_MACHINE: Final = 5
"""NOT_FOUND of google.rpc.Code, in `attachError`: of a node that the storage does not know."""


async def attach(site: Site) -> Measured:
    """Attach a volume to one node, refuse it to a second one, keep it while it is attached, and detach it.

    The attachments are made by hand, so that nodes need no node plugin; where they have one, pods use the volume too.
    """
    if not site.assets.attaches:
        raise NotPossible("volumes of this backend are not attached to nodes: it has no hook `attach`, or is not to")
    if not site.facts.nodes:
        raise NotPossible("no node of the cluster is Ready")
    await site.controllers.need()
    storage_class = await site.make_class("attach", volumeBindingMode="WaitForFirstConsumer")
    volume = await _made_for(site, "attached", storage_class, site.facts.nodes[0])
    begun = asyncio.get_running_loop().time()
    nodes = await _known_nodes(site, volume, await _fitting(site, volume))
    await _attached(site, nodes[0])
    seconds = asyncio.get_running_loop().time() - begun
    measured: dict[str, float | str] = {"nodes": len(nodes), "answered_seconds": seconds}
    if len(nodes) > 1:
        await _refused(site, nodes[1])
    await site.delete(CLAIMS, "attached")
    await asyncio.sleep(WATCHED_SECONDS)
    if volume.name not in (await site.assets.listed() or {volume.name}):
        raise Failed(f"{volume.name} is deleted from the storage while it is attached to {nodes[0]}")
    measured["detach_seconds"] = await _detached(site, nodes[0])
    for node in nodes[1:]:
        await _detached(site, node)
    await site.gone(VOLUMES, volume.name)
    await site.assets_gone(volume.name)
    if not site.facts.no_pods and await site.has_node_plugin(volume, nodes):
        await _made_for(site, "moved", storage_class, nodes[0])
        await site.run_pod("first", "echo kept > /data/file && sync", "moved", nodeName=nodes[0])
        await site.run_pod("second", 'test "$(cat /data/file)" = kept', "moved", nodeName=nodes[-1])
        measured["pods"] = 2
    return measured


async def _made_for(site: Site, claim: str, storage_class: str, node: str) -> Volume:
    """Return the volume of a new claim, where this node can use it: what a scheduler asks for."""
    await site.make_claim(claim, storage_class)
    body = {"metadata": {"annotations": {SELECTED_NODE: node}}}
    await site.client.patch(CLAIMS, f"{site.run}/{claim}", body)
    await site.bound(claim)
    return await site.volume_of(claim)


async def _fitting(site: Site, volume: Volume) -> list[str]:
    """Return at most two of the nodes that are Ready and can use the volume."""
    nodes = {node.name: node for node in (await site.client.list(NODES)).items}
    return [name for name in site.facts.nodes if name in nodes and volume_allows(volume, nodes[name])][:2]


async def _known_nodes(site: Site, volume: Volume, names: Sequence[str]) -> list[str]:
    """Ask for an attachment to each; those that the storage knows. Raises NotPossible if it knows none."""
    known: list[str] = []
    told = ""
    for node in names:
        spec = {
            "attacher": str((volume.spec.csi or {}).get("driver", "")),
            "nodeName": node,
            "source": {"persistentVolumeName": volume.name},
        }
        metadata = {"name": _name(site, node), "labels": {LABEL: site.run}}
        await site.client.create(ATTACHMENTS, ATTACHMENTS.body(metadata=metadata, spec=spec))
        answered = await site.until(
            f"an answer about the attachment to {node}", partial(_answered, site, node, final=not known)
        )
        error = answered.status.attach_error
        if error is not None and error.error_code == NO_MACHINE and not answered.status.attached:
            told = error.message
            await _detached(site, node)
        else:
            known.append(node)
    if not known:
        raise NotPossible(f"the storage knows no node of this cluster: {told}")
    return known


async def _answered(site: Site, node: str, *, final: bool) -> VolumeAttachment | None:
    """Return the attachment once it is attached, or has an error; final: one that says the node is not known."""
    found: VolumeAttachment | None = await site.get(ATTACHMENTS, _name(site, node))
    if found is None or found.status.attached:
        return found
    error = found.status.attach_error
    return found if error is not None and (not final or error.error_code == NO_MACHINE) else None


async def _attached(site: Site, node: str) -> None:
    """Wait until it is attached to the node."""

    async def attached() -> bool:
        found = await site.get(ATTACHMENTS, _name(site, node))
        return found is not None and found.status.attached

    await site.until(f"the volume is attached to {node}", attached)


async def _refused(site: Site, node: str) -> None:
    """Check that a second node gets nothing, and that the attachment says why."""
    await asyncio.sleep(WATCHED_SECONDS)
    found = await site.get(ATTACHMENTS, _name(site, node))
    if found is None or found.status.attached:
        raise Failed(f"the volume, ReadWriteOnce, is attached to a second node, {node}")
    if found.status.attach_error is None or not found.status.attach_error.message:
        raise Failed(f"the attachment to {node} waits, and its status does not say why")


async def _detached(site: Site, node: str) -> float:
    await site.delete(ATTACHMENTS, _name(site, node))
    return await site.gone(ATTACHMENTS, _name(site, node))


def _name(site: Site, node: str) -> str:
    """Return a name unlike those of attach-detach controllers, which leave it alone."""
    return f"{site.run}-{node}"[:200]
