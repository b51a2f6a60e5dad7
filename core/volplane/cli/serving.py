"""The HTTP face of a controller process, for `volplane run` and `volplane dev`, and how commands ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from volplane.controller.http import HttpAddress, Pages, serve_pages
from volplane.process import ControllerProcess

__all__ = ["HttpAddress", "serving"]


@asynccontextmanager
async def serving(address: HttpAddress, process: ControllerProcess) -> AsyncIterator[str]:
    """Serve health, metrics and /status of the process until the block ends; yields the URL."""

    async def status(_: Mapping[str, str]) -> Any:
        return {
            "drivers": process.driver_status(),
            "operations": process.operations(),
            "leads": process.plane is not None,
        }

    pages = Pages(unready=process.unready, metrics=process.metrics.exposition, answers={"/status": status})
    async with serve_pages(address, pages) as url:
        yield url
