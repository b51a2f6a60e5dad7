"""Who may create or change pods in our namespace cannot have a volume called scrubbed that is not."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from scenarios.harness import OURS, Harness, Json, Refused
from scenarios.recycling import by_pod, end, intent, permitted, pods, released
from scenarios.stories import node_runs_pods
from volplane.kube.transport import Request, Response, Transport


def pod_name(volume: Json) -> str:
    return f"volplane-scrub-{hashlib.sha256(volume['metadata']['uid'].encode()).hexdigest()[:16]}"


def forged(volume: Json) -> Json:
    """Everything about our pod that anybody can compute."""
    spec = volume["spec"]
    source = msgspec.json.encode(["hostPath", spec["hostPath"]], order="deterministic")
    annotations = {
        "volplane.dev/scrub-volume": volume["metadata"]["name"],
        "volplane.dev/scrub-volume-uid": volume["metadata"]["uid"],
        "volplane.dev/scrub-claim-uid": spec["claimRef"]["uid"],
        "volplane.dev/scrub-source": hashlib.sha256(source).hexdigest()[:16],
        "volplane.dev/scrub-attempt": "1",
        "volplane.dev/scrub-spec": "{}",
        "volplane.dev/scrub-seal": "0" * 64,
    }
    return {
        "metadata": {"name": pod_name(volume), "namespace": OURS, "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "schedulingGates": [{"name": "volplane.dev/scrub"}],
            "containers": [{"name": "scrub", "image": "x", "command": ["true"]}],
        },
    }


async def test_a_forged_pod_is_not_adopted() -> None:
    ran: list[list[str]] = []

    async with Harness(by_pod()) as harness:
        made = await harness.create("volumes", released())
        await harness.create("pods", forged(await harness.volume("v")))

        async def run(event: str, pod: Json) -> None:
            if event == "DELETED" or pod["spec"].get("schedulingGates") or pod["status"].get("phase") != "Pending":
                return
            ran.append(pod["spec"]["containers"][0]["command"])
            await end(harness, pod, "Succeeded")

        harness.follow("pods", run)
        await harness.start()
        await harness.settle()
        assert await harness.volumes() == {"v": "Available"}
        assert [command[0] for command in ran] == ["/bin/sh"], "only what volplane made has run"
        assert made["metadata"]["uid"]


async def test_a_pod_that_takes_the_place_of_ours_with_its_annotations_is_not_believed() -> None:
    async with Harness(by_pod()) as harness:
        await harness.create("volumes", released())
        await harness.start()
        ours = await permitted(harness)
        await harness.delete("pods", ours["metadata"]["name"], OURS, grace=0)
        copy = forged(await harness.volume("v"))
        copy["metadata"]["annotations"] = ours["metadata"]["annotations"]
        del copy["spec"]["schedulingGates"]
        with contextlib.suppress(Refused):  # ours may be there again already
            await end(harness, await harness.create("pods", copy), "Succeeded")
        await asyncio.sleep(1)
        assert (await harness.volumes())["v"] != "Available"


class Webhook:
    """A mutating admission webhook between the control plane and the server."""

    def __init__(self, inner: Transport, mutate: Callable[[Json], None]) -> None:
        self._inner = inner
        self._mutate = mutate
        self.pods = 0

    async def send(self, request: Request) -> Response:
        if request.method == "POST" and request.path.endswith("/pods") and request.body is not None:
            pod = json.loads(request.body)
            self._mutate(pod)
            self.pods += 1
            request = msgspec.structs.replace(request, body=json.dumps(pod).encode())
        return await self._inner.send(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class WithWebhook(Harness):
    def __init__(self, mutate: Callable[[Json], None]) -> None:
        super().__init__(by_pod())
        self._mutate = mutate

    def way_to_server(self) -> Transport:
        self.webhook = Webhook(super().way_to_server(), self._mutate)
        return self.webhook


def inject_container(pod: Json) -> None:
    pod["spec"]["containers"].append({"name": "proxy", "image": "proxy:1"})


def inject_volume(pod: Json) -> None:
    pod["spec"]["volumes"].append({"name": "x", "hostPath": {"path": "/etc"}})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "x", "mountPath": "/x"})


def change_image(pod: Json) -> None:
    pod["spec"]["containers"][0]["image"] = "mirror.example.com/other:1"


def change_command(pod: Json) -> None:
    pod["spec"]["containers"][0]["command"] = ["true"]


@pytest.mark.parametrize(
    ("mutate", "said"),
    [
        (inject_container, "container 'proxy' was added"),
        (inject_volume, "volume 'x' was added"),
        (change_image, "image changed of container 'scrub'"),
        (change_command, "command changed of container 'scrub'"),
    ],
)
async def test_what_a_webhook_injects_fails_the_scrub_once_and_never_runs(
    mutate: Callable[[Json], None], said: str
) -> None:
    async with WithWebhook(mutate) as harness:
        await node_runs_pods(harness)
        await harness.create("volumes", released())
        await harness.start()
        await harness.settle()
        assert await harness.volumes() == {"v": "Failed"}
        (event,) = set(harness.messages("VolumeFailedRecycle"))
        assert said in event
        assert f"exempt namespace {OURS}" in event
        assert harness.webhook.pods == 1
        assert await pods(harness) == []
        seen = [pod for each in harness.pods_seen.values() for pod in each]
        assert all(pod["spec"].get("schedulingGates") for pod in seen), "it was never let go"

        harness.webhook._mutate = lambda _pod: None
        await harness.patch("volumes", "v", {"metadata": {"annotations": {"volplane.dev/intent": None}}})
        await harness.settle()
        assert await harness.volumes() == {"v": "Available"}, "the webhook is mended and a person has asked again"


def strip_gates(pod: Json) -> None:
    pod["spec"].pop("schedulingGates")


def strip_annotations(pod: Json) -> None:
    pod["metadata"]["annotations"] = {"volplane.dev/scrub-volume": "v"}


@pytest.mark.parametrize("mutate", [strip_gates, strip_annotations])
async def test_a_webhook_that_strips_what_proves_a_pod_ours_ends_in_a_failure_not_in_a_loop(
    mutate: Callable[[Json], None],
) -> None:
    async with WithWebhook(mutate) as harness:
        await harness.create("volumes", released())
        await harness.start()
        await harness.settle()
        assert await harness.volumes() == {"v": "Failed"}
        assert (await intent(harness))["givenUp"]
        assert "look for an admission webhook" in (await intent(harness))["failed"]
        assert harness.webhook.pods <= 12
        assert await pods(harness) == []


def fill_in(pod: Json) -> None:
    """What the default admission plugins of a real API server add."""
    spec: Any = pod["spec"]
    seconds: Mapping[str, Any] = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    spec |= {
        "dnsPolicy": "ClusterFirst",
        "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "tolerations": [{"key": f"node.kubernetes.io/{key}", **seconds} for key in ("not-ready", "unreachable")],
    }
    spec["containers"][0] |= {
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "resources": {"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}},
    }


async def test_what_the_default_plugins_fill_in_is_accepted() -> None:
    async with WithWebhook(fill_in) as harness:
        await node_runs_pods(harness)
        await harness.create("volumes", released())
        await harness.start()
        await harness.settle()
        assert await harness.volumes() == {"v": "Available"}
        assert harness.webhook.pods == 1
