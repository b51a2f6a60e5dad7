"""The HTTP endpoints of a controller process, for `volplane run` and `volplane dev`, and what they answer as JSON."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from volplane.asking.callers import Callers
from volplane.assets import Snapshot
from volplane.controller.http import Pages, serve_pages
from volplane.controller.http_access import HttpAddress
from volplane.errors import VolplaneError
from volplane.kube.objects import timestamp
from volplane.leaks.comparison import GRACE_SECONDS, Finding
from volplane.leaks.repair import Adoptable
from volplane.operations.registry import OneShotStatus
from volplane.process.control_plane import ControlPlane
from volplane.process.process import ControllerProcess
from volplane.state.matching import capacity_of, whole_bytes


@asynccontextmanager
async def serve_endpoints(address: HttpAddress, process: ControllerProcess) -> AsyncIterator[str]:
    """Serve health, metrics, and what is asked of `Answers`, until the block ends, which gets the URL.

    The process says on its Lease where, so it is started within. Nobody asks that of a node through a port-forward.
    """
    answers = Answers(process)
    callers = Callers(process.client, lambda: process.plane)
    pages = Pages(
        unready=process.unready,
        details=process.details,
        measure=process.measure,
        metrics=process.metrics.exposition,
        answers={**answers.asked, "/adopt": answers.adoptions},
        actions={
            "/leaks/check": answers.check,
            "/leaks/fix": answers.fix,
            "/adopt": partial(answers.adopt, start=True),
            "/adopt/plan": partial(answers.adopt, start=False),
            "/archives": answers.archives,
        },
        guard=None if process.options.node_name else callers.guard,
        holder=lambda: process.options.identity if process.leads else "",
    )
    async with serve_pages(address, pages) as url:
        process.port = int(url.rpartition(":")[2])
        yield url


class Answers:
    """Answers with one method per path. All raise VolplaneError while the process does not lead."""

    def __init__(self, process: ControllerProcess) -> None:
        self._process = process
        self.asked = {"/status": self.status, "/explain": self.explain, "/leaks": self.leaks}

    async def ask(self, path: str, query: Mapping[str, str]) -> Any:
        """Answer in this process as the endpoints do."""
        return msgspec.to_builtins(await self.asked[path](query))

    async def _leading(self) -> ControlPlane:
        plane = self._process.plane
        if plane is None or not self._process.leads:
            holder = await self._process.leader() or "nobody"
            raise VolplaneError(f"this process waits for the lease, which {holder} holds; ask the one that leads")
        return plane

    async def status(self, query: Mapping[str, str]) -> Any:
        """Return drivers, running operations, what is not served, and why keys wait; of ?namespace= what concerns it
        alone, which is no driver.
        """
        plane = await self._leading()
        operations, reasons = plane.operations.snapshot(), plane.reasons()
        if within := query.get("namespace", ""):
            kept = {queue for queue, each in plane.controllers.items() if each.cache.kind.namespaced}
            reasons = {
                queue: {key: why for key, why in reasons.get(queue, {}).items() if key.startswith(f"{within}/")}
                for queue in kept
            }
            own = {each.uid for each in plane.state.claims.values() if each.namespace == within}
            operations = tuple(each for each in operations if each.uid in own)
        return {
            "drivers": () if within else (*self._process.driver_status(), *plane.drivers_on_nodes()),
            "operations": operations,
            "namespace": within,
            "leads": True,
            "missing": plane.unread(required=False),
            "reasons": reasons,
            "leaks": {} if within else Counter(each.verdict for each in plane.leak_check.observations.findings()),
            "now": asyncio.get_running_loop().time(),
        }

    async def explain(self, query: Mapping[str, str]) -> Any:
        """Explain why ?claim=NAMESPACE/NAME, ?snapshot=NAMESPACE/NAME, ?volume=NAME or ?class=NAME is in its state."""
        for kind in ("claim", "volume", "class", "snapshot", "group"):
            if key := query.get(kind, ""):
                return (await self._leading()).explain(kind, key)
        raise VolplaneError(
            "/explain needs ?claim=NAMESPACE/NAME, ?snapshot=NAMESPACE/NAME, ?volume=NAME or ?class=NAME"
        )

    async def leaks(self, _: Mapping[str, str]) -> Any:
        """Return the state of each driver's check, all findings, and the repairs requested last."""
        plane = await self._leading()
        return {
            "grace_seconds": GRACE_SECONDS,
            "drivers": [
                {
                    "driver": name,
                    "can_list": each.can_list,
                    "checked_at": None if each.ended is None else _wall(each.ended, plane),
                    "attempts": each.attempts,
                    "error": each.error or plane.state.drivers.broken(name),
                }
                for name, each in plane.leak_check.status.items()
            ],
            "findings": [_finding(each, plane) for each in plane.leak_check.observations.findings()],
            "repairs": [
                {"driver": finding.driver, "handle": finding.handle, **_progress(status)}
                for finding, status in plane.leak_repair.one_shots.listed()
            ],
        }

    async def fix(self, query: Mapping[str, str]) -> Any:
        """Start to delete all confirmed orphans, or only those of ?driver= and ?handle=; answer as `leaks`.

        ?agreed=: the digest of all orphans, confirmed or not, that a person wants deleted.
        """
        plane = await self._leading()
        plane.leak_repair.start(query.get("driver", ""), query.get("handle", ""), agreed=query.get("agreed", ""))
        return await self.leaks({})

    async def check(self, query: Mapping[str, str]) -> Any:
        """Start a check of all drivers, or only of ?driver=; return driver -> attempts after which it has ended."""
        return (await self._leading()).leak_check.request(query.get("driver", ""))

    async def adopt(self, query: Mapping[str, str], *, start: bool) -> Any:
        """Return what adopting the assets of cluster ?from=, or only those of ?driver=, does, and start it if asked."""
        adoption = (await self._leading()).adoption
        do, flags = adoption.start if start else adoption.plan, {name: name in query for name in ("back", "stopped")}
        plan = await do(query.get("from", ""), query.get("driver", ""), **flags)
        return [_adoptable(each) for each in plan]

    async def archives(self, _: Mapping[str, str]) -> Any:
        """Ask the drivers what they keep of deleted volumes; return that, and why some could not tell."""
        found, untold = await (await self._leading()).leak_check.archives()
        return {"archives": [{"driver": name, **asdict(each)} for name, each in found], "untold": untold}

    async def adoptions(self, _: Mapping[str, str]) -> Any:
        """Return the progress of the adoption started last."""
        plane = await self._leading()
        return [{**_adoptable(each), **_progress(status)} for each, status in plane.adoption.one_shots.listed()]


