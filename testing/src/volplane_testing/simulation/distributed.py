"""Schedules of trouble for storage on nodes: one seed is one run, in virtual time, with everything that may go wrong.

People make and delete claims, edit labels and published room; processes die at any moment, two serve one node; nodes
stop being ready, go, register anew with their disk or with another one; requests and answers are lost; a process
reaches the API server and not its disk, or its disk and not the API server; clocks are wrong by minutes. At every write
(`WriteRules`), after every step and at the end, when all is well again and everything is quiet, what must hold is
checked (`Broken`).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from volplane._delays import WATCH_ENDED
from volplane.kube import names
from volplane.state.naming import node_hash
from volplane_testing.distributed import CENTRAL, DistributedCluster
from volplane_testing.simulation.distributed_rules import WriteRules
from volplane_testing.simulation.distributed_state import check_end, check_state, node_of, size_of
from volplane_testing.transport import answer_lost, refuse, requests, unanswered

__all__ = ["DistributedRun"]

NODES: Final = ("a", "b", "c")
GONE_AFTER: Final = 60.0
GIB: Final = 1 << 30
CAPACITY: Final = 12 * GIB
"""Of each disk; a few claims fill it."""
_CLAIMS, _VOLUMES, _ROOM = "persistentvolumeclaims", "persistentvolumes", "csistoragecapacities"


class DistributedRun:
    """One schedule. `run` raises Broken; `trace` then tells what happened, one line a step."""

    def __init__(self, seed: int, steps: int = 40) -> None:
        self.trace: list[str] = []
        self._random = Random(seed)  # noqa: S311 - a schedule, no secrets
        self._steps = steps
        self._cluster: DistributedCluster
        self._rules: WriteRules
        self._made = 0
        self._twins: set[str] = set()
        self._down: set[str] = set()
        """Nodes without a process."""
        self._away: set[str] = set()
        """Nodes that are not there, or not ready."""
        self._replaced: set[int] = set()
        """Disks that are gone for good, by identity."""
        self._apart: dict[str, float] = {}
        """Processes that do not reach the API server -> loop time from which they do."""
        self._unreachable: dict[str, float] = {}
        """Nodes whose disks cannot be reached -> loop time from which they can."""

    async def run(self) -> None:
        """Run the whole schedule. Raises Broken."""
        self._rules = WriteRules(gone_after=GONE_AFTER, immediate=frozenset({"now", "turns"}))
        playing = asyncio.ensure_future(self._play())
        try:
            either: set[asyncio.Future[Any]] = {playing, self._rules.broken}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            playing.cancel()
        if self._rules.broken.done():
            raise self._rules.broken.result()
        playing.result()

    async def _play(self) -> None:
        seed = self._random.randrange(1 << 30)
        cluster = DistributedCluster(
            NODES, capacity=CAPACITY, seed=seed, transport=lambda name, _: self._rules.transport(cluster, name)
        )
        async with cluster:
            self._cluster = cluster
            self._rules.follow(cluster)
            gone = {names.NODE_GONE_AFTER: f"{GONE_AFTER:g}s"}
            cluster.create_class("now", parameters=gone)
            cluster.create_class("turns", parameters={**gone, names.PLACEMENT: "round-robin"})
            cluster.create_class("late", late=True, parameters=gone)
            await cluster.settle()
            for _ in range(self._steps):
                await self._step()
                check_state(self._cluster)
            await self._heal()
            check_state(self._cluster)
            check_end(cluster, self._rules.given_up)

    # --- what may happen -----------------------------------------------------------------------------------------

    async def _step(self) -> None:
        actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (12, self._create_claim),
            (3, self._burst),
            (5, self._delete_claim),
            (4, self._select_node),
            (4, self._edit_label),
            (2, self._mislead),
            (2, self._edit_room),
            (5, self._restart),
            (2, self._stop),
            (2, self._twin),
            (3, self._lose_node),
            (3, self._lose_in_the_middle),
            (3, self._return_node),
            (6, self._fault),
            (6, self._wait),
            (2, self._cut_off),
            (2, self._lose_disk),
            (1, self._set_clock),
        ]
        weights = [weight for weight, _ in actions]
        (chosen,) = self._random.choices([action for _, action in actions], weights)
        await chosen()
        self._end_partitions()
        await asyncio.sleep(self._random.choice((0.0, 0.005, 0.05, 0.5, 3.0)))

    def _tell(self, text: str) -> None:
        self.trace.append(f"{asyncio.get_running_loop().time():9.3f} {text}")

    async def _create_claim(self) -> None:
        self._made += 1
        storage_class = self._random.choice(("now", "now", "turns", "late"))
        size = self._random.choice(("1Gi", "1Gi", "2Gi", "7Gi"))
        node = self._random.choice(NODES) if storage_class == "late" and self._random.random() < 0.7 else ""
        self._cluster.create_claim(f"c{self._made}", storage_class, size, node=node)
        self._tell(f"claim c{self._made} of class {storage_class} asks for {size} {node}")

    async def _burst(self) -> None:
        """More is asked for at once than some nodes have."""
        for _ in range(self._random.randint(3, 6)):
            await self._create_claim()

    def _claims(self) -> list[dict[str, Any]]:
        return self._cluster.api.all(_CLAIMS)

    async def _delete_claim(self) -> None:
        if found := self._claims():
            name = self._random.choice(found)["metadata"]["name"]
            self._cluster.api.delete(_CLAIMS, name)
            self._tell(f"claim {name} is deleted")

    async def _select_node(self) -> None:
        """Place a pod, as the scheduler does."""
        waiting = [
            each
            for each in self._claims()
            if each["spec"]["storageClassName"] == "late"
            and names.SELECTED_NODE not in (each["metadata"].get("annotations") or {})
            and not each["spec"].get("volumeName")
        ]
        if waiting:
            self._select(self._random.choice(waiting), self._random.choice(NODES))

    def _select(self, claim: dict[str, Any], node: str) -> None:
        name = claim["metadata"]["name"]
        self._cluster.api.patch(_CLAIMS, name, {"metadata": {"annotations": {names.SELECTED_NODE: node}}})
        self._tell(f"the scheduler selects {node} for {name}")

    async def _edit_label(self) -> None:
        resource = self._random.choice((_CLAIMS, _VOLUMES))
        if found := self._cluster.api.all(resource):
            name = self._random.choice(found)["metadata"]["name"]
            label = self._random.choice((None, "wrong", *map(node_hash, NODES)))
            self._rules.edited = asyncio.get_running_loop().time()
            self._cluster.api.patch(resource, name, {"metadata": {"labels": {names.NODE: label}}})
            self._tell(f"somebody writes label {label} on {resource} {name}")

    async def _mislead(self) -> None:
        """Label a volume whose asset cannot be deleted yet for another node, unnoticed by the assigner."""
        claims = [each for each in self._claims() if each["spec"].get("volumeName")]
        if not claims:
            return
        claim = self._random.choice(claims)
        name = claim["spec"]["volumeName"]
        if (volume := self._cluster.api.get(_VOLUMES, name)) is None:
            return
        node = node_of(volume)
        self._lose_disk_of(node, 5.0)
        self._cluster.api.delete(_CLAIMS, claim["metadata"]["name"])
        self._tell(f"claim {claim['metadata']['name']} is deleted")
        await asyncio.sleep(1.0)
        self._cut_process_off(CENTRAL, 5.0)
        if self._cluster.api.get(_VOLUMES, name) is not None:
            label = node_hash(self._random.choice(sorted(set(NODES) - {node})))
            self._rules.edited = asyncio.get_running_loop().time()
            self._cluster.api.patch(_VOLUMES, name, {"metadata": {"labels": {names.NODE: label}}})
            self._tell(f"somebody writes label {label} on released volume {name}")
        await asyncio.sleep(6.0)

    async def _edit_room(self) -> None:
        if found := self._cluster.api.all(_ROOM):
            name = self._random.choice(found)["metadata"]["name"]
            edit = self._random.choice(
                ({"capacity": "900Gi"}, {"capacity": "0"}, {"metadata": {"labels": {names.NODE: None}}})
            )
            self._cluster.api.patch(_ROOM, name, edit, "volplane-system")
            self._tell(f"somebody writes {json.dumps(edit)} on room {name}")

    async def _restart(self) -> None:
        name = self._random.choice((CENTRAL, CENTRAL, *sorted(set(NODES) - self._down)))
        await self._cluster.kill(name)
        self._tell(f"process {name} dies")
        await asyncio.sleep(self._random.choice((0.0, 0.1, 2.0)))
        await self._start(name)

    async def _start(self, name: str) -> None:
        self._apart[name] = 0.0  # Nobody else could start it.
        self._end_partitions()
        self._rules.started(name)
        await self._cluster.start(name)

    async def _cut_off(self) -> None:
        """Cut a process off from the API server, but not from its disk."""
        name = self._random.choice((CENTRAL, *sorted(set(NODES) - self._down)))
        self._cut_process_off(name, self._random.choice((5.0, 30.0, GONE_AFTER + 10)))

    def _cut_process_off(self, name: str, seconds: float) -> None:
        self._apart[name] = until = asyncio.get_running_loop().time() + seconds
        # Until then a watch may pause that has failed for so long.
        self._rules.disturbed(name, until + min(seconds, WATCH_ENDED.ceiling))
        self._cluster.scripts[name].add(requests("*", "*"), unanswered, times=1e9)
        self._cluster.server.end_watches()
        self._tell(f"process {name} does not reach the API server for {seconds:g} s")

    async def _lose_disk(self) -> None:
        """Cut the process of a node off from its disk, but not from the API server."""
        self._lose_disk_of(self._random.choice(NODES), self._random.choice((5.0, 30.0, GONE_AFTER + 10)))

    def _lose_disk_of(self, name: str, seconds: float) -> None:
        self._unreachable[name] = until = asyncio.get_running_loop().time() + seconds
        self._rules.disturbed(name, until)
        self._cluster.failing.add(name)
        self._tell(f"the disk of {name} cannot be reached for {seconds:g} s")

    def _end_partitions(self, *, all_of_them: bool = False) -> None:
        now = asyncio.get_running_loop().time()
        latest = math.inf if all_of_them else now
        for name in [each for each, until in self._apart.items() if until <= latest]:
            del self._apart[name]
            self._rules.recovered(name)  # It may end later than was said: only a step ends it.
            if script := self._cluster.scripts.get(name):
                script.faults.clear()
        for name in [each for each, until in self._unreachable.items() if until <= latest]:
            del self._unreachable[name]
            self._rules.recovered(name)
            self._cluster.failing.discard(name)

    async def _set_clock(self) -> None:
        name, seconds = self._random.choice((CENTRAL, *NODES)), self._random.choice((-600.0, -90.0, 0.0, 90.0, 600.0))
        self._cluster.clocks[name].offset = seconds
        self._tell(f"the clock of {name} is wrong by {seconds:g} s")

    async def _stop(self) -> None:
        if up := sorted(set(NODES) - self._down):
            name = self._random.choice(up)
            self._down.add(name)
            self._rules.disturbed(name, math.inf)
            await self._cluster.kill(name)
            self._tell(f"process {name} dies, and nobody starts it")

    async def _twin(self) -> None:
        """Let a second process serve a node for a while, as after an edit of its Lease."""
        if up := sorted(set(NODES) - self._down - self._twins):
            name = self._random.choice(up)
            self._twins.add(name)
            await self._cluster.start(name, twin=True)
            self._tell(f"a second process serves {name}")
        elif self._twins:
            await self._end_twin(min(self._twins))

    async def _end_twin(self, name: str) -> None:
        self._twins.discard(name)
        await self._cluster.kill(f"{name}#2")
        self._tell(f"the second process of {name} dies")

    async def _lose_in_the_middle(self) -> None:
        """Remove a node that has made an asset which no object names yet."""
        working = sorted(set(NODES) - self._away - self._down)
        if len(working) < 2:
            return
        node = self._random.choice(working)
        saving = requests("create", "persistentvolumes")
        for process in (node, f"{node}#2"):
            if script := self._cluster.scripts.get(process):
                script.add(saving, unanswered, times=1e9)
        self._made += 1
        name = f"c{self._made}"
        self._cluster.create_claim(name, self._random.choice(("now", "late")), "1Gi", node=node)
        self._tell(f"claim {name} is begun on {node}, which goes")
        await asyncio.sleep(1.0)
        await self._lose(node)
        for process in (node, f"{node}#2"):
            if script := self._cluster.scripts.get(process):
                script.faults.clear()
        if self._random.random() < 0.3:
            self._cluster.api.delete(_CLAIMS, name)
        await asyncio.sleep(self._random.choice((0.0, GONE_AFTER / 2, GONE_AFTER + 5)))

    async def _lose_node(self) -> None:
        present = sorted(set(NODES) - self._away)
        if len(present) > 1:
            await self._lose(self._random.choice(present))

    async def _lose(self, name: str) -> None:
        self._away.add(name)
        self._rules.away[name] = asyncio.get_running_loop().time()
        if self._random.random() < 0.5:
            self._cluster.set_ready(name, ready=False)
            self._tell(f"node {name} is not ready")
        else:
            self._cluster.api.delete("nodes", name)
            self._tell(f"node {name} is deleted")
        if self._random.random() < 0.7 and name not in self._down:
            self._down.add(name)
            self._rules.disturbed(name, math.inf)
            if name in self._twins:
                await self._end_twin(name)
            await self._cluster.kill(name)

    async def _return_node(self) -> None:
        if self._away:
            await self._return(self._random.choice(sorted(self._away)), self._random.random() < 0.3)

    async def _return(self, name: str, other_disk: bool) -> None:
        self._away.discard(name)
        self._rules.returned(name)
        if self._cluster.api.get("nodes", name) is not None:
            self._cluster.set_ready(name, ready=True)
            self._tell(f"node {name} is ready again")
        else:
            if other_disk:
                if name in self._twins:
                    await self._end_twin(name)
                if name not in self._down:
                    await self._cluster.kill(name)
                    self._down.add(name)
                self._replaced.add(id(self._cluster.disks[name]))
                self._cluster.old_disks.append(self._cluster.disks.pop(name))
            self._cluster.create_node(name)
            self._tell(f"node {name} is made again with {'another' if other_disk else 'its'} disk")
        if name in self._down:
            self._down.discard(name)
            await self._start(name)

    async def _fault(self) -> None:
        name = self._random.choice((CENTRAL, *sorted(set(NODES) - self._down)))
        verb = self._random.choice(("patch", "create", "delete", "*"))
        behaviour = self._random.choice((unanswered, answer_lost, refuse(500), refuse(409), refuse(500, after=True)))
        times = self._random.randint(1, 4)
        self._rules.disturbed(name, asyncio.get_running_loop().time() + 10.0)
        self._cluster.scripts[name].add(requests(verb, "*"), behaviour, times=times)
        self._tell(f"{times} requests ({verb}) of {name} fail")

    async def _wait(self) -> None:
        await asyncio.sleep(self._random.choice((1.0, 10.0, GONE_AFTER + 10)))
        self._tell("time passes")

    # --- the end -------------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        """End all faults, let the scheduler work, and let time pass."""
        cluster = self._cluster
        for script in cluster.scripts.values():
            script.faults.clear()
        self._end_partitions(all_of_them=True)
        for each in cluster.clocks.values():
            each.offset = 0.0
        for name in sorted(self._twins):
            await self._end_twin(name)
        for name in sorted(self._away):
            await self._return(name, other_disk=False)
        for name in sorted(self._down):
            self._down.discard(name)
            self._rules.started(name)
            await cluster.start(name)
        for _ in range(12):
            await cluster.advance(GONE_AFTER)
            for claim in self._claims():
                annotations = claim["metadata"].get("annotations") or {}
                late = claim["spec"]["storageClassName"] == "late" and not claim["spec"].get("volumeName")
                if late and names.SELECTED_NODE not in annotations and "deletionTimestamp" not in claim["metadata"]:
                    fitting = [node for node in NODES if cluster.disks[node].room() >= size_of(claim)]
                    if fitting:
                        self._select(claim, self._random.choice(fitting))
            await cluster.advance(1.0)
