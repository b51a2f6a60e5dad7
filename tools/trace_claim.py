"""Follow one dynamic claim through the code, from the watch event to Bound.

python -m tools.trace_claim          print the files and functions in the order in which they were first called

Creates a claim of a class with the hostpath backend in a cluster in this process, and records the calls of functions of
core that serve it: in reflectors, workers of the runner of claims, the operation on the claim, hooks, and callbacks of
the event loop. docs/explanation/claim-walk.md describes these calls; a test compares the two.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import volplane
from volplane.drivers.parameters import driver_options
from volplane_hostpath.backend import HostPathBackend
from volplane_testing import Cluster, run

__all__ = ["LEFT_OUT", "Trace", "trace_claim"]

ROOT: Final = Path(__file__).resolve().parent.parent
CORE: Final = Path(volplane.__file__).parent
DRIVER: Final = "hostpath.volplane.dev"
CLAIM: Final = "default/data"
LEFT_OUT: Final[Mapping[str, tuple[str, ...]]] = {
    "data": (
        "assets",
        "controller.actions",
        "drivers.driver.DriverView",
        "intents.requests",
        "kube.kinds",
        "kube.objects",
        "kube.quantity",
        "directory.markers",
        "directory.parameters",
        "requests",
        "state.records",
    ),
    "names": ("kube.names",),
    "parameters": ("drivers.parameters", "schemas", "secret"),
    "logs": ("controller.logs", "_messages"),
    "clock": ("controller.workqueue.LoopTime",),
    "metrics": ("process.assembly", "controller.metrics"),
    "events": ("kube.events",),
    "transports": ("kube.answers", "kube.transport"),
    "conflicts over records": ("state.records.RecordConflicts",),
    "other duties": (
        "attach",
        "expand",
        "protection",
        "reclaim",
        "roles.whole.Whole.decide_volume",
        "roles.whole.Whole.volume_may_act",
    ),
}
"""What is left out because nobody needs it to follow a claim: subject -> packages, modules, functions of core."""


@dataclass(slots=True)
class Trace:
    """The recorded calls. A function is (path of its file, qualified name)."""

    functions: dict[tuple[str, str], None] = field(default_factory=dict)
    """In the order of their first call."""
    upward: dict[tuple[tuple[str, str], tuple[str, str]], None] = field(default_factory=dict)
    """Calls (caller, callee) into a higher layer, as listeners, handlers and requeues make them."""

    @property
    def files(self) -> tuple[str, ...]:
        """In the order of their first call."""
        return tuple(dict.fromkeys(path for path, _ in self.functions))


class Tracer:
    """A profile function (see `sys.setprofile`) that records calls of core functions that serve the claim."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._known: dict[CodeType, tuple[str, str] | None] = {}
        self._others: dict[CodeType, bool] = {}
        self._layers = dict(layers())

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Record a call."""
        if event != "call" or (called := self._function(frame.f_code)) is None or not on_the_way():
            return
        if self._for_others(frame):
            return
        self.trace.functions.setdefault(called)
        caller = self._caller(frame)
        if caller is not None and self._layer(called) < self._layer(caller):
            self.trace.upward.setdefault((caller, called))

    def _function(self, code: CodeType) -> tuple[str, str] | None:
        if code not in self._known:
            self._known[code] = named(code)
        return self._known[code]

    def _for_others(self, frame: FrameType) -> bool:
        """Whether another duty called it, directly or not."""
        above = frame.f_back
        while above is not None:
            code = above.f_code
            if code not in self._others:
                self._others[code] = any(begins(code, part) for part in LEFT_OUT["other duties"])
            if self._others[code]:
                return True
            above = above.f_back
        return False

    def _caller(self, frame: FrameType) -> tuple[str, str] | None:
        above = frame.f_back
        while above is not None:
            if (caller := self._function(above.f_code)) is not None:
                return caller
            above = above.f_back
        return None

    def _layer(self, function: tuple[str, str]) -> int:
        room = function[0].removesuffix(".py").partition("/")[0]
        return self._layers.get(room, len(self._layers))


def named(code: CodeType) -> tuple[str, str] | None:
    """File and qualified name of a function of core; None if it is elsewhere or left out."""
    path = Path(code.co_filename)
    if not path.is_relative_to(CORE) or any(begins(code, each) for parts in LEFT_OUT.values() for each in parts):
        return None
    name = code.co_qualname.partition(".<locals>")[0]
    return None if "<" in name else (str(path.relative_to(CORE)), name)


def begins(code: CodeType, part: str) -> bool:
    """Whether the code is of this package, module, class or function of core."""
    path = Path(code.co_filename)
    if not path.is_relative_to(CORE):
        return False
    dotted = ".".join((*path.relative_to(CORE).with_suffix("").parts, code.co_qualname, ""))
    return dotted.startswith(f"{part}.")


def on_the_way() -> bool:
    """Whether the running task serves the claim. Reflectors have no name, callbacks of the loop have no task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    if task is None:
        return True
    name = task.get_name()
    return name.startswith(("claims-", "Task-", f"{DRIVER} ")) or CLAIM in name


def layers() -> Iterator[tuple[str, int]]:
    """The packages and modules of core with the number of their layer, the highest first, as import-linter checks
    them.
    """
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    [contract] = [each for each in linter["contracts"] if each["name"] == "layers"]
    for number, layer in enumerate(contract["layers"]):
        yield from ((name.strip("() "), number) for name in layer.replace(":", "|").split("|"))


def trace_claim() -> Trace:
    """Create the claim, and wait until it is Bound."""
    tracer = Tracer()

    async def main() -> None:
        with tempfile.TemporaryDirectory() as directory:
            given: dict[str, Any] = {"root": directory, "node_name": "node-a"}
            backend = HostPathBackend(driver_options(HostPathBackend.options_schema, given, DRIVER))
            async with Cluster({DRIVER: backend}) as cluster:
                await cluster.create_class("fast")
                await cluster.settle()
                before = sys.getprofile()
                sys.setprofile(tracer)
                try:
                    claim = await cluster.create_claim("data", storage_class="fast", capacity="1Mi")
                    await cluster.wait_bound(claim)
                finally:
                    sys.setprofile(before)

    run(main())
    return tracer.trace


def main() -> None:
    """Print files and functions."""
    trace = trace_claim()
    for number, path in enumerate(trace.files, 1):
        print(f"{number:2} {path}: {', '.join(name for file, name in trace.functions if file == path)}")
    print("\ncalls of a higher layer:")
    for (path, name), (above, called) in trace.upward:
        print(f"   {path} {name} -> {above} {called}")


if __name__ == "__main__":
    main()
