"""Released volumes under policy Recycle: scrubbed by one pod, verified, offered again, whatever interrupts it."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from scenarios.harness import OURS, Harness, Json
from scenarios.recycling import by_pod, end, intent, permitted, pods, released, user
from scenarios.stories import claim, node_runs_pods, reference, volume

# --- the pod -----------------------------------------------------------------------------------------------------


async def test_the_pod_is_named_after_the_volume_and_cannot_do_more_than_it_must() -> None:
    """Item 22.5: no root `rm` in namespace default."""

    async with Harness(by_pod()) as harness:
        made = await harness.create("volumes", released())
        await harness.start()
        pod = await permitted(harness)
        digest = hashlib.sha256(made["metadata"]["uid"].encode()).hexdigest()[:16]
        assert pod["metadata"]["name"] == f"volplane-scrub-{digest}"
        assert pod["metadata"]["namespace"] == OURS
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["activeDeadlineSeconds"] == 330
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC", "nodeName"))
        (container,) = spec["containers"]
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]}
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False


async def test_the_gate_is_lifted_only_once_the_volume_names_the_pod() -> None:
    seen: list[tuple[str, bool]] = []

    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())

        async def look(event: str, pod: Json) -> None:
            if event != "DELETED" and not pod["spec"].get("schedulingGates"):
                seen.append(((await intent(harness)).get("pod", ""), True))
                assert seen[-1][0] == pod["metadata"]["uid"]

        harness.follow("pods", look)
        await harness.start()
        await end(harness, await permitted(harness), "Succeeded")
        await harness.settle()
        assert seen
        assert await harness.volumes() == {"v": "Available"}


async def test_the_pod_goes_before_the_volume_is_offered() -> None:
    order: list[str] = []

    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        harness.follow("pods", lambda event, _pod: order.append("pod gone") if event == "DELETED" else None)
        harness.follow(
            "volumes", lambda _e, item: order.append("offered") if not item["spec"].get("claimRef") else None
        )
        await harness.start()
        await end(harness, await permitted(harness), "Succeeded")
        await harness.settle()
        assert order[0] == "pod gone"
        assert "offered" in order


@pytest.mark.parametrize("bound_by_controller", [True, False])
async def test_a_reservation_of_a_person_keeps_its_name(bound_by_controller: bool) -> None:
    async with Harness(by_pod()) as harness:
        given = released()
        if not bound_by_controller:
            del given["metadata"]["annotations"]
        await harness.create("volumes", given)
        await node_runs_pods(harness)
        await harness.start()
        await harness.settle()
        scrubbed = await harness.volume("v")
        ref = scrubbed["spec"].get("claimRef")
        assert ref is None if bound_by_controller else (ref["name"], ref.get("uid")) == ("gone", None)
        assert scrubbed["status"]["phase"] == "Available"
        assert not scrubbed["metadata"].get("annotations")


async def test_a_hundred_volumes_are_scrubbed_at_once_by_a_pod_each() -> None:
    """Item 21.1: nothing is shared between two scrubs."""
    seen: dict[str, set[str]] = {}

    async with Harness(by_pod()) as harness:
        for number in range(100):
            await harness.create("volumes", released(f"v{number}"))

        def note(_event: str, pod: Json) -> None:
            seen.setdefault(pod["metadata"]["name"], set()).add(pod["metadata"]["uid"])

        harness.follow("pods", note)
        await node_runs_pods(harness)
        await harness.start()
        await harness.settle()
        assert set((await harness.volumes()).values()) == {"Available"}
        assert await pods(harness) == []
        assert len(seen) == 100
        assert all(len(uids) == 1 for uids in seen.values())
        assert harness.events == {"Normal VolumeRecycled": 100}


async def test_what_is_said_about_the_pod_is_said_on_the_volume() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.start()
        pod = await permitted(harness)
        about = {"kind": "Pod", "namespace": OURS, "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e1", "namespace": OURS},
            "involvedObject": about,
            "type": "Warning",
            "reason": "FailedScheduling",
            "message": "0/1 nodes are available",
        }
        await harness.request("POST", f"/api/v1/namespaces/{OURS}/events", event)
        await asyncio.sleep(0.1)
        assert harness.events["Warning RecyclerPod"] == 1
        assert harness.messages("RecyclerPod") == ["Recycler pod: 0/1 nodes are available"]
        await harness.restart()
        await asyncio.sleep(1.0)
        assert harness.events["Warning RecyclerPod"] == 1, "it was told before the restart"


# --- interrupted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed"])
async def test_a_pod_is_adopted_after_a_restart(phase: str) -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.start()
        pod = await permitted(harness)
        await harness.kill()
        await end(harness, pod, phase)
        await harness.start()
        await asyncio.sleep(1.0)
        found = {p["metadata"]["uid"] for p in await pods(harness)}
        match phase:
            case "Succeeded":
                assert await harness.volumes() == {"v": "Available"}
            case "Failed":
                assert pod["metadata"]["uid"] not in found
                noted = await intent(harness)
                assert (noted.get("attempt", 1), noted["failed"]) == (1, "pod failed, pod.Status.Message unknown")
            case _:
                assert found == {pod["metadata"]["uid"]}


async def test_a_pod_of_an_earlier_release_is_not_adopted() -> None:
    """The next release of the same volume has the same pod name."""

    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.start()
        pod = await permitted(harness)
        await harness.kill()
        ref = reference("gone", uid="00000000-0000-0000-0000-000000000002")
        await harness.patch("volumes", "v", {"spec": {"claimRef": ref}})
        await end(harness, pod, "Succeeded")
        await harness.start()
        await asyncio.sleep(1.0)
        fresh = await permitted(harness)
        assert fresh["metadata"]["uid"] != pod["metadata"]["uid"]
        assert (await harness.volume("v"))["status"]["phase"] == "Released"


@pytest.mark.parametrize("exact", [True, False])
async def test_a_forged_pod_is_removed_and_proves_nothing(exact: bool) -> None:
    """Also one that copies every annotation: it was let go by nobody, so it is not the permitted one."""

    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.start()
        real = await permitted(harness)
        await harness.kill()
        await harness.delete("pods", real["metadata"]["name"], OURS, grace=0)
        forged = {
            "metadata": {"name": real["metadata"]["name"], "namespace": OURS},
            "spec": {"containers": [{"name": "c", "image": "x"}]},
            "status": {"phase": "Succeeded"},
        }
        if exact:
            forged["metadata"]["annotations"] = real["metadata"]["annotations"]
        await harness.create("pods", forged)
        await harness.start()
        await asyncio.sleep(1.0)
        assert await harness.volumes() != {"v": "Available"}
        fresh = await permitted(harness)
        assert fresh["spec"]["containers"][0]["name"] == "scrub"
        await end(harness, fresh, "Succeeded")
        await harness.settle()
        assert await harness.volumes() == {"v": "Available"}


async def test_a_pod_created_late_by_a_dead_process_never_starts() -> None:
    """Its create takes effect after the scrub is over: it waits behind its gate and is removed."""

    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        bodies: list[Json] = []

        def keep(call: Any) -> bool:
            bodies.append(call.body)
            return False

        harness.rules.fault(lambda call: call.what == "create pods", after=keep)
        await harness.start()
        await end(harness, await permitted(harness), "Succeeded")
        await harness.settle()
        assert await harness.volumes() == {"v": "Available"}
        await harness.request("POST", f"/api/v1/namespaces/{OURS}/pods", bodies[0])
        await harness.settle()
        assert await pods(harness) == []
        assert await harness.volumes() == {"v": "Available"}


async def test_a_volume_still_used_by_pods_is_not_scrubbed_before_they_end() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.create("pods", user())
        await node_runs_pods(harness)
        await harness.start()
        await asyncio.sleep(60.0)
        assert await harness.volumes() == {"v": "Released"}
        assert harness.messages("VolumeFailedRecycle")[0] == "Volume is used by pods: default/user"
        await harness.delete("pods", "user", grace=0)
        await asyncio.sleep(1.0)
        assert await harness.volumes() == {"v": "Available"}


async def test_a_pod_that_no_cache_has_yet_keeps_the_volume_from_the_scrub() -> None:
    """The claim was removed by force: nothing but the pod itself says that its volume is in use."""
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.create("pods", user())
        harness.rules.hide("pods", "default/user")
        await harness.start()
        await asyncio.sleep(60.0)
        assert next(iter(harness.backends.values())).calls["recycle"] == 0
        assert await pods(harness) == []
        assert harness.messages("VolumeFailedRecycle")[0] == "Volume is used by pods: default/user"


async def test_a_pod_of_the_former_claim_is_not_taken_for_one_of_the_claim_that_has_its_name_now() -> None:
    """Found by the simulation: the claim was removed by force under its pod, and made again at once."""
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.create("volumes", volume("other"))
        await harness.create("pods", user())
        await node_runs_pods(harness)
        await asyncio.sleep(2.0)
        await harness.create("claims", claim("gone", volumeName="other"))
        await harness.start()
        await asyncio.sleep(60.0)
        assert (await harness.volumes())["v"] == "Released"
        assert harness.messages("VolumeFailedRecycle")[0] == "Volume is used by pods: default/user"
        await harness.delete("pods", "user", grace=0)
        await asyncio.sleep(1.0)
        assert (await harness.volumes())["v"] == "Available"


async def test_pods_of_a_new_claim_of_that_name_do_not_stop_the_scrub() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("claims", claim("gone", volumeName="other"))
        await harness.create("volumes", volume("other"))
        await harness.create("volumes", released())
        await harness.create("pods", user())
        await harness.start()
        await end(harness, await permitted(harness), "Succeeded")
        await harness.settle()
        assert await harness.volumes() == {"other": "Bound", "v": "Available"}
