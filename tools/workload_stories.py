"""Stories of workloads, told to an API server whose controllers act on them; what the controllers wrote is kept.

Record with a real kube-controller-manager: `python -m tools.workload_stories KUBECONFIG DIRECTORY`. It must run the
controllers statefulset, deployment, replicaset and garbage-collector, and nothing may run pods: the story itself says
when a pod becomes ready, fails or has ended, as a kubelet would. The recordings in tests/integration/workloads were
made with 1.36.2, admission plugin ServiceAccount off.

A recording is a list of steps, each with what was done, the writes of controllers that followed, and the states in
which their objects came to rest. Left out are writes that change nothing but the status of a StatefulSet, ReplicaSet or
Deployment: how many of these there are depends on timing. `managedFields`, times and versions are left out too; uids,
hashes of templates and random names are numbered in their order.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from tools.exchange_clients import Client, connect

Json = dict[str, Any]
Step = list[Any]

KINDS: Final = {
    "StatefulSet": "/apis/apps/v1/{}statefulsets",
    "Deployment": "/apis/apps/v1/{}deployments",
    "ReplicaSet": "/apis/apps/v1/{}replicasets",
    "ControllerRevision": "/apis/apps/v1/{}controllerrevisions",
    "Pod": "/api/v1/{}pods",
    "PersistentVolumeClaim": "/api/v1/{}persistentvolumeclaims",
}
_NAMESPACE: Final = "namespaces/default/"
_OWNERS: Final = ("StatefulSet", "Deployment", "ReplicaSet")
_JSON: Final = {"Content-Type": "application/json"}
_MERGE: Final = {"Content-Type": "application/merge-patch+json"}
_STRATEGIC: Final = {"Content-Type": "application/strategic-merge-patch+json"}
_TIMES: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OF_METADATA: Final = ("managedFields", "resourceVersion", "creationTimestamp", "uid", "selfLink")
_OF_THE_SERVER: Final = (
    *("terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy", "resources", "restartPolicy"),
    *("dnsPolicy", "securityContext", "schedulerName", "terminationGracePeriodSeconds", "enableServiceLinks"),
    *("tolerations", "priority", "preemptionPolicy", "volumeMode", "lastUpdateTime", "apiVersion"),
)
"""What the defaults and the admission of the server add. Exchanges of tests/integration/exchanges compare it."""
_TIME: Final = "2026-11-01T00:00:00Z"


def _template(image: str = "app:1") -> Json:
    return {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "main", "image": image}]}}


def _body(kind: str, **spec: Any) -> Json:
    spec = {"selector": {"matchLabels": {"app": "db"}}, "template": _template(), **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "db"}, "spec": spec}


_CLAIM: Final = {
    "metadata": {"name": "data", "labels": {"tier": "gold"}},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def _sts(**spec: Any) -> Step:
    return ["create", _body("StatefulSet", **{"serviceName": "db", "replicas": 3, **spec})]


def _ready(*pods: str) -> list[Step]:
    return [["ready", pod] for pod in pods]


def _patch(kind: str, **spec: Any) -> Step:
    return ["patch", kind, {"spec": spec}]


def _image(kind: str, image: str) -> Step:
    return _patch(kind, template={"spec": {"containers": [{"name": "main", "image": image}]}})


def _delete(kind: str, policy: str) -> Step:
    return ["delete", kind, policy]


_SETS: Final = "StatefulSet"
STORIES: Final[dict[str, Sequence[Step]]] = {
    "ordered": [
        _sts(volumeClaimTemplates=[_CLAIM]),
        *_ready("db-0", "db-1", "db-2"),
        _patch(_SETS, replicas=1),
        ["end", "db-2"],
        ["end", "db-1"],
        _patch(_SETS, replicas=2),
        *_ready("db-1"),
        ["unready", "db-0"],
        _patch(_SETS, replicas=3),
        *_ready("db-0"),
        _delete(_SETS, "Background"),
        ["end all"],
    ],
    "parallel": [
        _sts(podManagementPolicy="Parallel", volumeClaimTemplates=[_CLAIM]),
        *_ready("db-1"),
        _patch(_SETS, replicas=4),
        ["kubelet"],
        _patch(_SETS, replicas=0),
        ["end all"],
    ],
    "rolling": [
        _sts(),
        *_ready("db-0", "db-1", "db-2"),
        _image(_SETS, "app:2"),
        ["end", "db-2"],
        *_ready("db-2"),
        ["end", "db-1"],
        *_ready("db-1"),
        ["end", "db-0"],
        *_ready("db-0"),
        _image(_SETS, "app:1"),
        ["kubelet"],
        ["kubelet"],
        ["kubelet"],
        ["kubelet"],
        ["kubelet"],
        ["kubelet"],
    ],
    "partition": [
        _sts(updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}),
        *_ready("db-0", "db-1", "db-2"),
        _image(_SETS, "app:2"),
        ["end", "db-2"],
        *_ready("db-2"),
        ["delete pod", "db-0"],
        ["end", "db-0"],
        *_ready("db-0"),
        _patch(_SETS, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}),
        ["end", "db-1"],
        *_ready("db-1"),
        ["end", "db-0"],
        *_ready("db-0"),
    ],
    "broken": [
        _sts(replicas=2),
        *_ready("db-0", "db-1"),
        _image(_SETS, "broken:1"),
        ["end", "db-1"],
        _image(_SETS, "app:3"),
        ["delete pod", "db-1"],
        ["end", "db-1"],
        *_ready("db-1"),
        ["end", "db-0"],
        *_ready("db-0"),
    ],
    "ondelete": [
        _sts(replicas=2, updateStrategy={"type": "OnDelete"}),
        *_ready("db-0", "db-1"),
        _image(_SETS, "app:2"),
        ["delete pod", "db-0"],
        ["end", "db-0"],
        *_ready("db-0"),
        ["delete pod", "db-1"],
        ["end", "db-1"],
        *_ready("db-1"),
    ],
    "retention": [
        _sts(
            replicas=2,
            volumeClaimTemplates=[_CLAIM],
            persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete", "whenScaled": "Delete"},
        ),
        *_ready("db-0", "db-1"),
        _patch(_SETS, replicas=1),
        ["end", "db-1"],
        _delete(_SETS, "Background"),
        ["end", "db-0"],
    ],
    "retention-changed": [
        _sts(replicas=1, volumeClaimTemplates=[_CLAIM]),
        *_ready("db-0"),
        _patch(_SETS, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete", "whenScaled": "Retain"}),
        _patch(_SETS, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Delete"}),
        _patch(_SETS, replicas=0),
        _patch(_SETS, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Retain"}),
        ["end", "db-0"],
    ],
    "failing": [
        _sts(replicas=2),
        ["fail", "db-0"],
        ["end all"],
        *_ready("db-0"),
        ["fail", "db-1"],
        ["end all"],
        *_ready("db-1"),
        ["delete pod", "db-0"],
        ["end", "db-0"],
    ],
    "orphaned": [
        _sts(replicas=2, ordinals={"start": 3}),
        *_ready("db-3", "db-4"),
        _delete(_SETS, "Orphan"),
        _sts(replicas=2, ordinals={"start": 3}),
        _delete(_SETS, "Foreground"),
        ["end", "db-3"],
        ["end", "db-4"],
    ],
    "history": [
        _sts(replicas=1, revisionHistoryLimit=1),
        *_ready("db-0"),
        *[step for n in (2, 3, 4) for step in (_image(_SETS, f"app:{n}"), ["end", "db-0"], ["ready", "db-0"])],
    ],
    "replicas": [
        ["create", _body("ReplicaSet", replicas=3)],
        ["ready", 1],
        _patch("ReplicaSet", replicas=2),
        ["kubelet"],
        ["delete pod", 1],
        ["end", 1],
        ["kubelet"],
        ["fail", 4],
        ["ready", 5],
        _delete("ReplicaSet", "Background"),
        ["end all"],
    ],
    "deployed": [
        ["create", _body("Deployment", replicas=3)],
        ["ready", 1],
        ["ready", 2],
        ["ready", 3],
        _image("Deployment", "app:2"),
        *[["kubelet"] for _ in range(8)],
        _image("Deployment", "app:1"),
        *[["kubelet"] for _ in range(8)],
        _patch("Deployment", replicas=1),
        ["kubelet"],
        _delete("Deployment", "Background"),
        ["end all"],
    ],
    "recreated": [
        ["create", _body("Deployment", replicas=2, strategy={"type": "Recreate"}, revisionHistoryLimit=0)],
        ["kubelet"],
        _image("Deployment", "app:2"),
        ["end", 1],
        ["end", 2],
        ["kubelet"],
        _delete("Deployment", "Foreground"),
        ["end all"],
    ],
    "proportional": [
        [
            "create",
            _body("Deployment", replicas=10, strategy={"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}}),
        ],
        ["kubelet"],
        _image("Deployment", "app:2"),
        _patch("Deployment", replicas=15),
        _patch("Deployment", paused=True),
        _patch("Deployment", replicas=5),
        _patch("Deployment", paused=False),
        *[["kubelet"] for _ in range(6)],
    ],
}
"""create BODY; patch KIND BODY; delete KIND POLICY; of pods, by name or number: ready, unready, fail, end (it has
stopped after its deletion), delete pod; end all; kubelet: each pod is made ready, or ends if it is being deleted."""


class Teller:
    """Tells stories to one server. rest: seconds without a write after which the controllers are at rest."""

    def __init__(self, client: Client, rest: float) -> None:
        self._client = client
        self._rest = rest
        self._numbers: dict[str, str] = {}

    async def tell(self, steps: Sequence[Step]) -> list[Json]:
        """Carry out the steps; what is to be compared, with one entry a step."""
        self._numbers.clear()
        told = []
        known = await self._state()
        for step in steps:
            begin = await self._version()
            done = await self._do(step)
            await self._quiet()
            events = await self._events(begin)
            written = [(self._write(event, known), _version(event["object"])) for event in events]
            writes = [write for write, version in written if write is not None and version not in done]
            known = await self._state()
            told.append({"step": step, "writes": writes, "rest": self._at_rest(known)})
        return told

    # What is asked

    async def _call(self, method: str, path: str, body: Any = None, headers: Json = _JSON) -> Json:
        path, _, query = path.partition("?")
        pairs = [tuple(pair.split("=")) for pair in query.split("&") if pair]
        data = b"" if body is None else json.dumps(body).encode()
        reply = await self._client.send(method, path, pairs, dict(headers) if data else {}, data)  # type: ignore[arg-type]
        if reply.status >= 300:
            raise AssertionError(f"{method} {path}: {reply.status} {reply.body}")
        return reply.body  # type: ignore[no-any-return]

    async def _state(self) -> dict[str, Json]:
        """All objects by uid, each kind in the order of creation."""
        found: dict[str, Json] = {}
        for kind, path in KINDS.items():
            for item in (await self._call("GET", path.format(_NAMESPACE)))["items"]:
                found[item["metadata"]["uid"]] = {**item, "kind": kind}
        return found

    async def _version(self) -> str:
        return str((await self._call("GET", KINDS["Pod"].format(_NAMESPACE)))["metadata"]["resourceVersion"])

    async def _quiet(self) -> None:
        before: list[str] = []
        while True:
            await asyncio.sleep(self._rest)
            now = sorted(map(_version, (await self._state()).values()))
            if now == before:
                return
            before = now

    async def _events(self, begin: str) -> list[Json]:
        query = [("watch", "true"), ("resourceVersion", begin), ("timeoutSeconds", "1")]
        watches = (self._client.watch(path.format(_NAMESPACE), query, {}) for path in KINDS.values())
        events: list[Json] = []
        for kind, reply in zip(KINDS, await asyncio.gather(*watches), strict=True):
            for event in reply.events:
                event["object"]["kind"] = kind
                events.append(event)
        return sorted(events, key=lambda event: int(_version(event["object"])))

    # What is done

    async def _do(self, step: Step) -> set[str]:
        """Carry out a step. Returns the versions that it wrote itself."""
        match step:
            case ["create", body]:
                return _versions(await self._call("POST", self._path(body["kind"]), body))
            case ["patch", kind, body]:
                return _versions(await self._call("PATCH", f"{self._path(kind)}/db", body, _STRATEGIC))
            case ["delete", kind, policy]:
                options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}
                return _versions(await self._call("DELETE", f"{self._path(kind)}/db", options))
            case [verb, pod]:
                return await self._pod(verb, self._pod_name(pod))
        pods = [each for each in (await self._state()).values() if each["kind"] == "Pod"]
        done: set[str] = set()
        for pod in sorted(pods, key=lambda each: int(re.sub(r"\D", "", self._text(each["metadata"]["name"])))):
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                done |= await self._pod("end", name)
            elif step == ["kubelet"] and not _is_ready(pod):
                done |= await self._pod("ready", name)
        return done

    def _path(self, kind: str) -> str:
        return KINDS[kind].format(_NAMESPACE)

    def _pod_name(self, pod: str | int) -> str:
        if isinstance(pod, str):
            return pod
        return next(name for name, number in self._numbers.items() if number == f"<pod {pod}>")

    async def _pod(self, verb: str, name: str) -> set[str]:
        path = f"{self._path('Pod')}/{name}"
        if verb == "delete pod":
            return _versions(await self._call("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1"}))
        if verb == "end":
            options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
            return _versions(await self._call("DELETE", path, options))
        pod = await self._call("GET", path)
        done: set[str] = set()
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": "node-a"}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            await self._call("POST", f"{path}/binding", binding)
            done |= _versions(await self._call("GET", path))
        ready = "True" if verb == "ready" else "False"
        conditions = [
            {"type": kind, "status": ready, "lastTransitionTime": _TIME, "lastProbeTime": None}
            for kind in ("ContainersReady", "Ready")
        ]
        status = {"phase": "Failed" if verb == "fail" else "Running", "conditions": conditions}
        return done | _versions(await self._call("PATCH", f"{path}/status", {"status": status}, _STRATEGIC))

    # What is kept

    def _write(self, event: Json, known: dict[str, Json]) -> Json | None:
        obj = event["object"]
        kind, uid = obj["kind"], obj["metadata"]["uid"]
        self._learn(obj)
        name = self._text(obj["metadata"]["name"])
        if event["type"] == "DELETED":
            known.pop(uid, None)
            return {"deleted": f"{kind} {name}"}
        before, known[uid] = known.get(uid), deepcopy(obj)
        if before is None:
            return {"added": f"{kind} {name}", "object": self._normalised(obj)}
        changes = _changes(self._normalised(before), self._normalised(obj))
        if kind in _OWNERS:
            changes.pop("status", None)
        if changes == {"metadata": {"deletionGracePeriodSeconds": 0}}:
            return None  # the story has ended the pod
        return {"changed": f"{kind} {name}", "changes": changes} if changes else None

    def _at_rest(self, known: dict[str, Json]) -> dict[str, Any]:
        """Status of the owners; of the others that they exist, and whether they are being deleted."""
        rest: dict[str, Any] = {}
        for obj in known.values():
            meta, kind = obj["metadata"], obj["kind"]
            self._learn(obj)
            said = self._normalised(obj).get("status", {}) if kind in _OWNERS else {}
            if "deletionTimestamp" in meta:
                said = {"deleting": True, **said}
            rest[f"{kind} {self._text(meta['name'])}"] = said
        return dict(sorted(rest.items()))

    def _learn(self, obj: Json) -> None:
        """Number what is random in an object: hashes of templates, and the names of pods of ReplicaSets."""
        kind, meta = obj["kind"], obj["metadata"]
        labels = meta.get("labels", {})
        name = meta["name"]
        self._numbers.setdefault(meta["uid"], f"<uid of {kind} {self._text(name)}>")
        if kind == "ControllerRevision":
            self._number(name.removeprefix("db-"), "hash")
        elif kind == "ReplicaSet" and "pod-template-hash" in labels:
            self._number(labels["pod-template-hash"], "hash")
        elif kind == "Pod" and "statefulset.kubernetes.io/pod-name" not in labels:
            self._number(name, "pod")
        self._numbers[meta["uid"]] = f"<uid of {kind} {self._text(name)}>"

    def _number(self, text: str, what: str) -> None:
        if text not in self._numbers:
            self._numbers[text] = f"<{what} {sum(each.startswith(f'<{what} ') for each in self._numbers.values()) + 1}>"

    def _text(self, text: str) -> str:
        if text in self._numbers:
            return self._numbers[text]
        if _TIMES.fullmatch(text):
            return "<time>"
        for random, number in self._numbers.items():
            if (
                number.startswith("<hash") and re.search(rf"(?<![a-z0-9]){random}(?![a-z0-9])", text)
            ) or number.startswith("<pod"):
                text = text.replace(random, number)
        return _UID.sub("<uid>", text)

    def _normalised(self, value: Any) -> Any:
        if isinstance(value, dict):
            dropped = _OF_METADATA if "namespace" in value and "name" in value else _OF_THE_SERVER
            kept = {key: self._normalised(item) for key, item in value.items() if key not in dropped}
            if kept.get("kind") in KINDS and kept["kind"] not in _OWNERS and "metadata" in kept:
                kept.pop("status", None)
            return kept
        if isinstance(value, list):
            return [self._normalised(item) for item in value]
        return self._text(value) if isinstance(value, str) else value


def _version(obj: Json) -> str:
    return str(obj["metadata"]["resourceVersion"])


def _versions(answer: Json) -> set[str]:
    return {_version(answer)} if "resourceVersion" in answer.get("metadata", {}) else set()


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _changes(before: Any, after: Any) -> Any:
    """What differs, as in a merge patch."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    changes = {key: None for key in before if key not in after}
    for key, value in after.items():
        if before.get(key) != value:
            changes[key] = _changes(before.get(key), value)
    return changes


