"""The driver in a cluster, in virtual time: claims get volumes of EBS, and nothing is left of them afterwards.

VOLPLANE_SEEDS=0:1000 runs a thousand schedules of trouble instead of a few; each is a function of its seed alone.
"""

from __future__ import annotations

import asyncio
import os
from random import Random
from typing import Any

import pytest

from volplane_aws_ebs import AwsEbsBackend
from volplane_aws_ebs.testing import Behaviour, FakeEC2, Fault, FaultKind, InProcess
from volplane_testing import Cluster, run

DRIVER = "ebs.volplane.dev"
ZONE = "topology.kubernetes.io/zone"
KEY = "arn:aws:kms:eu-test-1:123456789012:key/0f0f0f0f"
FIRST, _, LAST = os.environ.get("VOLPLANE_SEEDS", "0:12").partition(":")


class Site:
    """A mocked region that lives by the loop's clock, and fresh drivers on it."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.fake = FakeEC2(behaviour or Behaviour(), clock=self.now)
        self._connect = InProcess(self.fake)

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    def driver(self) -> AwsEbsBackend:
        return AwsEbsBackend({"region": "eu-test-1"}, connect_to=self._connect, clock=self.now)

    def cluster(self, seed: int = 0) -> Cluster:
        return Cluster({DRIVER: self.driver}, seed=seed)


def handles(cluster: Any) -> set[str]:
    return {volume["spec"]["csi"]["volumeHandle"] for volume in cluster.api.all("persistentvolumes")}


async def test_a_claim_gets_a_volume_that_stock_nodes_mount_and_that_goes_with_it() -> None:
    site = Site()
    async with site.cluster() as cluster:
        await cluster.create_class("fast", parameters={"type": "gp3", "csi.storage.k8s.io/fstype": "xfs"})
        claim = await cluster.create_claim("data", storage_class="fast", capacity="5Gi")
        volume = await cluster.wait_bound(claim)
        (stored,) = site.fake.volumes.values()
        spec = volume["spec"]
        assert spec["csi"]["driver"] == "ebs.csi.aws.com"
        assert (spec["csi"]["volumeHandle"], spec["csi"]["fsType"]) == (stored.id, "xfs")
        assert spec["capacity"] == {"storage": "5Gi"}
        (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": ZONE, "operator": "In", "values": [stored.zone]}]
        assert volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == DRIVER
        await cluster.delete_claim(claim)
        await cluster.advance(60.0)
        assert site.fake.volumes == {}
        assert cluster.api.all("persistentvolumes") == []


async def test_nothing_is_written_while_ec2_takes_its_time() -> None:
    site = Site(Behaviour(create_seconds=45.0))
    async with site.cluster() as cluster:
        await cluster.create_class("slow")
        claim = await cluster.create_claim("data", storage_class="slow")
        await cluster.settle()
        before = len([each for each in cluster.requests if each.verb == "patch"])
        await cluster.advance(30.0)
        assert len([each for each in cluster.requests if each.verb == "patch"]) == before
        await cluster.wait_bound(claim)
        assert site.fake.calls["DescribeVolumes"] < 40


async def test_a_key_that_may_not_be_used_is_told_on_the_claim_and_heals() -> None:
    site = Site()
    async with site.cluster() as cluster:
        await cluster.create_class("secret", parameters={"kmsKeyId": KEY})
        claim = await cluster.create_claim("data", storage_class="secret")
        await cluster.advance(20.0)
        told = [event["message"] for event in cluster.api.events(claim)]
        assert any("vanished while it was being made" in message and KEY in message for message in told)
        site.fake.behave(kms_keys={KEY: True})
        volume = await cluster.wait_bound(claim)
        assert list(site.fake.volumes) == [volume["spec"]["csi"]["volumeHandle"]]


async def test_a_full_zone_sends_the_claim_back_to_the_scheduler() -> None:
    site = Site()
    async with site.cluster() as cluster:
        for zone in site.fake.behaviour.zones:
            cluster.api.create("nodes", {"metadata": {"name": f"node-{zone}", "labels": {ZONE: zone}}})
        await cluster.create_class("late", binding_mode="WaitForFirstConsumer")
        await cluster.advance(90.0)
        site.fake.faults.add(Fault(action="CreateVolume", kind=FaultKind.REFUSE, code="InsufficientVolumeCapacity"))
        claim = await cluster.create_claim("data", storage_class="late", selected_node="node-eu-test-1a")
        await cluster.advance(10.0)
        selected = "volume.kubernetes.io/selected-node"
        now = cluster.api.get("persistentvolumeclaims", "data")
        assert selected not in now["metadata"]["annotations"]
        cluster.api.patch(
            "persistentvolumeclaims", "data", {"metadata": {"annotations": {selected: "node-eu-test-1b"}}}
        )
        await cluster.wait_bound(claim)
        (stored,) = site.fake.volumes.values()
        assert stored.zone == "eu-test-1b"


# --- schedules of trouble ---------------------------------------------------------------------------------------

ACTIONS = ("CreateVolume", "DeleteVolume", "DescribeVolumes")
CODES = ("InternalError", "RequestLimitExceeded", "VolumeLimitExceeded", "UnauthorizedOperation")


class Trouble:
    """What goes wrong in one run, and when: a function of the seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        late = self.random.choice([0.0, 0.0, 2.0, 8.0])
        self.site = Site(
            Behaviour(
                visible_after=late,
                create_seconds=self.random.choice([0.0, 1.5, 12.0]),
                delete_seconds=self.random.choice([0.0, 1.5, 90.0]),
                token_seconds=self.random.choice([86_400.0, 600.0]),
            )
        )
        self.claims: dict[str, Any] = {}
        self.made = 0

    def fault(self) -> None:
        random = self.random
        kind = random.choice(
            [FaultKind.REFUSE, FaultKind.LIE, FaultKind.DROP, FaultKind.LOSE, FaultKind.LATE, FaultKind.CLOSE]
        )
        action = random.choice(ACTIONS)
        if action == "DescribeVolumes" and kind is FaultKind.LATE:
            kind = FaultKind.DROP
        fault = Fault(
            action=action,
            kind=kind,
            code=random.choice(CODES),
            times=random.choice([1, 1, 2, 5]),
            skip=random.randrange(3),
            seconds=random.uniform(0.1, 40.0),
        )
        self.site.fake.faults.add(fault)

    async def step(self, cluster: Cluster) -> None:
        random = self.random
        what = random.choice(["claim", "claim", "delete", "fault", "fault", "crash", "api", "vanish", "wait"])
        if what == "claim":
            self.made += 1
            name = f"data-{self.made}"
            self.claims[name] = await cluster.create_claim(name, storage_class="fast")
        elif what == "delete" and self.claims:
            await cluster.delete_claim(self.claims.pop(random.choice(sorted(self.claims))))
        elif what == "fault":
            self.fault()
        elif what == "crash":
            await cluster.restart()
        elif what == "api":
            verb, resource = random.choice(
                [("patch", "persistentvolumeclaims"), ("create", "persistentvolumes"), ("delete", "*")]
            )
            cluster.fail(verb, resource, status=random.choice([0, 409, 500]), after=random.random() < 0.5)
        elif what == "vanish":
            making = [each for each in self.site.fake.volumes.values() if each.state == "creating"]
            if making:
                self.site.fake.remove_volume(random.choice(making).id)
        await asyncio.sleep(random.choice([0.0, 0.3, 2.0, 15.0]))


