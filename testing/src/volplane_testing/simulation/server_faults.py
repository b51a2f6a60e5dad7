"""What goes wrong at the API server as a whole: other credentials, spells of refusals, a proxy that answers in its
place, a restore from a backup.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from volplane.kube.credentials import Credentials, Identity
from volplane.kube.kinds import STORAGE_CLASSES
from volplane.kube.transport import Response
from volplane_embedded.apiserver.store import Snapshot
from volplane_testing.simulation.cluster_view import Json
from volplane_testing.simulation.disks import Disks
from volplane_testing.simulation.run_context import RunContext
from volplane_testing.transport import refusal

__all__ = ["ServerFaults", "write_proxies"]


_LOST: Final = 40
"""Versions that a restore loses at least, if they go back."""


class ServerFaults:
    """The state of the server that its clients meet. Methods without a result are the `what` of actions."""

    def __init__(self, run_context: RunContext, wake: Callable[[], None]) -> None:
        """wake: called when the objects are others than a moment ago."""
        self._server = run_context.server
        self._view = run_context.view
        self._safety = run_context.safety
        self._hook_rules = run_context.hook_rules
        self._disks: Disks = run_context.disks
        self._chance = run_context.chance
        self._trace = run_context.trace
        self.listeners = [wake]
        """Called when the objects are others than a moment ago."""
        self._accepted = 1
        self._refuses = 0
        self._until = 0.0
        self._proxy, self._proxied_until = 0.0, 0.0
        """Share of the calls that a proxy answers, and until when."""
        self._backup: Snapshot | None = None
        self._lost_classes: dict[str, Json] = {}
        """Classes by name that were there before a restore, and not in the backup."""
        self.restores = 0
        """How often the server was restored; connections to it broke each time."""

    # --- actions ------------------------------------------------------------------------------------------------

    def rotate_certificate(self) -> None:
        """Accept only the next identity from now on; it lies where clients read theirs."""
        self._trace.happened["server: rotates a certificate"] += 1
        self._accepted += 1

    def refuse(self, status: int, seconds: float) -> None:
        """Answer everything with this status for a while."""
        self._refuses, self._until = status, asyncio.get_running_loop().time() + seconds

    def meet_proxy(self, seconds: float, share: float) -> None:
        """Let a proxy answer this share of the calls for a while, as while its routes are not programmed."""
        self._proxy, self._proxied_until = share, asyncio.get_running_loop().time() + seconds

    def back_up(self) -> None:
        """Keep a copy of everything."""
        self._backup = self._server.store.snapshot()

    def restore_server(self) -> None:
        """Go back to the copy. What happened on the storage since stays so: no invariant asks about it."""
        if self._backup is None or self._backup.version == self._server.store.version:
            return
        self._trace.happened["server: is restored from a backup"] += 1
        self.restores += 1
        newest = self._server.store.version
        before = dict(self._view.classes)
        # Where versions hardly go back, a client cannot tell the two histories apart: such a server must jump ahead.
        self._server.restore(self._backup, version=0 if newest - self._backup.version >= _LOST else newest + 1000)
        self._view.reload()
        self._lost_classes |= {name: each for name, each in before.items() if name not in self._view.classes}
        self._safety.restored()
        self._hook_rules.restored()
        placed = {pod["metadata"]["uid"] for pod in self._view.pods.values() if pod["spec"].get("nodeName")}
        for disk in self._disks.by_key.values():
            # Nothing says that a pod runs which the backup has on no node.
            disk.mounts = {uid: claim for uid, claim in disk.mounts.items() if uid in placed}
            disk.kept = "the server was restored from a backup"
            disk.waived |= disk.data
        for listener in self.listeners:
            listener()

    def recover(self) -> None:
        """Apply the classes that a restore has lost: without them assets are not found."""
        for name, lost in self._lost_classes.items():
            body = {**lost, "metadata": {"name": name}}
            self._view.send("user", "POST", STORAGE_CLASSES.path(), json.dumps(body).encode())
        self._lost_classes.clear()

    # --- what clients meet --------------------------------------------------------------------------------------

    def credentials(self) -> Credentials:
        """Return those of a process that starts now."""
        return Credentials(self, self._identity())

    async def read(self, *, refused: bool) -> Identity:
        """Return the identity on the disk of every client (`volplane.kube.credentials.Source`)."""
        return self._identity()

    def refusal(self, identity: Identity) -> int:
        """Return the status with which a request is refused; 0: it is not."""
        if asyncio.get_running_loop().time() < self._until and not self._chance.calm.is_set():
            self._trace.happened[f"server: answers {self._refuses}"] += 1
            return self._refuses
        return 0 if identity.mark == self._accepted else 401

    def page(self, call: str) -> Response | None:
        """Return what the proxy answers to a call of which the server never hears; None: it passes the call on."""
        if asyncio.get_running_loop().time() >= self._proxied_until:
            return None
        if not self._chance.strikes(f"{call} proxy", self._proxy):
            return None
        status = self._chance.choice((404, 404, 502), f"{call} page")
        self._trace.strike(f"server: a proxy answers {status}", f"{call}: {status} of a proxy")
        return Response(status, {"content-type": "text/plain"}, b"no such page\n")

    async def answered(self, credentials: Credentials, exchange: Callable[[], Awaitable[Response]]) -> Response:
        """Return the exchange of a client with these credentials, if the server does not refuse it."""

        async def with_identity(identity: Identity) -> Response:
            status = self.refusal(identity)
            return refusal(status, f"{status} by the simulation") if status else await exchange()

        return await credentials.authorized(with_identity, seconds=5.0)

    def _identity(self) -> Identity:
        return Identity(mark=self._accepted)


def write_proxies(do: Callable[..., Any], key: str, end: float) -> None:
    """Add spells in which calls meet a proxy in the place of the server. do: adds an action. key: names the run."""
    random = Random(f"{key} proxies")  # noqa: S311 -- schedules, not secrets
    if random.random() < 0.15:
        seconds, share = random.choice((2.0, 20.0, 90.0)) * random.random(), random.choice((0.3, 0.6))
        do(random.uniform(0.0, end), "meet_proxy", seconds=seconds, share=share)
