"""Who may make a volume for a directory may not have another volume's contents destroyed with it."""

from __future__ import annotations

import asyncio

import pytest

from scenarios.backends import ScriptedBackend
from scenarios.deleting import released as to_delete
from scenarios.harness import Harness, Json
from scenarios.recycling import by_pod, pods
from scenarios.recycling import released as to_scrub
from scenarios.stories import DRIVER, claim, volume
from volplane.operations.operation import DriverLimits

SOURCES: list[tuple[Json, Json]] = [
    ({"hostPath": {"path": "/data/team"}}, {"hostPath": {"path": "/data/team"}}),
    ({"hostPath": {"path": "/data/team/sub"}}, {"hostPath": {"path": "/data//team/"}}),
    ({"hostPath": {"path": "/data"}}, {"hostPath": {"path": "/data/team"}}),
    ({"nfs": {"server": "filer", "path": "/exports"}}, {"nfs": {"server": "FILER", "path": "/exports/team"}}),
    ({"nfs": {"server": "filer", "path": "/exports/team"}}, {"nfs": {"server": "filer", "path": "/exports/team"}}),
    (
        {"csi": {"driver": "d.example.com", "volumeHandle": "vol-1"}},
        {"csi": {"driver": "d.example.com", "volumeHandle": "vol-1", "fsType": "xfs"}},
    ),
]


def victim(source: Json) -> Json:
    """A volume of another tenant, in use."""
    base = volume("victim", claimRef={"namespace": "default", "name": "owner"}, persistentVolumeReclaimPolicy="Retain")
    del base["spec"]["hostPath"]
    base["spec"] |= source
    return base


def evil(body: Json, source: Json) -> Json:
    del body["spec"]["hostPath"]
    body["spec"] |= source
    return body


@pytest.mark.parametrize(("mine", "theirs"), SOURCES)
async def test_a_volume_on_the_storage_of_another_is_not_deleted_until_that_is_gone(mine: Json, theirs: Json) -> None:
    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as harness:
        await harness.create("claims", claim("owner", storageClassName="", volumeName="victim"))
        await harness.create("volumes", victim(theirs))
        await harness.create("volumes", evil(to_delete("evil"), mine))
        await harness.start()
        await harness.settle()
        assert await harness.volumes() == {"victim": "Bound", "evil": "Failed"}
        told = (await harness.volume("evil"))["status"]["message"]
        assert 'volume "victim": nothing is destroyed while both exist' in told
        assert harness.messages("VolumeFailedDelete") == [told]
        assert "deletionTimestamp" not in (await harness.volume("evil"))["metadata"]
        assert backend.calls["delete"] == 0

        await harness.delete("claims", "owner", "default")
        await harness.settle()
        await harness.delete("volumes", "victim")
        await harness.settle()
        assert await harness.volumes() == {}, "with the reason the refusal goes"
        assert backend.calls["delete"] == 1


@pytest.mark.parametrize(("mine", "theirs"), SOURCES[:5])
async def test_a_volume_on_the_storage_of_another_is_not_scrubbed(mine: Json, theirs: Json) -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", victim(theirs))
        await harness.create("volumes", evil(to_scrub("evil"), mine))
        await harness.start()
        await harness.settle()
        assert (await harness.volumes())["evil"] == "Failed"
        assert 'volume "victim"' in (await harness.volume("evil"))["status"]["message"]
        assert await pods(harness) == []


async def test_a_volume_that_appears_on_the_storage_of_one_that_is_being_deleted_stops_that() -> None:
    """The object is deleted already and its hook has failed; no further call is made."""
    backend = ScriptedBackend(DRIVER, {"delete": ["in-use: mounted"]})
    async with Harness(backend) as harness:
        await harness.create("volumes", evil(to_delete("evil"), {"hostPath": {"path": "/data/team"}}))
        await harness.start()
        await harness.until(lambda: _called(backend), 30.0, "a first call")
        await harness.create("volumes", victim({"hostPath": {"path": "/data/team/sub"}}))
        calls = backend.calls["delete"]
        await harness.settle()
        assert backend.calls["delete"] == calls
        assert (await harness.volumes())["evil"] == "Failed"


async def test_a_volume_that_appears_there_while_a_deletion_waits_for_its_turn_stops_that() -> None:
    """It was decided before the other one existed, and starts when the driver has room."""
    backend = ScriptedBackend(DRIVER)

    def slow(_driver: str, hook: str) -> tuple[float, float]:
        return (5.0, 0.0) if hook == "delete" else (0.0, 0.0)

    async with Harness(backend, limits={DRIVER: DriverLimits(concurrency=1)}, latency=slow) as harness:
        await harness.create("volumes", to_delete("first"))
        await harness.start()
        await asyncio.sleep(1.0)
        await harness.create("volumes", evil(to_delete("evil"), {"hostPath": {"path": "/data/team"}}))
        await asyncio.sleep(1.0)
        waiting = [each.phase for each in harness.plane.operations.snapshot() if "evil" in each.name]
        assert waiting == ["queued"]
        await harness.create("volumes", victim({"hostPath": {"path": "/data/team/sub"}}))
        await harness.settle()
        assert backend.calls["delete"] == 1
        assert (await harness.volumes())["evil"] == "Failed"


async def _called(backend: ScriptedBackend) -> bool:
    return backend.calls["delete"] > 0


async def test_two_nodes_may_have_the_same_path() -> None:
    def on(node: str) -> Json:
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
        return {"local": {"path": "/mnt/disk1"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}

    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as harness:
        await harness.create("volumes", victim(on("n1")))
        await harness.create("volumes", evil(to_delete("evil"), on("n2")))
        await harness.start()
        await harness.settle()
        assert await harness.volumes() == {"victim": "Available"}
