"""Objects at the edge of what an API server stores, and beyond: each costs itself, and nobody else."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from integration.weather import Outdoors
from scenarios.backends import ScriptedBackend
from scenarios.harness import Harness
from scenarios.stories import DRIVER, claim, node_runs_pods, storage_class, volume
from schedules import soaked
from volplane.kube.client import Client
from volplane.kube.events import EventRecorder
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock

LARGEST = 256 * 1024
HOUR = 3600.0
LONG = ".".join(("c" * 63, "l" * 63, "a" * 63, "m" * 61))
HOSTILE = {
    "escapes": "\x1b[2J\x1b[31m\x00\x07",
    "lines": "a\nb\r\nc",
    "directions": "\u202egnp.exe",
    "astral": "\N{PILE OF POO}" * 50,
    "formats": "%s %n {0} {evil!r} ${HOME} $(id)",
    "markup": '"><script>&lt;/a>',
    "long": "x" * 5000,
    "json": '{"intent":{"driver":"other"},"seal":"0"}',
}


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info]


async def events_of(harness: Harness) -> list[dict[str, Any]]:
    """What the events of the laboratory become: every one must be taken by the server."""
    client = Client(InProcessTransport(harness.server))
    recorder = EventRecorder(client, instance="tests", now=clock.now)
    task = asyncio.create_task(recorder.run())
    for event in harness.recorded:
        recorder.record(event)
        await asyncio.sleep(0.1)
    await recorder.close(60.0)
    await task
    assert recorder.dropped == 0
    return list(json.loads(await client.raw("/api/v1/events"))["items"])


# --- objects that cannot be read ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoilt",
    [
        {"spec": {"capacity": "much"}},
        {"spec": {"capacity": {"storage": "1Qi"}}},
        {"spec": {"claimRef": ["c"]}},
        {"spec": 7},
        {"status": {"phase": {}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("when", ["in the list", "in the watch", "after it was known"])
async def test_a_volume_that_cannot_be_read_is_skipped_alone_and_reported(
    spoilt: dict[str, Any], when: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def spoil(harness: Harness) -> None:
        made = await harness.create("volumes", volume("bad"))
        harness.server.store.put("persistentvolumes", "bad", {**made, **spoilt})

    async with Harness() as harness:
        if when == "in the list":
            await spoil(harness)
        await harness.start()
        if when == "after it was known":
            stored = await harness.create("volumes", volume("bad"))
            await harness.settle()
            stored = await harness.see("volumes", "bad")
            harness.server.store.put("persistentvolumes", "bad", {**stored, **spoilt})
        elif when == "in the watch":
            await spoil(harness)
        await harness.create("volumes", volume("good"))
        await harness.create("claims", claim("a"))
        await harness.create("claims", claim("b"))
        await harness.settle()
        bound = {
            c["spec"].get("volumeName") for c in await harness.everything("claims") if c["status"]["phase"] == "Bound"
        }
        assert bound == {"good"}
        asked = len(harness.rules.calls)
        await asyncio.sleep(HOUR)
        assert len(harness.rules.calls) - asked < 80, "one try every five minutes, and its live read"
    assert "PersistentVolume bad could not be read and is skipped" in caplog.text
    assert tracebacks(caplog) == []


async def test_a_class_that_cannot_be_read_harms_only_its_claims(caplog: pytest.LogCaptureFixture) -> None:
    async with Harness(ScriptedBackend(DRIVER)) as harness:
        made = await harness.create("classes", storage_class("bad"))
        harness.server.store.put("storageclasses.storage.k8s.io", "bad", {**made, "parameters": {"a": 7}})
        await harness.create("classes", storage_class())
        await harness.start()
        await harness.create("claims", claim("a", storageClassName="bad"))
        await harness.create("claims", claim("b", storageClassName="fast"))
        await harness.settle()
        assert (await harness.see("claims", "b"))["status"]["phase"] == "Bound"
        assert (await harness.see("claims", "a"))["status"]["phase"] == "Pending"
    assert "StorageClass bad could not be read" in caplog.text
    assert tracebacks(caplog) == []


# --- limits -------------------------------------------------------------------------------------------------------


def full(body: dict[str, Any]) -> dict[str, Any]:
    """The object with annotations that leave a few bytes."""
    body["metadata"]["annotations"] = {"example.com/notes": "n" * (LARGEST - 40)}
    return body


@pytest.mark.parametrize("made", [False, True], ids=("bound to a volume", "provisioned for"))
async def test_a_claim_whose_annotations_are_full_is_told_so_and_goes_on_when_there_is_room(
    made: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with Harness(ScriptedBackend(DRIVER)) as harness:
        await harness.create("classes", storage_class())
        if not made:
            await harness.create("volumes", volume("v"))
        await harness.create("claims", full(claim("c", storageClassName="fast" if made else "")))
        await harness.start()
        await asyncio.sleep(HOUR)
        assert len(harness.rules.calls) < 90
        told = harness.messages("ApiCallRefused")
        assert 5 < len(told) < 40
        assert "metadata.annotations: Too long: may not be more than 262144 bytes; trying again in" in told[-1]
        assert harness.backends[DRIVER].calls["provision"] == 0
        await harness.patch("claims", "c", {"metadata": {"annotations": {"example.com/notes": None}}})
        await asyncio.sleep(5.0)
        assert (await harness.see("claims", "c"))["status"]["phase"] == "Bound"
    assert tracebacks(caplog) == []


async def test_names_at_their_limits_serve_as_all_others(caplog: pytest.LogCaptureFixture) -> None:
    assert len(LONG) == 253
    space = "n" * 63
    place = "zone"

    info = {"topology_keys": (place,)}
    async with Harness(ScriptedBackend(DRIVER, recycler_pod=True, info=info)) as harness:
        await node_runs_pods(harness)
        await harness.create("nodes", {"metadata": {"name": LONG, "labels": {place: "z"}}})
        late = storage_class(LONG, volumeBindingMode="WaitForFirstConsumer")
        await harness.create("classes", {**late, "parameters": {"volplane.dev/on-release": "recycle"}})
        await harness.create("volumes", volume(LONG, persistentVolumeReclaimPolicy="Recycle"))
        for name, fields in ((LONG, {"storageClassName": LONG}), (LONG[:-1], {})):
            wanted = claim(name, **fields)
            wanted["metadata"]["namespace"] = space
            wanted["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": LONG} if fields else {}
            await harness.create("claims", wanted)
        harness.backends[DRIVER].script("provision", "x" * 3000, "ok")
        await harness.start()
        await harness.settle()
        assert {c["status"]["phase"] for c in await harness.everything("claims")} == {"Bound"}
        for name in (LONG, LONG[:-1]):
            await harness.delete("claims", name, space)
        await harness.settle()
        assert {v["status"]["phase"] for v in await harness.everything("volumes")} == {"Available"}
        assert len(await harness.everything("volumes")) == 2
        events = await events_of(harness)
        assert {"ProvisioningFailed", "ProvisioningSucceeded", "VolumeRecycled"} <= {e["reason"] for e in events}
        assert max(len(e["message"].encode()) for e in events) == 1024
    assert tracebacks(caplog) == []


# --- hostile text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_text_in_objects_and_errors_breaks_neither_messages_nor_events(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = HOSTILE[kind]

    async with Harness(ScriptedBackend(DRIVER, parameters=("type",))) as harness:
        harness.backends[DRIVER].script("provision", RuntimeError(text), f"odd file \udcff {text}", "ok")
        await harness.create("classes", storage_class())
        await harness.create("classes", storage_class("wrong", parameters={text.replace("\x00", "") or "k": text}))
        for name, class_name in (("a", "fast"), ("b", "wrong")):
            wanted = claim(name, storageClassName=class_name)
            wanted["metadata"]["annotations"] = {
                "volplane.dev/intent": text,
                "example.com/x": text,
                "pv.kubernetes.io/migrated-to": "",
            }
            await harness.create("claims", wanted)
        await harness.start()
        await harness.settle()
        assert (await harness.see("claims", "a"))["status"]["phase"] == "Bound"
        assert (await harness.see("claims", "b"))["status"]["phase"] == "Pending"
        for name in "ab":
            harness.plane.explain("claim", f"default/{name}")
            await harness.delete("claims", name)
        await harness.settle()
        assert harness.backends[DRIVER].assets == {}
        for event in await events_of(harness):
            assert event["message"].isprintable()
            assert len(event["message"].encode()) <= 1024
    assert tracebacks(caplog) == []
    caplog.text.encode()


# --- volumes of other kinds ---------------------------------------------------------------------------------------


async def test_volumes_of_other_drivers_are_bound_and_left_alone() -> None:
    csi = {"driver": "other.example.com", "volumeHandle": "h-1"}

    async with Harness(ScriptedBackend(DRIVER, owns=lambda source: source.kind == "hostPath")) as harness:
        body = volume("v", persistentVolumeReclaimPolicy="Delete", csi=csi)
        del body["spec"]["hostPath"]
        await harness.create("volumes", body)
        await harness.create("claims", claim("c"))
        await harness.start()
        await harness.settle()
        assert (await harness.see("claims", "c"))["spec"]["volumeName"] == "v"
        await harness.delete("claims", "c")
        await harness.settle()
        assert (await harness.see("volumes", "v"))["status"]["phase"] == "Released"
        assert not harness.backends[DRIVER].calls["delete"]


async def test_a_volume_without_a_source_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The server takes no write of it: that is said on it, ever more seldom, and a claim for it waits."""

    async with Harness(ScriptedBackend(DRIVER)) as harness:
        made = await harness.create("volumes", volume("v"))
        del made["spec"]["hostPath"]
        harness.server.store.put("persistentvolumes", "v", made)
        await harness.create("volumes", volume("good"))
        for name, wanted in (("a", "v"), ("b", "good")):
            await harness.create("claims", claim(name, volumeName=wanted))
        await harness.start()
        await asyncio.sleep(HOUR)
        assert (await harness.see("claims", "a"))["status"]["phase"] == "Pending"
        assert (await harness.see("claims", "b"))["status"]["phase"] == "Bound"
        told = harness.messages("ApiCallRefused")
        assert "spec: Required value: must specify a volume type" in told[0]
        assert len(told) < 50
        assert len(harness.rules.calls) < 100
    assert tracebacks(caplog) == []