def encoded(told: Sequence[Json]) -> str:
    """The text of a recording: a line for each write and each object at rest."""
    steps = []
    for each in told:
        writes = ",\n".join(f"  {json.dumps(write)}" for write in each["writes"])
        rest = ",\n".join(f"  {json.dumps(name)}: {json.dumps(said)}" for name, said in each["rest"].items())
        step = json.dumps(each["step"])
        steps.append(f'{{"step": {step},\n "writes": [\n{writes}],\n "rest": {{\n{rest}}}}}')
    return "[\n" + ",\n".join(steps) + "\n]\n"


async def _main(kubeconfig: str, directory: Path, only: Sequence[str]) -> None:
    async with connect(kubeconfig) as client:
        for name, steps in STORIES.items():
            if only and name not in only:
                continue
            told = await Teller(client, rest=1.5).tell(steps)
            (directory / f"{name}.json").write_text(encoded(told))
            await _clear(client)
            print(name, flush=True)


async def _clear(client: Client) -> None:
    for path in KINDS.values():
        body = json.dumps({"gracePeriodSeconds": 0, "propagationPolicy": "Background"}).encode()
        await client.send("DELETE", path.format(_NAMESPACE), [], dict(_JSON), body)
    await asyncio.sleep(2)
    for path in KINDS.values():
        listed = await client.send("GET", path.format(_NAMESPACE), [], {}, b"")
        for item in listed.body["items"]:
            one = f"{path.format(_NAMESPACE)}/{item['metadata']['name']}"
            await client.send("PATCH", one, [], dict(_MERGE), b'{"metadata":{"finalizers":null}}')
            await client.send("DELETE", one, [], dict(_JSON), b'{"gracePeriodSeconds":0}')
    await asyncio.sleep(2)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
