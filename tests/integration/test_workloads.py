"""The workload controllers against recordings of a real kube-controller-manager, in virtual time."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tools.exchange_clients import InProcess
from tools.workload_stories import STORIES, Teller

from volplane.controller.actions import EventRecord
from volplane.controller.runner import Steps
from volplane.kube.client import Client
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.garbage_collector import GarbageCollector
from volplane_embedded.informers import Informers
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.workloads.controllers import run_workloads
from volplane_testing.clock import now

RECORDINGS = Path(__file__).parent / "workloads"


class Said:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def record(self, event: EventRecord) -> None:
        self.events.append((event.reason, event.message))


@asynccontextmanager
async def controllers() -> AsyncIterator[tuple[ApiServer, Said]]:
    server = ApiServer(now=now, random=Random(7))
    client = Client(InProcessTransport(server))
    informers, said = Informers(), Said()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(informers.follow(client, Random(1)))]
        await informers.wait_synced()
        collector = GarbageCollector(informers, Steps(client, informers.caches))
        running += [
            tasks.create_task(run_workloads(informers, client, said, now)),
            tasks.create_task(collector.run()),
        ]
        yield server, said
        for task in running:
            task.cancel()
    server.close()


def of(told: list[Any]) -> list[Any]:
    """A recording without what the stock controllers leave to chance: which of equal pods goes, who of two controllers
    is first, in how many writes a ReplicaSet gets its size, and in which order the garbage collector and a burst act.
    A set that is being deleted has its revision made again there, and collected again.
    """
    told = json.loads(re.sub(r"<pod \d+>", "<pod>", json.dumps(told)))
    first = told[0]["step"][1]
    deployed = first["kind"] in ("Deployment", "ReplicaSet")
    in_order = not deployed and first["spec"].get("podManagementPolicy") != "Parallel"
    deleting = False
    for each in told:
        deleting = deleting or (each["step"][0] == "delete" and each["step"][2] == "Foreground")
        writes = [
            write for write in each["writes"] if not (deleting and "ControllerRevision" in next(iter(write.values())))
        ]
        if deployed:
            each["rest"] = {key: said if "Replica" not in key else _sizes(said) for key, said in each["rest"].items()}
            writes = _merged(writes)
        if not in_order or each["step"][0] == "delete":
            writes.sort(key=json.dumps)
        each["writes"] = writes
    return told


def _sizes(status: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in status.items() if key != "observedGeneration"}


def _merged(writes: list[Any]) -> list[Any]:
    """All changes of a ReplicaSet as one, without how many there were."""
    merged: list[Any] = []
    of_sets: dict[str, Any] = {}
    for write in writes:
        name = write.get("changed", "")
        if not name.startswith("ReplicaSet"):
            merged.append(write)
            continue
        changes = write["changes"]
        changes.get("metadata", {}).pop("generation", None)
        if name not in of_sets:
            merged.append(write)
            of_sets[name] = changes
        for part, values in changes.items():
            of_sets[name][part] = {**of_sets[name].get(part, {}), **values}
    return merged


@pytest.mark.parametrize("name", sorted(STORIES))
async def test_the_controllers_write_what_a_real_controller_manager_wrote(name: str) -> None:
    recorded = json.loads((RECORDINGS / f"{name}.json").read_text())
    async with controllers() as (server, _):
        told = await Teller(InProcess(server), rest=0.5).tell(STORIES[name])
    for ours, theirs in zip(of(told), of(recorded), strict=True):
        assert ours == theirs
