"""The rights that `volplane manifests` gives are those that the controllers use: all of them, and no others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from integration.controller_process import DRIVER, Asked, Site, running_process
from volplane.cli.installation import cluster_rules, namespace_rules
from volplane.controller.config import Configuration, DriverSettings
from volplane.controller.controller import Rule
from volplane.drivers.contract import Plugin
from volplane.kube import names
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.process.duties import ALL_CONTROLLERS, DEFAULT_CONTROLLERS, parse_controllers
from volplane.snapshots.groups_objects import GROUP_CLASSES, GROUPS
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CLASSES, VOLUME_SNAPSHOTS
from volplane_embedded.apiserver.users import User
from volplane_testing.memory import DRIVER as ATTACHES
from volplane_testing.memory import MemoryBackend

OURS = "volplane-system"
BY_KUBECTL = {("create", "", "namespaces")}
"""The manifests make the namespace before the process looks for it."""


async def whole_cluster(site: Site) -> None:
    """Everything that happens to volumes and claims where nothing else binds them."""
    await site.make_class("fast", default=True)
    (site.root / "static").mkdir()
    (site.root / "pool").mkdir()
    await site.make_volume("static", str(site.root / "static"), "Retain")
    await site.make_volume("pool", str(site.root / "pool"), "Recycle", storageClassName="pool")
    await site.make_claim("dynamic")
    await site.make_claim("byhand", "")
    await site.make_claim("scrubbed", "pool")
    await site.make_claim("impossible", "none")
    await site.bound("dynamic", "byhand", "scrubbed")
    await grown(site, "dynamic")
    await site.make_pod("user", "dynamic", node="n")
    await site.client.delete(CLAIMS, "default/dynamic")
    await asyncio.sleep(0.3)
    assert await site.phase("dynamic") == "Bound"
    await site.client.delete(PODS, "default/user", grace_seconds=0)
    await site.gone(CLAIMS, "default/dynamic")
    await site.client.delete(CLAIMS, "default/byhand")
    await site.client.delete(VOLUMES, "static")
    await site.gone(VOLUMES, "static")
    await site.client.delete(CLAIMS, "default/scrubbed")
    await site.until("a scrubber pod may start", lambda: scrubber_started(site))
    await site.until("the pool has its volume again", lambda: available(site, "pool"))
    await site.until("no volume is left", lambda: only(site, "pool"))
    await attaching(site)


async def attaching(site: Site) -> None:
    """A pod gets its volume on a node, and leaves it."""
    await site.make_class("disks", driver=ATTACHES)
    await site.make_node("node-1")
    await site.make_claim("disk", "disks")
    await site.bound("disk")
    await site.make_pod("writer", "disk", node="node-1")
    await site.until("it is attached", lambda: attached(site))
    await snapshots(site, "disk")
    await site.client.delete(PODS, "default/writer", grace_seconds=0)
    await site.until("it is detached", lambda: no_attachment(site))


async def snapshots(site: Site, claim: str) -> None:
    """A snapshot is made of a bound claim, then deleted."""
    body = VOLUME_SNAPSHOT_CLASSES.body(metadata={"name": "daily"}, driver=ATTACHES, deletionPolicy="Delete")
    await site.client.create(VOLUME_SNAPSHOT_CLASSES, body)
    spec = {"source": {"persistentVolumeClaimName": claim}, "volumeSnapshotClassName": "daily"}
    metadata = {"name": "s", "namespace": "default"}
    await site.client.create(VOLUME_SNAPSHOTS, VOLUME_SNAPSHOTS.body(metadata=metadata, spec=spec))

    async def ready() -> bool:
        return (await site.client.get(VOLUME_SNAPSHOTS, "default/s")).status.ready_to_use

    await site.until("it is ready", ready)
    await site.client.delete(VOLUME_SNAPSHOTS, "default/s")
    await site.gone(VOLUME_SNAPSHOTS, "default/s")
    await grouped(site, claim)
    await scheduled(site, claim)


async def grouped(site: Site, claim: str) -> None:
    """A group of one claim is cut, then deleted with its member."""
    body = GROUP_CLASSES.body(metadata={"name": "together"}, driver=ATTACHES, deletionPolicy="Delete")
    await site.client.create(GROUP_CLASSES, body)
    await site.client.patch(CLAIMS, f"default/{claim}", {"metadata": {"labels": {"group": "g"}}})
    spec = {"source": {"selector": {"matchLabels": {"group": "g"}}}, "volumeGroupSnapshotClassName": "together"}
    await site.client.create(GROUPS, GROUPS.body(metadata={"name": "g", "namespace": "default"}, spec=spec))

    async def ready() -> bool:
        return (await site.client.get(GROUPS, "default/g")).status.ready_to_use

    await site.until("the group is ready", ready)
    await site.client.delete(GROUPS, "default/g")
    await site.gone(GROUPS, "default/g")

    async def alone() -> bool:
        return not (await site.client.list(VOLUME_SNAPSHOTS)).items

    await site.until("its member is gone", alone)


async def scheduled(site: Site, claim: str) -> None:
    """By its schedule a snapshot is taken of the claim, then another one, and the first one is deleted."""
    text, long_ago = "* * * * *; keep=1; class=daily", "2026-01-01T00:00:00Z"
    for number in (1, 2):
        record = {"v": 1, "schedule": text, "since": long_ago, "run": long_ago, "number": number - 1, "made": True}
        marks = {names.SNAPSHOT_SCHEDULE: text, names.SNAPSHOT_RUN: json.dumps(record)}
        await site.client.patch(CLAIMS, f"default/{claim}", {"metadata": {"annotations": marks}})

        async def taken(number: int = number) -> bool:
            made = (await site.client.list(VOLUME_SNAPSHOTS)).items
            numbers = [int(each.annotation(names.SNAPSHOT_RUN) or 0) for each in made if each.status.ready_to_use]
            return len(made) == 1 and any(each >= number for each in numbers)

        await site.until("the schedule has one snapshot", taken)
    await site.client.patch(CLAIMS, f"default/{claim}", {"metadata": {"annotations": {names.SNAPSHOT_SCHEDULE: None}}})
    for each in (await site.client.list(VOLUME_SNAPSHOTS)).items:
        await site.client.delete(VOLUME_SNAPSHOTS, each.key)
        await site.gone(VOLUME_SNAPSHOTS, each.key)


async def attached(site: Site) -> bool:
    node = await site.client.get(NODES, "node-1")
    return bool(node.status.volumes_attached)


async def no_attachment(site: Site) -> bool:
    return not (await site.client.list(ATTACHMENTS)).items


async def grown(site: Site, name: str) -> None:
    """A bound claim of class fast asks for more, and for attributes of a class that does not exist."""
    await site.client.patch(STORAGE_CLASSES, "fast", {"allowVolumeExpansion": True})
    asked = {"resources": {"requests": {"storage": "2Gi"}}, "volumeAttributesClassName": "gold"}
    await site.client.patch(CLAIMS, f"default/{name}", {"spec": asked})

    async def shown() -> bool:
        status = (await site.client.get(CLAIMS, f"default/{name}")).status
        return status.capacity == {"storage": "2Gi"} and status.modify_volume_status is not None

    await site.until("the claim has grown", shown)


async def scrubber_started(site: Site, *, node: str = "") -> bool:
    """Let the pod succeed, if it may start. node: where it is bound before."""
    for pod in (await site.client.list(PODS, namespace=OURS)).items:
        if not pod.spec.scheduling_gates:
            if node:
                binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": node}}
                await site.client.post(PODS, pod.key, "binding", binding)
            await site.client.patch(PODS, pod.key, {"status": {"phase": "Succeeded"}}, subresource="status")
            return True
    return False


async def available(site: Site, name: str) -> bool:
    return (await site.client.get(VOLUMES, name)).status.phase == "Available"


async def only(site: Site, *left: str) -> bool:
    return {volume.name for volume in (await site.client.list(VOLUMES)).items} == set(left)


async def beside_a_binder(site: Site) -> None:
    """The test is the stock binder."""
    await site.make_class("fast")
    await site.make_class("pool", parameters={"volplane.dev/on-release": "recycle"})
    pooled = await released(site, "pooled", "pool")
    await site.until("a scrubber pod may start", lambda: scrubber_started(site))

    async def offered() -> bool:
        return (await site.client.get(VOLUMES, pooled)).spec.claim_ref is None

    await site.until("it is offered again", offered)
    await site.client.delete(VOLUMES, pooled)
    await site.client.patch(VOLUMES, pooled, {"metadata": {"finalizers": [names.RECLAIM_FINALIZER]}})
    await site.until("no volume is left", lambda: only(site))
    await released(site, "dynamic", "fast")
    await site.until("the volume is gone", lambda: only(site))
    await site.make_class("disks", driver=ATTACHES)
    await bound(site, "cut", "disks", ATTACHES)
    await snapshots(site, "cut")
    await an_attachment(site)


async def bound(site: Site, name: str, storage_class: str, driver: str = DRIVER) -> tuple[Any, str]:
    """A claim, and the name of the volume that was made for it and bound by the hands of the test."""
    claim = await site.make_claim(name, storage_class)
    asked = {"metadata": {"annotations": {names.STORAGE_PROVISIONER: driver}}}
    await site.client.patch(CLAIMS, claim.key, asked)
    volume = f"pvc-{claim.uid}"
    await site.until("the volume is made", lambda: only(site, volume))
    written: dict[str, Any] = {
        "metadata": {"annotations": {names.BIND_COMPLETED: "yes"}},
        "spec": {"volumeName": volume},
    }
    await site.client.patch(CLAIMS, claim.key, written)
    await site.client.patch(VOLUMES, volume, {"status": {"phase": "Bound"}}, subresource="status")
    has = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
    await site.client.patch(CLAIMS, claim.key, has, subresource="status")
    return claim, volume


async def released(site: Site, name: str, storage_class: str) -> str:
    """Name of a volume that was made for a claim, bound and released again, by the hands of the test."""
    claim, volume = await bound(site, name, storage_class)
    if storage_class == "fast":
        await grown(site, name)

    async def settled() -> bool:
        return not (await site.client.get(CLAIMS, claim.key)).has_finalizer(names.PROVISIONING_FINALIZER)

    await site.until("the intent is settled", settled)
    await site.client.patch(CLAIMS, claim.key, {"metadata": {"finalizers": None}})
    await site.client.delete(CLAIMS, claim.key)
    await site.client.patch(VOLUMES, volume, {"metadata": {"finalizers": [names.RECLAIM_FINALIZER]}})
    await site.client.patch(VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")
    return volume


async def an_attachment(site: Site) -> None:
    """The test is the stock attach-detach controller."""
    await site.make_node("node-1")
    csi = {"driver": ATTACHES, "volumeHandle": "gone"}
    await site.make_volume("disk", "", "Retain", hostPath=None, csi=csi)
    spec = {"attacher": ATTACHES, "nodeName": "node-1", "source": {"persistentVolumeName": "disk"}}
    await site.client.create(ATTACHMENTS, ATTACHMENTS.body(metadata={"name": "a"}, spec=spec))

    async def refused() -> bool:
        return (await site.client.get(ATTACHMENTS, "a")).status.attach_error is not None

    await site.until("the attacher says why it cannot", refused)
    await site.client.delete(ATTACHMENTS, "a")
    await site.until("it is gone", lambda: no_attachment(site))


async def somebody_asks(site: Site) -> None:
    """A user of the cluster asks through a port-forward, and is reviewed."""
    site.server.users.by_token["token"] = User("somebody")
    headers = {"Authorization": "Bearer token"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{site.url}/status") as answer:
        assert answer.status == 200


def allowed(asked: Asked, everywhere: list[Rule], here: list[Rule]) -> bool:
    def covers(rule: Rule) -> bool:
        return (
            (rule.group, rule.resource) == (asked.group, asked.resource)
            and asked.verb in rule.verbs
            and (not rule.names or asked.name in rule.names)
        )

    return any(map(covers, everywhere)) or (asked.namespace == OURS and any(map(covers, here)))


def unused(rules: list[Rule], asked: set[Asked]) -> set[tuple[str, str]]:
    """(verb, resource) that nobody asked for."""
    granted = {(verb, rule.group, rule.resource) for rule in rules for verb in rule.verbs}
    left = granted - {(each.verb, each.group, each.resource) for each in asked}
    return {(verb, resource) for verb, _, resource in left}


LATER = {
    ("get", "events"),
    ("patch", "events"),
    ("patch", "leases"),
    ("get", "nodes"),
    ("get", "csidrivers"),
    ("get", "storageclasses"),
    ("get", "volumesnapshots"),
    ("create", "persistentvolumeclaims"),
    ("delete", "persistentvolumeclaims"),
    ("create", "volumeattachments"),
    ("delete", "volumeattachments"),
    ("get", "volumesnapshots"),
    ("patch", "volumesnapshots"),
    ("get", "volumesnapshotcontents"),
    ("list", "referencegrants"),
    ("get", "volumegroupsnapshots"),
    ("get", "volumegroupsnapshotcontents"),
}
"""What happens minutes later, or seconds: an event counted again, a lease renewed; a selected node that is gone; a
CSIDriver that somebody else made at the same moment; a class that changed while its asset was made; what is attached
without a VolumeAttachment; a content that is deleted, and its VolumeSnapshot is not; a restore
(tests/scenarios/test_restores.py), of another namespace, too (tests/integration/test_other_namespaces.py). And a scrub
by a claim, for which a backend must have disks
(tests/integration/test_attached_disks.py).
"""


def run(directory: Path, controllers: frozenset[str], story: Any) -> set[Asked]:
    async def main() -> set[Asked]:
        configuration = Configuration(drivers=(DriverSettings(name=ATTACHES, backend="memory"),))
        plugin = Plugin(kind="backend", name="memory", factory=MemoryBackend, distribution="tests")
        async with running_process(directory, controllers, configuration=configuration, plugins=[plugin]) as site:
            await story(site)
            await somebody_asks(site)
        return {each for each in site.asked if (each.verb, each.group, each.resource) not in BY_KUBECTL}

    return asyncio.run(main())


def compare(asked: set[Asked], controllers: frozenset[str]) -> None:
    everywhere, here = cluster_rules(sorted(controllers), OURS), namespace_rules(sorted(controllers))
    assert sorted(str(each) for each in asked if not allowed(each, everywhere, here)) == []
    assert unused([*everywhere, *here], asked) <= LATER


def test_the_whole_control_plane_has_the_rights_it_uses_and_no_others(tmp_path: Path) -> None:
    controllers = frozenset(ALL_CONTROLLERS)
    compare(run(tmp_path, controllers, whole_cluster), controllers)


def test_beside_a_stock_binder_it_has_fewer(tmp_path: Path) -> None:
    controllers = parse_controllers(DEFAULT_CONTROLLERS)
    compare(run(tmp_path, controllers, beside_a_binder), controllers)
    everywhere = {rule.resource for rule in cluster_rules(controllers, OURS)}
    assert {resource for resource in everywhere if resource.endswith("/status")} == {
        "persistentvolumeclaims/status",
        "volumeattachments/status",
        "volumesnapshotcontents/status",
        "volumesnapshots/status",
        "volumegroupsnapshots/status",
        "volumegroupsnapshotcontents/status",
    }
    assert {rule.resource for rule in namespace_rules({"provisioner"})} == {"leases", "secrets"}
