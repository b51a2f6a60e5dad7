"""Which files and functions of the core run while one claim lives and dies, with nothing left out."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import volplane
from volplane.drivers.parameters import driver_options
from volplane_hostpath.backend import HostPathBackend
from volplane_testing import Cluster, run

__all__ = ["Walk", "walk"]

CORE: Final = Path(volplane.__file__).parent
PYPROJECT: Final = Path(__file__).resolve().parents[2] / "pyproject.toml"
DRIVER: Final = "hostpath.volplane.dev"


@dataclass(slots=True)
class Walk:
    """What ran. A function is (path of its file below core/volplane, qualified name)."""

    functions: dict[tuple[str, str], None] = field(default_factory=dict)
    """In the order of their first call."""
    upward: dict[tuple[tuple[str, str], tuple[str, str]], None] = field(default_factory=dict)
    """Calls (caller, callee) into a higher layer, as listeners, handlers and requeues make them."""

    @property
    def files(self) -> tuple[str, ...]:
        """In the order of their first call."""
        return tuple(dict.fromkeys(path for path, _ in self.functions))


def walk() -> Walk:
    """Provision, bind, release and delete a claim of the hostpath backend in a cluster in this process."""
    found, layers = Walk(), _layers()

    def seen(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or (called := _function(frame)) is None:
            return
        found.functions.setdefault(called)
        caller, above = None, frame.f_back
        while above is not None and caller is None:
            caller, above = _function(above), above.f_back
        if caller is not None and _layer(called, layers) < _layer(caller, layers):
            found.upward.setdefault((caller, called))

    async def main(options: Mapping[str, Any]) -> None:
        async with Cluster({DRIVER: HostPathBackend(options)}) as cluster:
            await cluster.create_class("fast")
            await cluster.settle()
            before = sys.getprofile()
            sys.setprofile(seen)
            try:
                claim = await cluster.create_claim("data", storage_class="fast", capacity="1Mi")
                await cluster.wait_bound(claim)
                await cluster.settle()  # A deletion before the last write of the claim would be a conflict.
                await cluster.delete_claim(claim)
                await cluster.settle()
                await asyncio.sleep(0)
            finally:
                sys.setprofile(before)

    with tempfile.TemporaryDirectory() as directory:
        given = {"root": directory, "node_name": "node-a"}
        run(main(driver_options(HostPathBackend.options_schema, given, DRIVER)))
    return found


def _function(frame: FrameType) -> tuple[str, str] | None:
    """Return file and qualified name of a function of core, that of the outermost one for what stands in it."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(CORE):
        return None
    name = frame.f_code.co_qualname.partition(".<")[0]
    return None if name == "<module>" else (str(path.relative_to(CORE)), name)


def _layers() -> dict[str, int]:
    """Return the packages and modules of core with the number of their layer, 0 the highest; import-linter has them."""
    linter = tomllib.loads(PYPROJECT.read_text("utf-8"))["tool"]["importlinter"]
    [contract] = [each for each in linter["contracts"] if each["name"] == "layers"]
    layers = enumerate(contract["layers"])
    return {name.strip("() "): number for number, layer in layers for name in layer.replace(":", "|").split("|")}


def _layer(function: tuple[str, str], layers: Mapping[str, int]) -> int:
    return layers.get(function[0].removesuffix(".py").partition("/")[0], len(layers))
