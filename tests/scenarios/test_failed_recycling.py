"""Scrubs that fail, or that nobody wants any more; and the warm pool."""

from __future__ import annotations

import asyncio
import json

import pytest

from scenarios.backends import OK, ScriptedBackend
from scenarios.harness import OURS, Harness, Refused
from scenarios.recycling import GONE, INTENT, by_pod, end, intent, permitted, pods, released
from scenarios.stories import DRIVER, claim, node_runs_pods, storage_class
from volplane import InProgress

# --- failed ------------------------------------------------------------------------------------------------------


async def test_attempts_are_counted_over_restarts_and_then_given_up_until_a_person_says_otherwise() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.start()
        uids = set()
        for attempt in (1, 2, 3):
            pod = await permitted(harness)
            assert pod["metadata"]["annotations"]["volplane.dev/scrub-attempt"] == str(attempt)
            uids.add(pod["metadata"]["uid"])
            await end(harness, pod, "Failed", message=f"disk error {attempt}")
            await asyncio.sleep(0.5)
            await harness.restart()
        await asyncio.sleep(3600.0)
        assert len(uids) == 3
        assert await pods(harness) == []
        failed = await harness.volume("v")
        assert failed["status"]["phase"] == "Failed"
        assert "attempt 3 of 3, the last" in failed["status"]["message"]
        assert f"remove the annotation {INTENT} to try again" in failed["status"]["message"]
        await harness.patch("volumes", "v", {"metadata": {"annotations": {INTENT: None}}})
        await end(harness, await permitted(harness), "Succeeded")
        await harness.settle()
        assert await harness.volumes() == {"v": "Available"}


