"""Which files of the core run while one claim lives and dies, with nothing left out."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import volplane
from volplane.drivers.parameters import driver_options
from volplane_hostpath.backend import HostPathBackend
from volplane_testing import Cluster, run

__all__ = ["walk"]

CORE: Final = Path(volplane.__file__).parent
DRIVER: Final = "hostpath.volplane.dev"


def walk() -> list[str]:
    """Provision, bind, release and delete a claim of the hostpath backend in a cluster in this process.

    Returns the paths of files below core/volplane in which a function was called, whatever it is for.
    """
    files: dict[str, None] = {}

    def seen(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and _is_function(frame.f_code):
            files.setdefault(frame.f_code.co_filename)

    async def main(options: Mapping[str, Any]) -> None:
        async with Cluster({DRIVER: HostPathBackend(options)}) as cluster:
            await cluster.create_class("fast")
            await cluster.settle()
            before = sys.getprofile()
            sys.setprofile(seen)
            try:
                claim = await cluster.create_claim("data", storage_class="fast", capacity="1Mi")
                await cluster.wait_bound(claim)
                await cluster.delete_claim(claim)
                await cluster.settle()
                await asyncio.sleep(0)
            finally:
                sys.setprofile(before)

    with tempfile.TemporaryDirectory() as directory:
        run(main(_options(directory)))
    paths = (Path(name) for name in files)
    return sorted(str(path.relative_to(CORE)) for path in paths if path.is_relative_to(CORE))


def _options(root: str) -> dict[str, Any]:
    return driver_options(HostPathBackend.options_schema, {"root": root, "node_name": "node-a"}, DRIVER)


def _is_function(code: CodeType) -> bool:
    return code.co_name[:1] != "<" or code.co_name == "<lambda>"
