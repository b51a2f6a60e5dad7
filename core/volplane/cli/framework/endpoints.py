"""The HTTP endpoints of a controller process, for `volplane run` and `volplane dev`, and what they answer as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from volplane.controller.http import HttpAddress, Pages, serve_pages
from volplane.errors import VolplaneError
from volplane.leaks.check import CheckStatus
from volplane.leaks.comparison import GRACE_SECONDS, NANOS, Finding
from volplane.leaks.repair import Adoptable
from volplane.operations import OneShotStatus
from volplane.process.control_plane import ControlPlane
from volplane.process.process import ControllerProcess
from volplane.state.matching import capacity_of

__all__ = ["HttpAddress", "serve_endpoints"]

RFC_3339 = "%Y-%m-%dT%H:%M:%SZ"


@asynccontextmanager
async def serve_endpoints(address: HttpAddress, process: ControllerProcess) -> AsyncIterator[str]:
    """Serve health, metrics, /status, /explain, /leaks and /adopt until the block ends; yields the URL."""
    answers = _Answers(process)
    pages = Pages(
        unready=process.unready,
        details=process.details,
        metrics=process.exposition,
        answers={
            "/status": answers.status,
            "/explain": answers.explain,
            "/leaks": answers.leaks,
            "/adopt": answers.adoptions,
        },
        actions={
            "/leaks/check": answers.check,
            "/leaks/fix": answers.fix,
            "/adopt": answers.adopt,
            "/adopt/plan": answers.plan_adoption,
        },
    )
    async with serve_pages(address, pages) as url:
        yield url


class _Answers:
    """Answers with one method per path. All but `status` raise VolplaneError while the process does not lead."""

    def __init__(self, process: ControllerProcess) -> None:
        self._process = process

    async def _leading(self) -> ControlPlane:
        plane = self._process.plane
        if plane is None:
            holder = await self._process.leader() or "nobody"
            raise VolplaneError(f"this process waits for the lease, which {holder} holds; ask the one that leads")
        return plane

    async def status(self, _: Mapping[str, str]) -> Any:
        """Return drivers, running operations, whether this process leads, and why keys wait."""
        plane = self._process.plane
        return {
            "drivers": self._process.driver_status(),
            "operations": plane.operations.snapshot() if plane is not None else (),
            "leads": plane is not None,
            "reasons": plane.reasons() if plane is not None else {},
        }

    async def explain(self, query: Mapping[str, str]) -> Any:
        """Explain why ?claim=NAMESPACE/NAME, ?volume=NAME or ?class=NAME is in its state, and what happens next."""
        for kind in ("claim", "volume", "class"):
            if key := query.get(kind, ""):
                return (await self._leading()).explain(kind, key)
        raise VolplaneError("/explain needs ?claim=NAMESPACE/NAME, ?volume=NAME or ?class=NAME")

    async def leaks(self, _: Mapping[str, str]) -> Any:
        """Return the state of each driver's check, all findings, and the repairs requested last."""
        plane = await self._leading()
        return {
            "grace_seconds": GRACE_SECONDS,
            "drivers": [_check(each, plane) for each in plane.leak_check.status.values()],
            "findings": [_finding(each, plane) for each in plane.leak_check.observations.findings()],
            "repairs": [
                {"driver": finding.driver, "handle": finding.handle, **_progress(status)}
                for finding, status in plane.leak_repair.repairs()
            ],
        }

    async def fix(self, query: Mapping[str, str]) -> Any:
        """Start to delete all confirmed orphans, or only those of ?driver= and ?handle=; answer as `leaks`."""
        plane = await self._leading()
        plane.leak_repair.start(query.get("driver", ""), query.get("handle", ""))
        return await self.leaks({})

    async def check(self, query: Mapping[str, str]) -> Any:
        """Start a check of all drivers, or only of ?driver=; return driver -> attempts after which it has ended."""
        return (await self._leading()).leak_check.request(query.get("driver", ""))

    async def plan_adoption(self, query: Mapping[str, str]) -> Any:
        """Return what `adopt` with the same query would do."""
        plane = await self._leading()
        plan = await plane.adoption.plan(query.get("from", ""), query.get("driver", ""))
        return [_adoptable(each) for each in plan]

    async def adopt(self, query: Mapping[str, str]) -> Any:
        """Start to adopt the assets of cluster ?from=, or only those of ?driver=; return the plan."""
        plane = await self._leading()
        plan = await plane.adoption.start(query.get("from", ""), query.get("driver", ""))
        return [_adoptable(each) for each in plan]

    async def adoptions(self, _: Mapping[str, str]) -> Any:
        """Return the progress of the adoption started last."""
        plane = await self._leading()
        return [{**_adoptable(each), **_progress(status)} for each, status in plane.adoption.statuses()]


def _progress(status: OneShotStatus) -> dict[str, str]:
    return {"state": status.state.value, "detail": status.detail}


def _check(status: CheckStatus, plane: ControlPlane) -> dict[str, Any]:
    return {
        "driver": status.driver,
        "can_list": status.can_list,
        "checked_at": None if status.ended is None else _wall(status.ended, plane),
        "attempts": status.attempts,
        "error": status.error or plane.state.drivers.broken(status.driver),
    }


def _finding(finding: Finding, plane: ControlPlane) -> dict[str, Any]:
    observations = plane.leak_check.observations
    first = observations.first_seen(finding)
    return {
        "verdict": finding.verdict.value,
        "driver": finding.driver,
        "handle": finding.handle,
        "name": finding.asset.name if finding.asset is not None else "",
        "volume": finding.volume,
        "detail": finding.detail,
        **_measured(finding, plane),
        "first_seen": _wall(first, plane),
        "seconds": round(asyncio.get_running_loop().time() - first, 1),
        "confirmed": observations.confirmed(finding),
    }


def _measured(finding: Finding, plane: ControlPlane) -> dict[str, Any]:
    """Return size and age of the asset, of a ghost those of its volume; None = not known."""
    size, created = None, None
    volume = plane.state.volumes.get(finding.volume)
    if finding.asset is not None:
        size = finding.asset.capacity_bytes
        if finding.asset.created_at is not None:
            created = datetime.fromtimestamp(finding.asset.created_at, UTC)
    elif volume is not None:
        size = -(-capacity_of(volume) // NANOS)
        with suppress(ValueError):
            created = datetime.fromisoformat(volume.metadata.creation_timestamp or "")
    return {
        "capacity_bytes": size,
        "created_at": created.strftime(RFC_3339) if created is not None else None,
        "age_seconds": round((plane.state.now() - created).total_seconds()) if created is not None else None,
    }


def _adoptable(adoptable: Adoptable) -> dict[str, Any]:
    fields = asdict(adoptable)
    del fields["former"]
    return fields


def _wall(moment: float, plane: ControlPlane) -> str:
    """Return a loop time as RFC 3339."""
    when = plane.state.now() - timedelta(seconds=asyncio.get_running_loop().time() - moment)
    return when.strftime(RFC_3339)