async def test_the_last_words_of_the_pod_are_told() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.start()
        ended = {"exitCode": 1, "reason": "Error", "message": "not erased: /scrub/lost+found"}
        state = {"name": "scrub", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
        statuses = [{**state, "state": {"terminated": ended}}]
        await end(harness, await permitted(harness), "Failed", reason="DeadlineExceeded", containerStatuses=statuses)
        await asyncio.sleep(0.5)
        (message,) = harness.messages("VolumeFailedRecycle")
        assert "DeadlineExceeded" in message
        assert "not erased: /scrub/lost+found" in message
        assert (await harness.volume("v"))["status"]["message"] == message


async def test_a_deleted_pod_is_a_failed_attempt() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.start()
        for attempt in (1, 2, 3):
            pod = await permitted(harness)
            assert (await intent(harness)).get("attempt", 1) == attempt
            await harness.delete("pods", pod["metadata"]["name"], OURS, grace=0)
            await asyncio.sleep(0.1)
        await harness.settle()
        assert await pods(harness) == []
        assert (await harness.volume("v"))["status"]["phase"] == "Failed"


async def test_a_backend_that_fails_to_erase_is_called_less_and_less_often() -> None:
    """Item 21.13: a broken share does not run a scrub every 15 seconds."""
    backend = ScriptedBackend(DRIVER, {"recycle": ["share is down"]})

    async with Harness(backend) as harness:
        await harness.create("volumes", released())
        await harness.start()
        await asyncio.sleep(1.0)
        assert (await harness.volume("v"))["status"]["message"] == "Recycle failed: share is down"
        await asyncio.sleep(600.0)
        assert 8 <= backend.calls["recycle"] <= 13
        backend.script("recycle", OK)
        await asyncio.sleep(130.0)
        assert await harness.volumes() == {"v": "Available"}


async def test_a_backend_that_erases_for_long_is_asked_again() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("recycle", InProgress(retry_after=20.0, state={"part": 1}), OK)

    async with Harness(backend) as harness:
        await harness.create("volumes", released())
        await harness.start()
        await asyncio.sleep(10.0)
        assert await harness.volumes() == {"v": "Released"}
        await asyncio.sleep(15.0)
        assert await harness.volumes() == {"v": "Available"}
        assert [dict(request.context.state) for request in backend.requests] == [{}, {"part": 1}]


async def test_the_state_of_a_long_scrub_survives_a_restart() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("recycle", InProgress(retry_after=20.0, state={"part": 1}), OK)

    async with Harness(backend) as lab:
        await lab.create("volumes", released())
        await lab.start()
        await asyncio.sleep(10.0)
        await lab.restart()
        await asyncio.sleep(60.0)
        assert await lab.volumes() == {"v": "Available"}
        assert [dict(request.context.state) for request in backend.requests] == [{}, {"part": 1}]


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_scrub_goes_on_after_the_lease_was_made_anew_or_is_used_no_more(deleted: bool) -> None:
    """The term that began it counts higher than any that follows."""
    begun = {"v": 1, "claim": GONE, "attempt": 1, "fence": "7/former/another-lease"}
    async with Harness(by_pod()) as lab:
        volume = released()
        volume["metadata"]["annotations"][INTENT] = json.dumps(begun)
        await lab.create("volumes", volume)
        await lab.start()
        if deleted:
            await lab.delete("volumes", "v")
            await lab.settle()
            assert await lab.volumes() == {}
        else:
            await end(lab, await permitted(lab), "Succeeded")
            await lab.settle()
            assert await lab.volumes() == {"v": "Available"}


async def test_the_pod_of_a_volume_that_is_deleted_meanwhile_is_removed() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.start()
        await permitted(harness)
        await harness.delete("volumes", "v")
        await harness.settle()
        assert await harness.volumes() == {}
        assert await pods(harness) == []


# --- changed meanwhile -------------------------------------------------------------------------------------------


async def test_a_reference_removed_in_the_middle_does_not_free_the_volume_before_it_is_clean() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.create("claims", claim("next"))
        await harness.start()
        pod = await permitted(harness)
        await harness.patch("volumes", "v", {"spec": {"claimRef": None}})
        await asyncio.sleep(60.0)
        assert await harness.claims() == {"next": "Pending"}
        assert (await permitted(harness))["metadata"]["uid"] == pod["metadata"]["uid"]
        await end(harness, pod, "Succeeded")
        await harness.settle()
        assert await harness.claims() == {"next": "Bound"}


async def test_a_claim_that_names_the_volume_waits_until_it_is_clean() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.start()
        pod = await permitted(harness)
        await harness.create("claims", claim("next", volumeName="v"))
        await harness.patch("volumes", "v", {"spec": {"claimRef": None}})
        await asyncio.sleep(60.0)
        assert await harness.claims() == {"next": "Pending"}
        assert 'volume "v" is being scrubbed' in harness.messages("FailedBinding")
        await end(harness, pod, "Succeeded")
        await harness.settle()
        assert await harness.claims() == {"next": "Bound"}


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
async def test_another_policy_in_the_middle_ends_the_scrub(policy: str) -> None:
    backend = by_pod()

    async with Harness(backend) as harness:
        await harness.create("volumes", released())
        await harness.start()
        await permitted(harness)
        await harness.patch("volumes", "v", {"spec": {"persistentVolumeReclaimPolicy": policy}})
        await harness.settle()
        assert await pods(harness) == []
        if policy == "Retain":
            assert await harness.volumes() == {"v": "Released"}
            assert await intent(harness) == {}
        else:
            assert await harness.volumes() == {}
            assert backend.calls["delete"] == 1


async def test_another_source_in_the_middle_needs_another_pod() -> None:
    """The API server forbids it; whoever edits the store does not."""

    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        with pytest.raises(Refused, match="immutable"):
            await harness.patch("volumes", "v", {"spec": {"hostPath": {"path": "/elsewhere"}}})


async def test_what_a_pod_cannot_mount_is_said() -> None:
    async with Harness(by_pod()) as harness:
        given = released()
        given["spec"]["volumeMode"] = "Block"
        await harness.create("volumes", given)
        await harness.start()
        await harness.settle()
        assert (await harness.volume("v"))["status"]["phase"] == "Failed"
        assert "cannot be mounted in a scrubber pod" in harness.messages("VolumeFailedRecycle")[0]
        assert await pods(harness) == []


# --- warm pool ---------------------------------------------------------------------------------------------------


async def test_a_made_volume_of_a_warm_pool_is_scrubbed_and_taken_by_the_next_claim() -> None:
    backend = by_pod()

    async with Harness(backend) as harness:
        await harness.create("classes", storage_class(parameters={"volplane.dev/on-release": "recycle"}))
        await harness.create("claims", claim("first", storageClassName="fast"))
        await node_runs_pods(harness)
        await harness.start()
        await harness.settle()
        (name,) = await harness.volumes()
        assert (await harness.volume(name))["metadata"]["annotations"]["volplane.dev/on-release"] == "recycle"
        assert dict(backend.requests[0].parameters) == {}, "the parameter is ours, not the backend's"
        await harness.delete("claims", "first")
        await harness.settle()
        assert await harness.volumes() == {name: "Available"}
        await harness.create("claims", claim("second", storageClassName="fast"))
        await harness.settle()
        assert (await harness.claim("second"))["spec"]["volumeName"] == name
        assert backend.calls["provision"] == 1
        await harness.delete("claims", "second")
        await harness.settle()
        await harness.delete("volumes", name)
        await harness.settle()
        assert await harness.volumes() == {}
        assert not backend.assets, "a volume taken out of the pool takes its asset with it"