async def schedule(seed: int) -> None:
    trouble = Trouble(seed)
    fake = trouble.site.fake
    async with trouble.site.cluster(seed) as cluster:
        await cluster.create_class("fast")
        for _ in range(trouble.random.randrange(5, 40)):
            await trouble.step(cluster)
            owners = [volume.tags["volplane.dev/claim-uid"] for volume in fake.volumes.values()]
            generations = [volume.tags["volplane.dev/generation"] for volume in fake.volumes.values()]
            alive = list(zip(owners, generations, strict=True))
            assert len(alive) == len(set(alive)), f"two volumes for one claim: {alive}"
        fake.faults.clear()
        for claim in trouble.claims.values():
            await cluster.wait_bound(claim, 3_600.0)
        await cluster.advance(1_200.0)
        assert len(cluster.api.all("persistentvolumes")) == len(trouble.claims)
        assert handles(cluster) == set(fake.volumes), "nothing leaked, nothing lost"


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or 1)))
def test_whatever_happens_every_claim_has_its_volume_and_nothing_else_is_left(seed: int) -> None:
    run(schedule(seed))


async def wait(cluster: Any, condition: Any, seconds: float = 900.0) -> Any:
    """Return what the condition gives once it is something."""
    for _ in range(int(seconds)):
        if found := condition():
            return found
        await cluster.advance(1.0)
    raise AssertionError(f"not within {seconds:g} s")


async def test_a_volume_snapshot_is_locked_ready_and_deleted_by_the_controllers() -> None:
    site = Site(Behaviour(snapshot_seconds=200.0))
    async with site.cluster() as cluster:
        api: Any = cluster.api
        await cluster.create_class("fast")
        await cluster.wait_bound(await cluster.create_claim("data", storage_class="fast", capacity="5Gi"))
        parameters = {
            "lockMode": "governance",
            "lockDuration": "1",
            "tagSpecification_1": "of={{ .VolumeSnapshotName }}",
        }
        daily = {"metadata": {"name": "daily"}, "driver": DRIVER, "deletionPolicy": "Delete", "parameters": parameters}
        api.create("volumesnapshotclasses", daily)
        spec = {"source": {"persistentVolumeClaimName": "data"}, "volumeSnapshotClassName": "daily"}
        api.create("volumesnapshots", {"metadata": {"name": "s"}, "spec": spec})

        def status() -> Any:
            return (api.get("volumesnapshots", "s") or {}).get("status") or {}

        begun = site.now()
        await wait(cluster, lambda: status().get("creationTime"))
        assert site.now() - begun < 30, "told at its moment"
        assert not status().get("readyToUse")
        await wait(cluster, lambda: status().get("readyToUse"))
        assert status()["restoreSize"] == "5Gi"
        (stored,) = site.fake.snapshots.values()
        assert stored.tags["volplane.dev/snapshot-uid"] == api.get("volumesnapshots", "s")["metadata"]["uid"]
        assert stored.tags["of"] == "s"
        assert stored.lock is not None
        (content,) = api.all("volumesnapshotcontents")
        assert content["status"]["snapshotHandle"] == stored.id
        api.delete("volumesnapshots", "s")
        await cluster.advance(30.0)
        assert list(site.fake.snapshots) == [stored.id]
        told = [each["message"] for each in api.all("events")]
        assert any("is locked in mode governance until" in message for message in told), told
        stored.lock = None
        await wait(cluster, lambda: not site.fake.snapshots, 4_000.0)
        await wait(cluster, lambda: api.get("volumesnapshots", "s") is None)
        assert api.all("volumesnapshotcontents") == []
