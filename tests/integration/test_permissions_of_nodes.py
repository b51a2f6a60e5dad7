"""What the processes of distributed provisioning may do is what they do: the central one, and that of a node."""

from __future__ import annotations

import asyncio
from pathlib import Path

from integration.controller_process import DRIVER, Asked, Site, running_process
from integration.test_permissions import scrubber_started
from volplane.cli.installation import KEY_RULES, cluster_rules, namespace_rules, node_rules
from volplane.controller.config import Configuration, DriverSettings
from volplane.controller.controller import Rule
from volplane.kube import names
from volplane.kube.kinds import CAPACITIES, CLAIMS, NODES, VOLUMES
from volplane.process.duties import NODE_CONTROLLERS, parse_controllers
from volplane.state.naming import node_hash

OURS = "volplane-system"


def driver(root: Path) -> Configuration:
    options = {"root": str(root), "create_root": True}
    return Configuration(drivers=(DriverSettings(name=DRIVER, backend="hostpath", options=options, distributed=True),))


async def story(tmp_path: Path) -> tuple[Site, Site]:
    """A claim lives and goes beside a stock binder, which is the test, with one node."""
    ours = parse_controllers("provisioner,reclaimer,expander,assigner,capacity")
    async with running_process(tmp_path / "central", ours, configuration=driver(tmp_path), hostpath=False) as central:
        labels = {"kubernetes.io/hostname": "n"}
        node = await central.client.create(NODES, NODES.body(metadata={"name": "n", "labels": labels}))
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await central.client.patch(NODES, node.key, {"spec": {"taints": None}})
        await central.client.patch(NODES, node.key, ready, subresource="status")
        await central.make_class("local")
        async with running_process(
            tmp_path / "node",
            frozenset(NODE_CONTROLLERS),
            configuration=driver(tmp_path / "disk"),
            hostpath=False,
            server=central.server,
            node_name="n",
        ) as instance:
            await central.until("room is published", lambda: published(central))
            claim = await central.make_claim("data", "local")
            asked = {"metadata": {"annotations": {names.STORAGE_PROVISIONER: DRIVER}}}
            await central.client.patch(CLAIMS, claim.key, asked)
            volume = f"pvc-{claim.uid}"
            await central.until("the volume is made", lambda: exists(central, volume))
            bare = {"metadata": {"labels": {names.NODE: None}}}
            await central.client.patch(VOLUMES, volume, bare)
            await central.until("it has its label again", lambda: labelled(central, volume))
            await central.client.patch(VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")
            await central.client.patch(CLAIMS, claim.key, {"metadata": {"finalizers": None}})
            await central.client.delete(CLAIMS, claim.key)
            await central.client.patch(VOLUMES, volume, {"metadata": {"finalizers": [names.RECLAIM_FINALIZER]}})
            await central.until("the volume is gone", lambda: absent(central, volume))
            await scrubbed(central)
            return central, instance


async def scrubbed(site: Site) -> None:
    """A volume of a warm pool is released, and offered again."""
    await site.make_class("pool", parameters={names.ON_RELEASE: "recycle"})
    claim = await site.make_claim("pooled", "pool")
    asked = {"metadata": {"annotations": {names.STORAGE_PROVISIONER: DRIVER}}}
    await site.client.patch(CLAIMS, claim.key, asked)
    volume = f"pvc-{claim.uid}"
    await site.until("the volume is made", lambda: exists(site, volume))
    await site.client.patch(VOLUMES, volume, {"status": {"phase": "Released"}}, subresource="status")
    await site.client.patch(CLAIMS, claim.key, {"metadata": {"finalizers": None}})
    await site.client.delete(CLAIMS, claim.key)
    await site.until("a scrubber pod may start", lambda: scrubber_started(site, node="n"))

    async def offered() -> bool:
        return (await site.client.get(VOLUMES, volume)).spec.claim_ref is None

    await site.until("it is offered again", offered)


async def published(site: Site) -> bool:
    return bool((await site.client.list(CAPACITIES)).items)


async def exists(site: Site, volume: str) -> bool:
    return await site.client.find(VOLUMES, volume) is not None


async def absent(site: Site, volume: str) -> bool:
    return await site.client.find(VOLUMES, volume) is None


async def labelled(site: Site, volume: str) -> bool:
    found = await site.client.find(VOLUMES, volume)
    return found is not None and (found.metadata.labels or {}).get(names.NODE) == node_hash("n")


def allowed(asked: Asked, rules: dict[str, list[Rule]]) -> bool:
    return any(
        (rule.group, rule.resource) == (asked.group, asked.resource)
        and asked.verb in rule.verbs
        and (not rule.names or asked.name in rule.names)
        for place in ("", asked.namespace)
        for rule in rules.get(place, ())
    )


def test_the_central_process_and_that_of_a_node_have_the_rights_they_use(tmp_path: Path) -> None:
    central, instance = asyncio.run(story(tmp_path))
    controllers = ["provisioner", "reclaimer", "expander", "assigner", "capacity"]
    of_central = {
        "": cluster_rules(controllers, OURS, distributed=True),
        OURS: namespace_rules(controllers, publishing=True),
        f"{OURS}-nodes": list(KEY_RULES),
    }
    for site, rules in ((central, of_central), (instance, node_rules(OURS))):
        asked = {each for each in site.asked if each.resource != "namespaces" or each.verb != "create"}
        assert sorted(str(each) for each in asked if not allowed(each, rules)) == []
    assert {each.resource for each in central.asked} >= {"pods"}
