"""Claims that lost their volume, wait for a class or a volume, and what they say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scenarios.backends import ScriptedBackend
from scenarios.binding import BY_CONTROLLER, plain
from scenarios.harness import Harness, Json
from scenarios.stories import DRIVER, claim, reference, storage_class, volume

BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}


def classless(name: str, **spec: Any) -> Json:
    body = claim(name, **spec)
    del body["spec"]["storageClassName"]
    return body


def default_class(name: str = "standard") -> Json:
    return {**storage_class(name), "metadata": {"name": name, "annotations": DEFAULT}}


# --- lost and found ----------------------------------------------------------------------------------------------


def _bound_claim(name: str, volume_name: str, size: str = "1Gi", **spec: Any) -> Json:
    body = claim(name, size, volumeName=volume_name, **spec)
    body["metadata"]["annotations"] = BOUND | BY_CONTROLLER
    status = {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}}
    return {**body, "status": status}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"capacity": {"storage": "1Gi"}}, "requested PV is too small"),
        ({"storageClassName": "other"}, "storageClassName does not match"),
        ({"volumeMode": "Block"}, "incompatible volumeMode"),
        ({"accessModes": ["ReadOnlyMany"]}, "incompatible accessMode"),
    ],
)
async def test_another_volume_under_a_lost_name_is_not_taken_for_the_lost_one(other: Json, why: str) -> None:
    """Item 21.7: a claim is not silently bound to different data."""

    async with plain() as harness:
        await harness.create("claims", _bound_claim("c", "v", "5Gi"))
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"c": "Lost"}
        await harness.create("volumes", volume("v", "5Gi", **other))
        await harness.settle()
        assert await harness.claims() == {"c": "Lost"}
        assert await harness.volumes() == {"v": "Available"}
        assert why in harness.plane.reason("claims", "default/c")


async def test_the_volume_of_a_lost_claim_that_comes_back_is_bound_again() -> None:
    async with plain() as harness:
        await harness.create("claims", _bound_claim("c", "v"))
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"c": "Lost"}
        await harness.create("volumes", volume("v"))
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}
        assert await harness.volumes() == {"v": "Bound"}


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_a_wrong_name_beside_the_right_uid_does_not_cost_a_claim_its_volume(policy: str) -> None:
    """Item 21.8: the uid says whose it is; the name is put right and nothing is released."""
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        made = await harness.create("claims", _bound_claim("c", "v"))
        ref = reference("misspelt", uid=made["metadata"]["uid"])
        body = volume("v", claimRef=ref, persistentVolumeReclaimPolicy=policy)
        await harness.create("volumes", {**body, "status": {"phase": "Bound"}})
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}
        assert await harness.volumes() == {"v": "Bound"}
        assert (await harness.volume("v"))["spec"]["claimRef"]["name"] == "c"
        assert not backend.calls


async def test_a_restored_claim_is_not_given_the_volume_of_its_dead_namesake() -> None:
    """A stale uid is somebody's data: that volume stays released, the claim is lost."""

    async with plain() as harness:
        await harness.create("claims", _bound_claim("c", "v"))
        stale = volume("v", claimRef=reference("c", uid="00000000-0000-0000-0000-000000000001"))
        await harness.create("volumes", {**stale, "status": {"phase": "Bound"}})
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"c": "Lost"}
        assert await harness.volumes() == {"v": "Released"}


async def test_a_retained_volume_is_offered_again_when_a_person_removes_the_reference() -> None:
    """Item 22.4."""

    async with plain() as harness:
        await harness.create("volumes", volume("v"))
        await harness.create("claims", claim("c"))
        await harness.start()
        await harness.settle()
        await harness.delete("claims", "c")
        await harness.create("claims", claim("next"))
        await harness.settle()
        assert await harness.volumes() == {"v": "Released"}
        await harness.patch("volumes", "v", {"spec": {"claimRef": None}})
        await asyncio.sleep(0.5)
        assert await harness.claims() == {"next": "Bound"}


@pytest.mark.parametrize("uid", ["", "00000000-0000-0000-0000-000000000001"])
async def test_a_reference_without_namespace_is_said_and_destroys_nothing(uid: str) -> None:
    """Item 22.7: such a reference matches no claim, for ever and without a word."""
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        ref = {"kind": "PersistentVolumeClaim", "name": "c"} | ({"uid": uid} if uid else {})
        await harness.create("volumes", volume("v", persistentVolumeReclaimPolicy="Delete", claimRef=ref))
        await harness.create("claims", claim("c"))
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"c": "Pending"}
        assert harness.events["Warning VolumeMismatch"] >= 1
        assert "lacks namespace or name" in harness.messages("VolumeMismatch")[0]
        assert not backend.calls
        await harness.patch("volumes", "v", {"spec": {"claimRef": {"namespace": "default", "uid": None}}})
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}


# --- classes -----------------------------------------------------------------------------------------------------


async def test_a_default_class_does_not_take_the_claim_from_a_volume_that_is_just_coming() -> None:
    """Item 21.19: the volume was there before the claim was decided; only its first phase was not written."""

    async with plain() as harness:
        await harness.create("classes", default_class())
        harness.fail("update persistentvolumes/status", "away", 3)
        await harness.create("volumes", volume("v"))
        await harness.create("claims", classless("c"))
        await harness.start()
        await harness.settle()
        bound = await harness.claim("c")
        assert bound["spec"]["volumeName"] == "v"
        assert bound["spec"].get("storageClassName") is None


