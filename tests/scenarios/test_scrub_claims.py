"""What a pod mounts only through a claim is scrubbed by a claim of its own, which leaves nothing behind."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from scenarios.harness import OURS, Harness, Json
from scenarios.recycling import GONE, INTENT, by_pod, end, intent, permitted, pods, released

CSI = {"csi": {"driver": "x.example.com", "volumeHandle": "h"}}


def disk(**spec: Any) -> Json:
    body = released(**spec)
    del body["spec"]["hostPath"]
    body["spec"] |= CSI
    return body


async def claims(harness: Harness) -> list[Json]:
    return await harness.everything("claims", OURS)


async def test_the_pod_has_the_disk_by_a_claim_that_goes_with_it() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", disk())
        await harness.start()
        pod = await permitted(harness)
        [claim] = await claims(harness)
        name = pod["metadata"]["name"]
        assert claim["metadata"]["name"] == name
        assert claim["spec"]["volumeName"] == "v"
        [volume] = pod["spec"]["volumes"]
        assert volume["persistentVolumeClaim"] == {"claimName": name}
        held = await harness.volume("v")
        assert held["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"] == (await intent(harness))["heldBy"]
        await end(harness, pod, "Succeeded")
        await harness.settle()
        offered = await harness.volume("v")
        assert offered["status"]["phase"] == "Available"
        assert "claimRef" not in offered["spec"]
        assert INTENT not in (offered["metadata"].get("annotations") or {})
        assert await claims(harness) == await pods(harness) == []
        assert harness.messages("FailedBinding") == []


async def test_a_block_volume_is_a_device_of_the_pod() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", disk(volumeMode="Block"))
        await harness.start()
        [container] = (await permitted(harness))["spec"]["containers"]
        assert container["volumeDevices"] == [{"name": "volume", "devicePath": "/dev/volplane-scrub"}]
        assert not container.get("volumeMounts")
        assert "blkdiscard" in container["command"][-1]
        assert (await claims(harness))[0]["spec"]["volumeMode"] == "Block"


async def test_a_failed_attempt_keeps_the_claim_and_the_last_one_gives_the_reference_back() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", disk())
        await harness.start()
        uids = set()
        for _ in range(3):
            pod = await permitted(harness, 600.0)
            uids.add((await claims(harness))[0]["metadata"]["uid"])
            await end(harness, pod, "Failed")
            await asyncio.sleep(1.0)
            await harness.restart()
        await harness.settle()
        assert len(uids) == 1
        volume = await harness.volume("v")
        assert volume["spec"]["claimRef"]["uid"] == GONE
        assert (volume["spec"]["claimRef"]["namespace"], volume["spec"]["claimRef"]["name"]) == ("default", "gone")
        assert volume["status"]["phase"] == "Failed"
        assert (await intent(harness))["givenUp"]
        assert await claims(harness) == await pods(harness) == []


async def test_a_scrub_that_is_not_wanted_any_more_gives_the_reference_back() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", disk())
        await harness.start()
        await permitted(harness)
        await harness.patch("volumes", "v", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        await harness.settle()
        volume = await harness.volume("v")
        assert volume["spec"]["claimRef"]["uid"] == GONE
        assert volume["status"]["phase"] == "Released"
        assert INTENT not in volume["metadata"]["annotations"]
        assert await claims(harness) == await pods(harness) == []


async def test_a_claim_that_volplane_did_not_make_is_not_used() -> None:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
        "volumeName": "v",
    }
    async with Harness(by_pod()) as harness:
        made = await harness.create("volumes", disk())
        name = _name_for(made)
        seal = {"volplane.dev/scrub-volume-uid": made["metadata"]["uid"], "volplane.dev/scrub-seal": "0" * 64}
        forged = {"metadata": {"name": name, "namespace": OURS, "annotations": seal}, "spec": spec}
        await harness.create("claims", forged)
        await harness.start()
        await harness.settle()
        assert await pods(harness) == []
        volume = await harness.volume("v")
        assert volume["spec"]["claimRef"]["uid"] == GONE
        assert any("was not made by volplane" in text for text in harness.messages("VolumeFailedRecycle"))


async def test_a_pod_whose_claim_lost_the_volume_proves_nothing() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", disk())
        await harness.start()
        first = await permitted(harness)
        await harness.patch("volumes", "v", {"spec": {"claimRef": {"uid": "00000000-0000-0000-0000-00000000beef"}}})
        await end(harness, first, "Succeeded")
        await asyncio.sleep(5.0)
        volume = await harness.volume("v")
        assert volume["status"]["phase"] != "Available"
        assert "erased" not in await intent(harness)


def _name_for(volume: Json) -> str:
    return f"volplane-scrub-{hashlib.sha256(volume['metadata']['uid'].encode()).hexdigest()[:16]}"