def _progress(status: OneShotStatus) -> dict[str, str]:
    return {"state": status.state.value, "detail": status.detail}


def _finding(finding: Finding, plane: ControlPlane) -> dict[str, Any]:
    """Return a finding with size and age of its asset or snapshot, of a ghost those of its volume; None = not known."""
    observations = plane.leak_check.observations
    # A process on another machine may have noted it, by a clock that is ahead.
    since = min(observations.first_seen(finding, plane.state.epoch()), plane.state.now().timestamp())
    asset, volume = finding.listed, plane.state.volumes.get(finding.volume)
    size, created = None, None
    if asset is not None:
        size = asset.size_bytes if isinstance(asset, Snapshot) else asset.capacity_bytes
        created = datetime.fromtimestamp(asset.created_at, UTC) if asset.created_at is not None else None
    elif volume is not None:
        size = whole_bytes(capacity_of(volume))
        with suppress(ValueError):
            created = datetime.fromisoformat(volume.metadata.creation_timestamp or "")
    return {
        "verdict": finding.verdict.value,
        "kind": finding.kind,
        "driver": finding.driver,
        "handle": finding.handle,
        "name": asset.name if asset is not None else "",
        "volume": finding.volume,
        "detail": finding.detail,
        "capacity_bytes": size,
        "type": getattr(asset, "type", ""),
        "created_at": timestamp(created) if created is not None else None,
        "age_seconds": round((plane.state.now() - created).total_seconds()) if created is not None else None,
        "first_seen": timestamp(datetime.fromtimestamp(since, UTC)),
        "seconds": round(plane.state.now().timestamp() - since, 1),
        "confirmed": observations.confirmed(finding),
    }


def _adoptable(adoptable: Adoptable) -> dict[str, Any]:
    return {name: value for name, value in asdict(adoptable).items() if name != "former"}


def _wall(moment: float, plane: ControlPlane) -> str:
    """Return a loop time as RFC 3339."""
    return timestamp(datetime.fromtimestamp(plane.state.epoch() + moment, UTC))
