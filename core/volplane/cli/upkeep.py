"""What a controller process answers about leaks and adoption, as JSON values."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from volplane.controlplane import ControlPlane
from volplane.errors import VolplaneError
from volplane.leaks.adoption import Adoptable
from volplane.leaks.check import CheckStatus
from volplane.leaks.comparison import GRACE_SECONDS, Finding
from volplane.operations.dispatcher import OneShotStatus
from volplane.process import ControllerProcess

__all__ = ["UpkeepAnswers", "not_leading"]


async def not_leading(process: ControllerProcess) -> VolplaneError:
    """What a process says that another one should be asked."""
    holder = await process.leader()
    return VolplaneError(f"this process waits for the lease, which {holder or 'nobody'} holds; ask the one that leads")


class UpkeepAnswers:
    """Answers of the process that leads; every method raises VolplaneError on another one."""

    def __init__(self, process: ControllerProcess) -> None:
        self._process = process

    async def _leading(self) -> ControlPlane:
        plane = self._process.plane
        if plane is None:
            raise await not_leading(self._process)
        return plane

    async def leaks(self, query: Mapping[str, str]) -> Any:
        """How far each driver's check is, every finding, and what became of the repairs asked for last."""
        plane = await self._leading()
        return {
            "grace_seconds": GRACE_SECONDS,
            "drivers": [_status(each, plane) for each in plane.leak_check.status()],
            "findings": [_finding(each, plane) for each in plane.leak_check.observations.findings()],
            "repairs": [
                {"driver": finding.driver, "handle": finding.handle, **_progress(status)}
                for finding, status in plane.leak_repair.repairs()
            ],
        }

    async def fix(self, query: Mapping[str, str]) -> Any:
        """Begin to delete every confirmed orphan (?driver=, &handle=: only these); the answer of `leaks`."""
        plane = await self._leading()
        plane.leak_repair.start(query.get("driver", ""), query.get("handle", ""))
        return await self.leaks({})

    async def plan_adoption(self, query: Mapping[str, str]) -> Any:
        """What `adopt` with the same query would do."""
        plane = await self._leading()
        plan = await plane.adoption.plan(query.get("from", ""), query.get("driver", ""))
        return [_adoptable(each) for each in plan]

    async def adopt(self, query: Mapping[str, str]) -> Any:
        """Begin to take over the assets of cluster ?from= (&driver=: of one); the plan."""
        plane = await self._leading()
        plan = await plane.adoption.start(query.get("from", ""), query.get("driver", ""))
        return [_adoptable(each) for each in plan]

    async def adopted(self, query: Mapping[str, str]) -> Any:
        """How far the adoption is that was begun last."""
        plane = await self._leading()
        return [{**_adoptable(each), **_progress(status)} for each, status in plane.adoption.statuses()]


def _progress(status: OneShotStatus) -> dict[str, str]:
    return {"state": status.state.value, "detail": status.detail}


def _status(status: CheckStatus, plane: ControlPlane) -> dict[str, Any]:
    checked_at = None if status.ended is None else _wall(status.ended, plane)
    error = status.error or plane.state.drivers.broken(status.driver)
    return {"driver": status.driver, "can_list": status.can_list, "checked_at": checked_at, "error": error}


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
        "first_seen": _wall(first, plane),
        "seconds": round(asyncio.get_running_loop().time() - first, 1),
        "confirmed": observations.confirmed(finding),
    }


def _adoptable(adoptable: Adoptable) -> dict[str, Any]:
    fields = asdict(adoptable)
    del fields["former"]
    return fields


def _wall(moment: float, plane: ControlPlane) -> str:
    """RFC 3339 of a loop time."""
    when = plane.state.now() - timedelta(seconds=asyncio.get_running_loop().time() - moment)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
