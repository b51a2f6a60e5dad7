"""Short lives of claims and volumes, told by people; the control plane does the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from scenarios.backends import ScriptedBackend
from scenarios.harness import Harness, Json, Refused

DRIVER = "disk.example.com"
GIB = 2**30


def volume(name: str, size: str = "1Gi", **spec: Any) -> Json:
    base = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": f"/static/{name}"},
    }
    return {"metadata": {"name": name}, "spec": {**base, **spec}}


def claim(name: str, size: str = "1Gi", **spec: Any) -> Json:
    base = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, "storageClassName": ""}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {**base, **spec}}


def storage_class(name: str = "fast", **more: Any) -> Json:
    return {"metadata": {"name": name}, "provisioner": DRIVER, **more}


def reference(name: str, **more: Any) -> Json:
    return {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default", "name": name, **more}


async def node_runs_pods(harness: Harness) -> None:
    """A node on which every pod that may run succeeds at once."""

    async def finish(event: str, pod: Json) -> None:
        gated = pod["spec"].get("schedulingGates")
        if event == "DELETED" or gated or pod["status"].get("phase") == "Succeeded":
            return
        meta = pod["metadata"]
        try:
            await harness.patch(
                "pods", meta["name"], {"status": {"phase": "Succeeded"}}, meta["namespace"], subresource="status"
            )
        except Refused as error:
            if error.status != 404:
                raise

    harness.follow("pods", finish)


@dataclass(frozen=True)
class Story:
    """prepare: before the controller starts. acts: what people do, each once all is quiet after the one before."""

    name: str
    backend: Callable[[], ScriptedBackend]
    prepare: Callable[[Harness], Awaitable[None]]
    acts: tuple[Callable[[Harness], Awaitable[None]], ...] = field(default=())

    def __str__(self) -> str:
        return self.name


async def play(harness: Harness, story: Story) -> None:
    await node_runs_pods(harness)
    await story.prepare(harness)
    await harness.start()
    await harness.settle()
    for act in story.acts:
        await act(harness)
        await harness.settle()


def _creating(**objects: list[Json]) -> Callable[[Harness], Awaitable[None]]:
    async def create(harness: Harness) -> None:
        for kind in ("classes", "nodes", "claims", "volumes", "pods"):
            for body in objects.get(kind, ()):
                await harness.create(kind, body)

    return create


def _deleting(kind: str, *names: str) -> Callable[[Harness], Awaitable[None]]:
    async def delete(harness: Harness) -> None:
        for name in names:
            await harness.delete(kind, name)

    return delete


async def _delete_volumes(harness: Harness) -> None:
    for item in await harness.everything("volumes"):
        await harness.delete("volumes", item["metadata"]["name"])


async def _annotate(harness: Harness, name: str, annotations: dict[str, str]) -> None:
    await harness.patch("claims", name, {"metadata": {"annotations": annotations}})


def _plain() -> ScriptedBackend:
    return ScriptedBackend(DRIVER)


def _with_pod() -> ScriptedBackend:
    return ScriptedBackend(DRIVER, recycler_pod=True)


STORIES = (
    Story(
        "a claim takes the smaller of two volumes and leaves it again",
        _plain,
        _creating(volumes=[volume("small"), volume("large", "5Gi")]),
        (_creating(claims=[claim("c")]), _deleting("claims", "c")),
    ),
    Story(
        "a claim names its volume",
        _plain,
        _creating(claims=[claim("c", volumeName="large")], volumes=[volume("small"), volume("large", "5Gi")]),
    ),
    Story(
        "a volume is reserved for a claim",
        _plain,
        _creating(claims=[claim("c")], volumes=[volume("small"), volume("large", "5Gi", claimRef=reference("c"))]),
        (_deleting("claims", "c"),),
    ),
    Story(
        "two claims want the only volume",
        _plain,
        _creating(claims=[claim("a"), claim("b")], volumes=[volume("only")]),
        (_deleting("claims", "a"),),
    ),
    Story(
        "a volume is made for a claim and goes with it",
        _plain,
        _creating(classes=[storage_class()], claims=[claim("c", storageClassName="fast")]),
        (_deleting("claims", "c"),),
    ),
    Story(
        "the made volume is deleted before its claim",
        _plain,
        _creating(classes=[storage_class()], claims=[claim("c", storageClassName="fast")]),
        (_delete_volumes, _deleting("claims", "c")),
    ),
    Story(
        "a static volume is deleted with its asset",
        _plain,
        _creating(claims=[claim("c")], volumes=[volume("v", persistentVolumeReclaimPolicy="Delete")]),
        (_deleting("claims", "c"),),
    ),
    Story(
        "a released volume is scrubbed by a pod",
        _with_pod,
        _creating(claims=[claim("c")], volumes=[volume("v", persistentVolumeReclaimPolicy="Recycle")]),
        (_deleting("claims", "c"), _creating(claims=[claim("next")])),
    ),
    Story(
        "a released volume is scrubbed by its backend",
        _plain,
        _creating(claims=[claim("c")], volumes=[volume("v", persistentVolumeReclaimPolicy="Recycle")]),
        (_deleting("claims", "c"), _creating(claims=[claim("next")])),
    ),
    Story(
        "a made volume is scrubbed and offered again",
        _with_pod,
        _creating(
            classes=[storage_class(parameters={"volplane.dev/on-release": "recycle"})],
            claims=[claim("c", storageClassName="fast")],
        ),
        (_deleting("claims", "c"), _creating(claims=[claim("next", storageClassName="fast")])),
    ),
    Story(
        "a claim without a class gets the default one",
        _plain,
        _creating(claims=[{**claim("c"), "spec": {k: v for k, v in claim("c")["spec"].items() if "Class" not in k}}]),
        (
            _creating(
                classes=[
                    {
                        **storage_class(),
                        "metadata": {
                            "name": "fast",
                            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                        },
                    }
                ]
            ),
        ),
    ),
    Story(
        "a claim waits for its first consumer",
        _plain,
        _creating(
            classes=[storage_class(volumeBindingMode="WaitForFirstConsumer")],
            nodes=[{"metadata": {"name": "node1"}}],
            claims=[claim("c", storageClassName="fast")],
        ),
        (
            lambda harness: _annotate(harness, "c", {"volume.kubernetes.io/selected-node": "node1"}),
            _deleting("claims", "c"),
        ),
    ),
)


async def summary(harness: Harness) -> dict[str, Any]:
    """The world without its uids, versions and times: what two runs of a story can be compared by."""
    claims = await harness.everything("claims")
    names = {item["metadata"]["uid"]: item["metadata"]["name"] for item in claims} | harness.known_uids
    told: dict[str, Any] = {}
    for kind in ("claims", "volumes", "pods"):
        for item in await harness.everything(kind):
            told[f"{kind}/{_plain_text(item['metadata']['name'], names)}"] = _facts(item, names)
    for backend in harness.backends.values():
        told[f"assets of {backend.name}"] = sorted(_plain_text(name, names) for name in backend.assets)
        told[f"complaints of {backend.name}"] = backend.complaints
    return told


def _plain_text(text: str, names: dict[str, str]) -> str:
    for uid, name in names.items():
        text = text.replace(uid, f"<{name}>")
    return text


def _facts(item: Json, names: dict[str, str]) -> dict[str, Any]:
    meta, spec, status = item["metadata"], item["spec"], item.get("status", {})
    found = spec.get("claimRef") or {}
    return {
        "phase": status.get("phase"),
        "message": status.get("message"),
        "terminating": "deletionTimestamp" in meta,
        "finalizers": sorted(meta.get("finalizers") or ()),
        "annotations": sorted(meta.get("annotations") or ()),
        "volume": _plain_text(spec.get("volumeName", ""), names),
        "class": spec.get("storageClassName"),
        "claim": f"{found.get('name')}:{_plain_text(found.get('uid', ''), names)}" if found else None,
    }
