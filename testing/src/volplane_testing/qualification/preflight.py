"""What is found out about the cluster before the first section."""

from __future__ import annotations

import json
from pathlib import Path

from volplane.errors import ApiError, ConfigurationError
from volplane.kube.client import Client
from volplane.kube.kinds import NAMESPACES, NODES, PODS, VOLUMES
from volplane_testing.qualification.report import Facts, Failed
from volplane_testing.qualification.site import LABEL, Site

__all__ = ["look", "make_namespaces", "nobody_binds", "pods_see", "somebody_binds"]

BINDER_SECONDS = 10.0
"""A stock binder writes the phase of a new volume as soon as it sees it, within its limit of calls."""
NOBODY_SECONDS = 3.0
POD_SECONDS = 90.0
"""An image may have to be pulled first."""


async def look(client: Client, server: str) -> Facts:
    """Version and nodes."""
    version = json.loads(await client.raw("/version"))
    nodes = (await client.list(NODES)).items
    ready = [
        node.name
        for node in nodes
        if any(each.get("type") == "Ready" and each.get("status") == "True" for each in node.status.conditions or ())
    ]
    return Facts(server=server, kubernetes=str(version.get("gitVersion", "?")), nodes=tuple(sorted(ready)))


async def make_namespaces(site: Site) -> None:
    """Make the two namespaces of the run. Their pods, scrubbers included, mount directories of the node."""
    labels = {LABEL: site.run, "pod-security.kubernetes.io/enforce": "privileged"}
    for name in (site.run, site.system):
        await site.client.create(NAMESPACES, NAMESPACES.body(metadata={"name": name, "labels": labels}))


async def somebody_binds(site: Site) -> bool:
    """Tell whether somebody else is the binder."""
    return await _offered_within(site, BINDER_SECONDS)


async def nobody_binds(site: Site) -> None:
    """Raise ConfigurationError if somebody else does: two binders would fight for every claim of the cluster."""
    if await _offered_within(site, NOBODY_SECONDS):
        raise ConfigurationError(
            "--controllers all: somebody else binds claims in this cluster (a kube-controller-manager, or another "
            "volplane); leave the option out to work beside it"
        )


async def _offered_within(site: Site, seconds: float) -> bool:
    """Tell whether somebody makes a new volume Available, which only a binder does."""
    name = f"{site.run}-probe"
    await site.make_volume("probe", Path(f"/var/empty/{site.run}/probe"), "Retain")
    try:
        await site.phase(VOLUMES, name, "Available", seconds)
    except Failed:
        return False
    else:
        return True
    finally:
        # Where nobody binds, nobody takes the finalizer of protection off either.
        await site.remove(VOLUMES, name)


async def pods_see(site: Site) -> str:
    """Explain why pods cannot run, or do not see the volumes; "" if they do."""
    if not site.facts.nodes:
        return "no node of the cluster is Ready"
    script, volumes, mounts = "true", [], []
    if site.local is not None:
        work = site.local.parent
        (work / "seen").touch()
        volumes = [{"name": "work", "hostPath": {"path": str(work), "type": "Directory"}}]
        mounts = [{"name": "work", "mountPath": "/check", "readOnly": True}]
        script = "test -f /check/seen"
    container = {"name": "main", "image": site.image, "command": ["/bin/sh", "-c", script], "volumeMounts": mounts}
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    metadata = {"name": "probe", "namespace": site.run, "labels": {LABEL: site.run}}
    try:
        await site.client.create(PODS, PODS.body(metadata=metadata, spec=spec))
        await site.phase(PODS, "probe", "Succeeded", POD_SECONDS)
    except Failed as error:
        advice = "run the check on a node, or name with --work a directory that all nodes share"
        return (
            f"a pod does not run, or does not see the volumes ({advice if site.local else 'see its events'}): {error}"
        )
    except ApiError as error:
        return f"pods are refused: {error}"
    finally:
        await site.delete(PODS, "probe", grace_seconds=0)
    return ""
