"""The HTTP face of a controller process, for `volplane run` and `volplane dev`, and how commands ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from volplane.cli.upkeep import UpkeepAnswers, not_leading
from volplane.controller.http import HttpAddress, Pages, serve_pages
from volplane.errors import VolplaneError
from volplane.process import ControllerProcess

__all__ = ["HttpAddress", "serving"]


@asynccontextmanager
async def serving(address: HttpAddress, process: ControllerProcess) -> AsyncIterator[str]:
    """Serve health, metrics, /status, /explain, /leaks and /adopt until the block ends; yields the URL."""

    async def status(_: Mapping[str, str]) -> Any:
        return {
            "drivers": process.driver_status(),
            "operations": process.operations(),
            "leads": process.plane is not None,
            "reasons": process.plane.reasons() if process.plane is not None else {},
        }

    async def explain(query: Mapping[str, str]) -> Any:
        if not (key := query.get("claim", "")):
            raise VolplaneError("/explain needs ?claim=NAMESPACE/NAME")
        if process.plane is None:
            raise await not_leading(process)
        return process.plane.explain(key)

    upkeep = UpkeepAnswers(process)
    pages = Pages(
        unready=process.unready,
        details=process.details,
        metrics=process.exposition,
        answers={"/status": status, "/explain": explain, "/leaks": upkeep.leaks, "/adopt": upkeep.adopted},
        actions={"/leaks/fix": upkeep.fix, "/adopt": upkeep.adopt, "/adopt/plan": upkeep.plan_adoption},
    )
    async with serve_pages(address, pages) as url:
        yield url
