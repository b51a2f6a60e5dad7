"""A second installation of volplane, which serves drivers of the same names: with a namespace, a Lease and a sealing
key of its own.

It makes volumes; the first one binds them, and reclaims them: a cluster has one binder, and the pods that scrub are
simulated in one namespace. It ends before a run comes to rest, as if a person had stopped it: what it has begun is for
the first one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from volplane.controller.leader import Leadership
from volplane.kube.names import INTENT
from volplane_testing.simulation.cluster_view import Commit, Json, annotations_of
from volplane_testing.simulation.election import Election
from volplane_testing.simulation.process import Installation, Process
from volplane_testing.simulation.run_context import RunContext

__all__ = ["SecondInstallation", "write_installations"]

SECOND: Final = Installation(namespace="second-system", key=b"another key, as well known", binds=False)


class SecondInstallation:
    """Its `actions` are the `what` of actions."""

    def __init__(self, run_context: RunContext, *, make: Callable[[str, Leadership, Installation], Process]) -> None:
        """make: makes a process of an installation, that is not started yet."""
        self.actions: Mapping[str, Callable[..., None]] = {"begin_second": self.begin, "end_second": self.end}
        self.process: Process | None = None
        self._make = make
        self._view = run_context.view
        self._trace = run_context.trace
        self._safety = run_context.safety
        self._election = Election(
            run_context, (), start=lambda: None, end=lambda _name, _why: None, namespace=SECOND.namespace
        )
        self._begun = 0
        run_context.view.listeners.append(self._committed)

    def begin(self) -> None:
        """Start its process, unless it runs."""
        if self.process is not None:
            return
        self._begun += 1
        self._trace.happened["installation: a second one begins"] += 1
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SECOND.namespace}}
        self._view.send("cluster", "POST", "/api/v1/namespaces", json.dumps(body).encode(), headers=_JSON)
        name = f"second-{self._begun}"
        self.process = self._make(name, self._election.take(name), SECOND)
        self._trace.note(name, "starts")
        self._safety.overlap = True
        self.process.start()

    def end(self) -> None:
        """Kill it."""
        process, self.process = self.process, None
        if process is not None:
            self._trace.note("fault", f"{process.name} ends")
            self._safety.overlap_ended = asyncio.get_running_loop().time()
            process.kill()

    def _committed(self, commit: Commit) -> None:
        """Check that a record of another installation, whose content is unknown, is not replaced."""
        if commit.kind != "claim" or commit.old is None or commit.new is None:
            return
        before, after = _author(commit.old), _author(commit.new)
        if before and after and before != after:
            self._trace.happened["installation: takes the record of the other"] += 1
            self._safety.forged.setdefault(commit.new["metadata"]["uid"], asyncio.get_running_loop().time())


_JSON: Final = {"content-type": "application/json"}


def _author(claim: Json) -> str:
    try:
        record = json.loads(annotations_of(claim).get(INTENT) or "{}")
    except ValueError:
        return ""
    return str(record.get("by", "")) if isinstance(record, dict) else ""


def write_installations(do: Callable[..., None], about: str, share: float, end: float) -> None:
    """Write actions of `SecondInstallation`. do: adds an action. about: what the draws depend on. end: virtual second
    before which they begin.
    """
    random = Random(f"{about} installations")  # noqa: S311 -- schedules, not secrets
    if random.random() >= share:
        return
    begins = random.choice((0.0, random.uniform(0.0, end)))
    do(begins, "begin_second")
    for _ in range(random.choice((0, 1, 2))):
        ends = begins + random.choice((2.0, 30.0, 120.0)) * random.random()
        do(ends, "end_second")
        begins = ends + random.choice((0.0, 5.0, 90.0)) * random.random()
        do(begins, "begin_second")