# --- a crowd whose driver always fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("crowd", soaked([50, 1000], few=1))
async def test_a_crowd_whose_driver_always_fails_costs_little_and_delays_nobody(
    caplog: pytest.LogCaptureFixture, crowd: int
) -> None:
    caplog.set_level(logging.WARNING)
    broken, working = ScriptedBackend("broken.example.com", {"provision": ["no"]}), ScriptedBackend(DRIVER)

    async with Outdoors(broken, working) as harness:
        await harness.create("classes", storage_class("broken", provisioner="broken.example.com"))
        await harness.create("classes", storage_class())
        for number in range(crowd):
            await harness.create("claims", claim(f"crowd-{number}", storageClassName="broken"))
        await harness.start()
        await asyncio.sleep(60.0)
        for number in range(20):
            await harness.create("claims", claim(f"other-{number}", storageClassName="fast"))
        await asyncio.sleep(1.0)
        others = [c for c in await harness.everything("claims") if c["metadata"]["name"].startswith("other")]
        assert {c["status"]["phase"] for c in others} == {"Bound"}
        await asyncio.sleep(HOUR)
        asked, told = harness.requests, len(harness.recorded)
        await asyncio.sleep(HOUR)
        assert harness.requests - asked < 200, "a failing claim asks the API server nothing"
        assert len(harness.recorded) - told <= crowd * 31, "one event every two minutes, which is counted, not written"
        for number in range(crowd):
            await harness.delete("claims", f"crowd-{number}")
        await harness.settle()
    assert tracebacks(caplog) == []
