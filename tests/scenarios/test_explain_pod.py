"""A pod is explained from what the server has now, as far as who asks may read it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from scenarios.attach_objects import attached_to, bound_claim, node, pod
from scenarios.attaching import ORDER
from scenarios.faults import refusing
from scenarios.harness import Harness, Json
from scenarios.references import resolved
from volplane.explain.explain import Explanation
from volplane.explain.explain_pod import read_pod
from volplane.kube.client import Client
from volplane_testing.transport import FaultTransport

ELSEWHERE = attached_to("node-b")["name"]
ATTACHED = {
    "metadata": {"name": ELSEWHERE},
    "spec": {
        "attacher": "fake.csi.volplane.test",
        "nodeName": "node-b",
        "source": {"persistentVolumeName": "pv-1"},
    },
    "status": {"attached": True},
}


async def a_pod_that_waits(harness: Harness) -> None:
    """On node-a; its volume is attached to node-b, where another pod uses it."""
    claim, volume = bound_claim()
    objects: Json = {
        "nodes": [node(), node("node-b")],
        "pods": [pod(), pod("other", "node-b")],
        "claims": [claim],
        "volumes": [volume],
        "attachments": [ATTACHED],
    }
    for kind in ORDER:
        for each in objects[kind]:
            await harness.create(kind, await resolved(harness, each))


async def warn(harness: Harness, reason: str, message: str, last: str, *, count: int = 1) -> None:
    about = await harness.see("pods", "pod1")
    involved = {"kind": "Pod", "namespace": "default", "name": "pod1", "uid": about["metadata"]["uid"]}
    kind = "Normal" if reason == "Pulled" else "Warning"
    body: Json = {"metadata": {"name": f"at-{last[14:16]}"}, "involvedObject": involved, "type": kind}
    body |= {"reason": reason, "message": message, "count": count, "lastTimestamp": last}
    await harness.request("POST", "/api/v1/namespaces/default/events", body)


async def told(harness: Harness, name: str = "pod1") -> tuple[Explanation | None, Sequence[str], Sequence[str]]:
    return await read_pod(Client(FaultTransport(harness.way_to_server(), harness.rules)), f"default/{name}")


async def test_a_pod_whose_volume_is_elsewhere_is_told_who_has_it_and_what_was_warned_of_last() -> None:
    async with Harness(disabled_admission=()) as harness:
        await a_pod_that_waits(harness)
        await warn(harness, "FailedMount", "an older try", "2026-01-01T00:00:00Z")
        await warn(harness, "FailedMount", "timed out", "2026-01-01T00:05:00Z", count=3)
        await warn(harness, "Pulled", "no warning", "2026-01-01T00:06:00Z")
        found, claims, _ = await told(harness)
        assert found is not None
        assert found.situation == (
            "pod default/pod1 is Pending on node node-a",
            "volume pv-1 is not attached to node node-a: it is attached to node-b, and may be on one node at a time",
            'Multi-Attach error for volume "pv-1" Volume is already used by pod(s) other',
            "warning FailedMount (3 times, last at 2026-01-01T00:05:00Z): timed out",
        )
        assert claims == ["default/pvc-1"]


async def test_a_pod_that_has_the_disk_through_another_volume_is_named_too() -> None:
    async with Harness(disabled_admission=()) as harness:
        await a_pod_that_waits(harness)
        claim, volume = bound_claim(2)
        await harness.create("claims", claim)
        await harness.create("volumes", await resolved(harness, volume))
        await harness.create("nodes", node("node-c"))
        await harness.create("pods", pod("third", "node-c", claim="pvc-2"))
        source = {"driver": "fake.csi.volplane.test", "volumeHandle": "vol-1"}
        record = {"v": 1, "driver": "fake", "asset": "csi:vol-1", "volume": "pv-1", "uid": "u", "handle": "vol-1"}
        text = json.dumps({**record, "source": "csi", "fields": source, "capacity": 1})
        await harness.patch("attachments", ELSEWHERE, {"metadata": {"annotations": {"volplane.dev/intent": text}}})
        found, _, _ = await told(harness, "third")
        assert found is not None
        assert 'Multi-Attach error for volume "pv-2" Volume is already used by pod(s) other' in found.situation


async def test_who_may_not_read_attachments_is_told_of_the_claims_alone_and_why() -> None:
    async with Harness(disabled_admission=()) as harness:
        await a_pod_that_waits(harness)
        denied = refusing(403, "Forbidden", "volumeattachments is forbidden: you may not list them")
        harness.rules.fault(lambda call: call.what == "list volumeattachments", before=denied)
        found, claims, [doubt] = await told(harness)
        assert found is None
        assert claims == ["default/pvc-1"]
        assert doubt == (
            "what keeps the pod itself from running is not told: volumeattachments is forbidden: you may not list them"
        )


async def test_a_pod_that_is_not_there_and_one_without_a_claim_are_said() -> None:
    async with Harness(disabled_admission=()) as harness:
        await harness.create("pods", pod(volumes=[{"name": "scratch", "emptyDir": {}}]))
        (absent, _, _), (plain, _, _) = await told(harness, "nope"), await told(harness)
        assert absent is not None
        assert (absent.found, absent.situation) == (False, ("there is no pod default/nope",))
        assert plain is not None
        assert (plain.found, plain.situation) == (True, ("pod default/pod1 uses no claim",))
