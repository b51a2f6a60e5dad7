"""How a row of attach-detach runs and what it compares: the two controllers, and a backend that attaches."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from scenarios.backends import AttachingBackend
from scenarios.faults import refusing
from scenarios.harness import HEAD, Harness, Json
from scenarios.references import place, resolved
from volplane.attach.desired import Pair, pairs_of_pod, users_of
from volplane.state.cluster_state import csi_parts, finished

DRIVER = "fake.csi.volplane.test"
ORDER = ("nodes", "pods", "claims", "volumes", "attachments")
KIND_OF = {head["kind"]: kind for kind, head in HEAD.items()}
CONTROLLERS = frozenset({"attach-detach", "attacher"})
NOTHING_ELSE = {"binder": False, "provisioner": False, "reclaimer": False}
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    unit = "ms" if text.endswith("ms") else text[-1]
    return float(text.removesuffix(unit)) * UNITS[unit]


class Row:
    """One row: its cluster, the steps, and what it compares."""

    def __init__(self, row: Json) -> None:
        self.row = row
        self.inject: Json = row.get("inject") or {}
        config = self.inject.get("config") or {}
        self.backend = AttachingBackend(DRIVER)
        self.manual = config.get("backend") == "manual-attacher"
        self.force_after = seconds(config.get("maxWaitForUnmount", "6m"))
        self.pod_collector = bool((config.get("podGC") or {}).get("running"))
        settings = {
            **NOTHING_ELSE,
            "force_detach_after": None if config.get("disableForceDetachOnTimeout") else self.force_after,
        }
        backends = () if self.manual else (self.backend,)
        self.harness = Harness(*backends, controllers=CONTROLLERS, settings=settings, disabled_admission=())
        self.remembered: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        self.marks: dict[str, int] = {}
        self.on: set[str] = set()
        self.running = False

    async def prepare(self) -> None:
        given: Mapping[str, Any] = self.row["given"]
        for body in self.inject.get("objects", ()):
            await self.harness.create(KIND_OF[body["kind"]], await resolved(self.harness, body))
        for kind in ORDER:
            for each in given.get(kind, ()):
                body = await resolved(self.harness, each)
                body["metadata"].pop("uid", None)
                await self.harness.create(kind, body)
        for each in given.get("attachments", ()):
            if (each.get("status") or {}).get("attached"):
                volume = await self.harness.see("volumes", each["spec"]["source"]["persistentVolumeName"])
                self.backend.attached.add((volume["spec"]["csi"]["volumeHandle"], each["spec"]["nodeName"]))
        if self.inject.get("informerLag"):
            self.harness.rules.hide("nodes", "none yet")  # A watch is filtered from its start or not at all.
        for fault in self.inject.get("backendFaults", ()):
            self.backend.failing.add((fault["call"], fault["node"]))
        for fault in self.inject.get("apiFaults", ()):
            self._refuse(fault)

    def _refuse(self, fault: Json) -> None:
        what = f"{fault['verb']} {fault['resource']}/{fault['subresource']}".replace("patch", "update")
        name = fault.get("name", "")
        before = refusing(fault["status"], "InternalError", "by the scenario")
        if fault.get("initially") != "off":
            self.on.add(name)
        self.harness.rules.fault(lambda c: c.what == what and name in self.on, times=10**6, before=before)

    async def take(self, step: Json) -> None:
        match step["op"]:
            case "start" | "populateActual" | "populateDesired" | "runReconciler" | "runPopulator":
                await self._started()
            case "construct":
                await self.harness.build()
            case "settle" | "advance":
                await self._pass(seconds(step.get("within") or step["by"]))
            case "expect":
                wrong = await self.shortfalls(step["then"])
                assert not wrong, wrong
            case "waitFor":
                await self._wait_for(step)
            case "holdWatch":
                self.harness.rules.hide(step["resource"], step["match"]["name"])
            case "enableFault":
                self.on.add(step["name"])
            case "mark":
                self.marks[step["name"]] = len(self.harness.rules.calls)
            case _:
                await self._change(step)

    async def _change(self, step: Json) -> None:
        """Steps that change objects, or what the caches hold."""
        harness = self.harness
        if step["op"] == "create":
            body = await resolved(harness, step["object"])
            await harness.create(KIND_OF[body["kind"]], body)
            return
        kind, name, namespace = place(self._named(step["ref"]))
        match step["op"]:
            case "delete":
                await harness.delete(kind, name, namespace, grace=step.get("gracePeriodSeconds"))
            case "patch":
                merge = await resolved(harness, step["merge"])
                await harness.patch(kind, name, merge, namespace, subresource=step.get("subresource", ""))
            case "remember":
                self.remembered[step["as"]] = (await harness.see(kind, name, namespace))["metadata"]["uid"]
            case "deliver" | "cacheRemove":
                await self._started()
                if step["op"] == "cacheRemove" or step["event"] == "delete-tombstone":
                    uid = (await harness.see(kind, name, namespace))["metadata"]["uid"]
                    harness.plane.state.pods.observe_deleted(f"{namespace}/{name}", uid)
            case op:
                raise AssertionError(f"unknown step {op}")

    async def _started(self) -> None:
        if self.harness._process is None:
            await self.harness.start()

    async def _pass(self, time: float) -> None:
        """Let time pass; longer where the timer of forced detaches has to end within it."""
        await asyncio.sleep(time)
        if not self.pod_collector:
            return
        for node in await self.harness.everything("nodes"):
            taints = {each["key"] for each in node["spec"].get("taints") or ()}
            for pod in await self.harness.everything("pods"):
                gone = (
                    "deletionTimestamp" in pod["metadata"] and pod["spec"].get("nodeName") == node["metadata"]["name"]
                )
                if gone and "node.kubernetes.io/out-of-service" in taints:
                    await self.harness.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0)
        await asyncio.sleep(time)

    async def _wait_for(self, step: Json) -> None:
        kind, name, namespace = place(step["ref"])
        condition = step["condition"]

        async def holds() -> bool:
            found = await self.harness.get(kind, name, namespace)
            return not self._facts(found, condition)

        await self.harness.until(holds, seconds(step["within"]), step["ref"])

    def _named(self, reference: str) -> str:
        for variable, value in self.variables.items():
            reference = reference.replace(variable, value)
        return reference

    # --- comparing ----------------------------------------------------------------------------------------------

    async def shortfalls(self, then: Json) -> list[str]:
        await self._find_winner(then)
        wrong: list[str] = []
        for key, expected in then.items():
            wrong += await getattr(self, f"_compare_{_snake(key)}")(expected)
        return wrong

    async def _find_winner(self, then: Json) -> None:
        if "multiAttachReported" not in then:
            return
        [attached] = [a for a in await self.harness.everything("attachments") if a["status"]["attached"]]
        for pod in await self.harness.everything("pods"):
            won = pod["spec"]["nodeName"] == attached["spec"]["nodeName"]
            self.variables["$podOnWinner" if won else "$podOnLoser"] = pod["metadata"]["name"]

    async def _compare_attachments(self, expected: list[Json]) -> list[str]:
        if not expected:
            left = await self.harness.everything("attachments")
            return [f"attachments are left: {[each['metadata']['name'] for each in left]}"] if left else []
        wrong: list[str] = []
        for fact in expected:
            found = await self.harness.get("attachments", fact["name"])
            wrong += [f"attachment {fact['name'][:12]}: {text}" for text in self._facts(found, fact)]
        return wrong

    def _facts(self, found: Json | None, fact: Json) -> list[str]:
        if found is None or not fact.get("exists", True):
            return [] if (found is not None) == fact.get("exists", True) else [f"exists: {found is not None}"]
        facts = {
            "spec": found.get("spec"),
            "attached": found.get("status", {}).get("attached"),
            "terminating": "deletionTimestamp" in found["metadata"],
        }
        wrong = [f"{key} is {value}" for key, value in facts.items() if key in fact and fact[key] != value]
        other = fact.get("uidDiffersFrom")
        if other is not None and self.remembered[other] == found["metadata"]["uid"]:
            wrong.append("it is still the same one")
        return wrong

    async def _compare_attach_state(self, expected: list[Json]) -> list[str]:
        wrong = []
        for fact in expected:
            pair = Pair(fact["node"], fact["volume"])
            found = await self.harness.get("attachments", pair.attachment) if csi_parts(pair.volume)[0] else None
            node = await self.harness.get("nodes", pair.node)
            listed = node is not None and pair.volume in _listed(node)
            faulted = bool(self.on) and found is not None and found["status"]["attached"]
            state = "Attached" if listed or faulted else "Detached" if found is None else "Uncertain"
            if state != fact["state"]:
                wrong.append(f"{pair} is {state}, expected {fact['state']}")
        return wrong

    async def _compare_node_status(self, expected: list[Json]) -> list[str]:
        wrong = []
        for fact in expected:
            listed = _listed(await self.harness.see("nodes", fact["node"]))
            missing = set(fact.get("volumesAttachedInclude", ())) - set(listed)
            wrong += [f"{name} is not listed" for name in missing]
            wrong += [f"{name} is listed" for name in set(fact.get("volumesAttachedExclude", ())) & set(listed)]
        return wrong

    async def _compare_backend_calls(self, expected: Json) -> list[str]:
        found = {hook: self.backend.calls[hook] for hook in expected}
        fits = all(_fits(found[hook], count) for hook, count in expected.items())
        return [] if fits else [f"hooks were called {found}, expected {expected}"]

    async def _compare_events(self, expected: list[Json]) -> list[str]:
        wrong = []
        for fact in expected:
            _, name, _ = place(self._named(fact["involved"]))
            found = [
                event
                for event in self.harness.recorded
                if (event.about.name, event.type, event.reason) == (name, fact["type"], fact["reason"])
                and fact.get("messageContains", "") in event.message
                and fact.get("message", event.message).strip() == event.message.strip()
            ]
            count = fact.get("count")
            if not found or (count is not None and len(found) != count):
                told = [f"{e.about.name} {e.reason}: {e.message}" for e in self.harness.recorded]
                wrong.append(f"{len(found)} events {fact}; there are {told}")
        return wrong

    async def _compare_metrics(self, expected: list[Json]) -> list[str]:
        wrong = []
        for fact in expected:
            if fact["name"].startswith("pod_gc"):
                continue  # The pod collector is the test's.
            value = self.harness.metrics.registry.get_sample_value(fact["name"], fact["labels"])
            if not _fits(int(value or 0), fact["delta"]):
                wrong.append(f"{fact['name']} {fact['labels']} is {value}, expected {fact['delta']}")
        return wrong

    async def _compare_pods(self, expected: list[Json]) -> list[str]:
        wrong = []
        for fact in expected:
            found = await self.harness.get("pods", fact["name"], fact["namespace"])
            wrong += [f"pod {fact['name']}: {text}" for text in self._facts(found, fact)]
        return wrong

    async def _compare_write_count(self, expected: int) -> list[str]:
        writes = self.harness.rules.writes()
        own = [what for what in writes if "csidrivers" not in what]
        return [] if len(own) == expected else [f"writes: {own}"]

    async def _compare_attached_node_count(self, expected: Json) -> list[str]:
        wrong = []
        for volume, count in expected.items():
            nodes = [n["metadata"]["name"] for n in await self.harness.everything("nodes") if volume in _listed(n)]
            if len(nodes) != count:
                wrong.append(f"{volume} is attached to {nodes}")
        return wrong

    async def _compare_multi_attach_reported(self, expected: Json) -> list[str]:
        found = [text for text in self.harness.messages("FailedAttachVolume") if text.startswith("Multi-Attach error")]
        return [] if len(found) == expected["count"] else [f"multi-attach was told {len(found)} times"]

    async def _compare_desired(self, expected: list[Json]) -> list[str]:
        wrong = []
        for fact in expected:
            present = bool(users_of(Pair(fact["node"], fact["volume"]), self.harness.plane.state))
            if present != fact["present"]:
                wrong.append(f"{fact['volume']} on {fact['node']} is wanted: {present}")
        return wrong

    async def _compare_desired_pods(self, expected: int) -> list[str]:
        state = self.harness.plane.state
        pods = [p for p in state.pods.values() if not finished(p) and any(pairs_of_pod(p, state))]
        return [] if len(pods) == expected else [f"{len(pods)} pods want volumes, expected {expected}"]

    async def _compare_report_as_attached(self, expected: list[Json]) -> list[str]:
        """What could not be withdrawn is still reported."""
        return await self._compare_node_status(
            [{"node": fact["node"], "volumesAttachedInclude": [fact["volume"]]} for fact in expected]
        )

    async def _compare_writes_since_mark(self, expected: Json) -> list[str]:
        calls = self.harness.rules.calls[self.marks[expected["mark"]] :]
        count = sum(call.what == "update nodes/status" for call in calls)
        return [] if count == expected["nodes/status"] else [f"{count} writes of node status since the mark"]

    async def _compare_read_write_order(self, expected: list[str]) -> list[str]:
        """The last write of the node's status, and the live read after it."""
        calls = self.harness.rules.calls
        last = max(number for number, call in enumerate(calls) if call.what == "update nodes/status")
        told = "withdraw" if calls[last].status < 300 else "refused"
        made = [f"patch nodes/status ({told})"]
        made += ["get nodes (live)" for call in calls[last:] if call.what == "get nodes"][:1]
        if not any(call.what == "delete volumeattachments" for call in calls):
            made.append("no delete volumeattachments")
        return [] if made == expected else [f"reads and writes were {made}"]

    async def _compare_error(self, expected: None) -> list[str]:
        return []

    async def _compare_errors(self, expected: int) -> list[str]:
        errors = [text for each in self.harness.reasons().values() for text in each.values() if "error" in text]
        return [] if len(errors) == expected else errors


def _snake(key: str) -> str:
    return re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", key)


def _fits(count: int, expected: Any) -> bool:
    if isinstance(expected, Mapping):
        return bool(expected.get("min", 0) <= count <= expected.get("max", count))
    return bool(count == expected)


def _listed(node: Json) -> list[str]:
    return [each["name"] for each in node["status"].get("volumesAttached") or ()]