async def test_a_volume_that_never_comes_does_not_keep_the_claim_from_its_class() -> None:
    async with plain() as harness:
        await harness.create("classes", default_class())
        harness.fail("update persistentvolumes/status", "away", 10**6)
        await harness.create("volumes", volume("v"))
        await harness.create("claims", classless("c"))
        await harness.start()
        await asyncio.sleep(5.0)
        await harness.delete("volumes", "v")
        await asyncio.sleep(2.0)
        assert (await harness.claim("c"))["spec"]["storageClassName"] == "standard"


async def test_a_default_class_that_comes_later_is_given_to_those_without_one_only() -> None:
    async with plain() as harness:
        await harness.create("claims", classless("without"))
        await harness.create("claims", claim("explicit"))
        annotated = classless("annotated")
        annotated["metadata"]["annotations"] = {"volume.beta.kubernetes.io/storage-class": "old"}
        await harness.create("claims", annotated)
        await harness.start()
        await harness.settle()
        await harness.create("classes", default_class())
        await asyncio.sleep(1.0)
        phases = await harness.claims()
        assert phases.pop("without") == "Bound"
        assert set(phases.values()) == {"Pending"}


async def test_of_two_default_classes_the_newer_is_given_and_of_equal_ones_the_first_by_name() -> None:
    async with plain() as harness:
        await harness.create("classes", default_class("m-older"))
        await asyncio.sleep(5.0)
        for name in ("z-newer", "b-newer"):
            await harness.create("classes", default_class(name))
        await harness.create("claims", classless("c"))
        await harness.start()
        await harness.settle()
        assert (await harness.claim("c"))["spec"]["storageClassName"] == "b-newer"


# --- waiting -----------------------------------------------------------------------------------------------------


async def test_a_waiting_claim_says_what_the_volumes_lack() -> None:
    """Item 22.1: not one text for every reason."""

    async with plain() as harness:
        await harness.create("volumes", volume("v1"))
        await harness.create("volumes", volume("v2", "2Gi"))
        await harness.create("volumes", volume("v3", "9Gi", accessModes=["ReadOnlyMany"]))
        await harness.start()
        await harness.settle()
        await harness.create("claims", claim("c", "5Gi"))
        await asyncio.sleep(1.0)
        (message,) = harness.messages("FailedBinding")[-1:]
        assert message.startswith("no persistent volumes available for this claim and no storage class is set")
        assert "of 3 available volumes of its class and mode are 2 too small, 1 without its access modes" in message


async def test_a_claim_of_a_class_without_provisioner_says_who_must_act() -> None:
    """Item 22.3: once, not every 15 seconds."""

    async with plain() as harness:
        await harness.create("classes", storage_class("manual", provisioner="kubernetes.io/no-provisioner"))
        await harness.create("claims", claim("c", storageClassName="manual"))
        await harness.start()
        await asyncio.sleep(600.0)
        assert harness.events == {"Warning ProvisioningFailed": 1}
        assert "an administrator must add one" in harness.plane.reason("claims", "default/c")


async def test_a_delayed_claim_says_for_whom_it_waits() -> None:
    """Item 22.2: the text follows the pods, it does not stay what it first was."""

    async with plain() as harness:
        await harness.create("classes", storage_class("late", volumeBindingMode="WaitForFirstConsumer"))
        await harness.create("claims", claim("c", storageClassName="late"))
        await harness.start()
        await asyncio.sleep(1.0)
        for name in ("p", "q"):
            mount = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
            spec = {"containers": [{"name": "c", "image": "x"}], "volumes": [mount]}
            await harness.create("pods", {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
            await asyncio.sleep(1.0)
        assert harness.messages("WaitForFirstConsumer") == ["waiting for first consumer to be created before binding"]
        assert harness.messages("WaitForPodScheduled") == [
            "waiting for pod p to be scheduled",
            "waiting for pods p,q to be scheduled",
        ]


async def test_a_delayed_claim_is_bound_to_the_volume_that_the_scheduler_reserved() -> None:
    async with plain() as harness:
        await harness.create("classes", storage_class("late", volumeBindingMode="WaitForFirstConsumer"))
        made = await harness.create("claims", claim("c", storageClassName="late"))
        for name in ("v1", "v2"):
            await harness.create("volumes", volume(name, storageClassName="late"))
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"c": "Pending"}
        body = {
            "metadata": {"annotations": BY_CONTROLLER},
            "spec": {"claimRef": reference("c", uid=made["metadata"]["uid"])},
        }
        await harness.patch("volumes", "v2", body)
        await harness.settle()
        assert (await harness.claim("c"))["spec"]["volumeName"] == "v2"
        assert (await harness.claim("c"))["metadata"]["annotations"] == BOUND | BY_CONTROLLER


async def test_sizes_beyond_64_bits_are_compared_exactly_on_every_way() -> None:
    """Item 21.20: an explicit volume is judged like any other."""

    async with plain() as harness:
        for name, size in (("exact", "20E"), ("short", "19999999999999999999")):
            await harness.create("volumes", volume(name, size))
            await harness.create("claims", claim(name, "20E", volumeName=name))
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"exact": "Bound", "short": "Pending"}
        assert "requested PV is too small" in harness.messages("VolumeMismatch")[0]


async def test_every_object_is_held_once() -> None:
    """Item 20.9: indexes point at what the cache holds."""

    async with plain() as harness:
        await harness.create("volumes", volume("v"))
        await harness.start()
        await harness.settle()
        assert harness.plane.state.free.get("v") is harness.plane.state.volumes.get("v")
