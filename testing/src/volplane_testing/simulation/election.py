"""The Lease under which the processes of a run lead, processes that are stopped or cut off while they hold it.

Elections themselves are not simulated: a process that starts is the holder from then on. What it believes is the real
`Leadership`, whose end only a stop brings.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from volplane.controller.leader import Leadership
from volplane.kube import leases
from volplane.requests import Fence
from volplane_testing.simulation.loop import schedule_loop
from volplane_testing.simulation.process import Process
from volplane_testing.simulation.run_context import LEASE_NAME, NAMESPACE, RunContext
from volplane_testing.simulation.scenarios import Scenario

__all__ = ["Election", "Stops", "write_damage", "write_late_attach", "write_partitions"]

LEASE_SECONDS: Final = 15.0
"""Virtual seconds for which the Lease lasts after its last renewal."""
RENEWAL: Final = 2.0
"""Virtual seconds until an elector renews its Lease."""
MARGIN: Final = 5.0
"""Virtual seconds before its end in which nothing is begun any more."""
MOST_COUNTED_ON: Final = 20
"""How often a run lets a leader begin a later term because of a storage: a restored server has few assets."""
_SUSPENDED: Final = 0.4
"""Share of the stopped processes whose whole machine is suspended."""
NOTICED: Final = 2.0
"""Virtual seconds after which a process that goes on has noticed that its lease is over, at most."""


class Election:
    """The Lease, and who holds it. processes: those that live, as the run keeps them."""

    def __init__(
        self,
        run_context: RunContext,
        processes: Sequence[Process],
        *,
        start: Callable[[], None],
        end: Callable[[str, str], None],
        namespace: str = NAMESPACE,
    ) -> None:
        """start: starts a process that leads. end: ends the process of this name, for the reason given. namespace: of
        the Lease.
        """
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.actions: Mapping[str, Callable[..., None]] = {
            "remake_lease": self.remake_lease,
            "edit_lease": self.edit_lease,
        }
        self.holder = ""
        """Name of the process that the Lease names."""
        self.slept: defaultdict[str, float] = defaultdict(float)
        """Process -> seconds for which its machine was suspended: its monotonic clock stood still meanwhile."""
        self._view = run_context.view
        self._violations = run_context.violations
        self._counted_on = 0
        self._happened = run_context.trace.happened
        self.processes = processes
        """Those that live."""
        self._start = start
        self._end = end

    def take(self, name: str) -> Leadership:
        """Make this process the holder."""
        self.holder = name
        if (lease := self._send("GET")) is None:
            spec = {"holderIdentity": name, "leaseTransitions": 0}
            lease = self._send("POST", {"metadata": {"name": LEASE_NAME}, "spec": spec}) or {}
        else:
            spec = {"holderIdentity": name, "leaseTransitions": leases.next_term(lease["spec"]["leaseTransitions"])}
            if (taken := self._send("PATCH", {"spec": spec})) is None:
                self._violations.report("somebody-leads", f"{name} cannot take the Lease with {spec}")
            lease = taken or lease
        fence = _fence_of(lease, name)
        time, slept = asyncio.get_running_loop().time, partial(self.slept.__getitem__, name)
        return Leadership(fence=fence, until=math.inf, margin=MARGIN, clock=lambda: time() - slept(), suspended=slept)

    def begin_anew(self, name: str) -> None:
        """End the process of this name, which knows of a past that the restored server does not have."""
        for process in self._named(name):
            self._count_on(process.leadership.fence)
        self._end(name, "the server was restored from a backup")

    def fenced(self, name: str, term: str) -> None:
        """Let the elector of this process count on with a renewal: a storage refused it because of a later term."""
        for process in self._named(name):
            process.leadership.fenced(term)
            if process.leadership.behind is not None:
                asyncio.get_running_loop().call_later(RENEWAL, self._begin_later_term, process)

    def _begin_later_term(self, process: Process) -> None:
        if process in self.processes and process.name == self.holder:
            self._counted_on += 1
            if self._counted_on > MOST_COUNTED_ON:
                text = f"{process.name} is the {self._counted_on}th that counts on from what a storage says"
                self._violations.report("somebody-leads", text)
            self._count_on(process.leadership.behind)
            self._end(process.name, "a storage knows of a later term")

    def _named(self, name: str) -> list[Process]:
        return [process for process in self.processes if process.name == name]

    def _count_on(self, ours: Fence | None) -> None:
        """Count the terms on, as an elector does that finds the Lease of an earlier term after a restore."""
        lease = self._send("GET")
        if lease is None or ours is None or lease["metadata"]["uid"] != ours.lease:
            return
        if ours.outdates(replace(ours, transitions=lease["spec"]["leaseTransitions"])):
            self._send("PATCH", {"spec": {"leaseTransitions": ours.transitions}})

    def server_restored(self) -> None:
        """Set the Lease back to the backup's. Its holder finds that at the next renewal."""
        asyncio.get_running_loop().call_later(RENEWAL, self._look)

    def _look(self) -> None:
        lease = self._send("GET")
        for process in self._named(self.holder):
            ours = process.leadership.fence
            if lease is not None and ours is not None and _fence_of(lease, lease["spec"]["holderIdentity"]) != ours:
                self.begin_anew(process.name)

    def remake_lease(self, delay: float) -> None:
        """Delete the Lease, or its namespace. Its holder notices after a while and takes a new one."""
        self._happened["lease: deleted"] += 1
        self._send("DELETE")
        asyncio.get_running_loop().call_later(delay, self._retake)

    def _retake(self) -> None:
        """Take a new Lease once the holder runs and reaches the server, unless its own is over by then."""
        holder = next(iter(self._named(self.holder)), None)
        if holder is None or not holder.leadership.may_begin():
            return
        loop = schedule_loop()
        if loop.is_stopped(holder.name) or holder.network.apart:
            loop.call_later(RENEWAL, self._retake)
        elif self._send("GET") is None:
            self._happened["lease: made anew"] += 1
            holder.lead_again(self.take(holder.name))

    def edit_lease(self, edit: str, notices: float) -> None:
        """Edit the Lease by hand. Its holder notices at the next renewal and starts another term.

        Where no holder is left, another process takes it at once. notices: seconds.
        """
        lease = self._send("GET")
        if lease is None or len(self.processes) != 1:
            return
        self._happened[f"lease: edited ({edit})"] += 1
        process = self.processes[0]
        edits = {
            "fewer terms": {"leaseTransitions": 0},
            "more terms": {"leaseTransitions": lease["spec"]["leaseTransitions"] + 1000},
            "damaged": {"leaseTransitions": 2**31 - 1},
            "another holder": {"holderIdentity": "somebody"},
            "no holder": {"holderIdentity": ""},
        }
        self._send("PATCH", {"spec": edits[edit]})
        if edit == "no holder":
            self._start()
        asyncio.get_running_loop().call_later(notices, self._notice_edit, process)

    def _notice_edit(self, process: Process) -> None:
        if process.network.apart:
            left = process.network.apart_until - asyncio.get_running_loop().time()
            asyncio.get_running_loop().call_later(left, self._notice_edit, process)
        elif process in self.processes:
            self._count_on(process.leadership.fence)
            self._end(process.name, "its Lease was edited")

    def _send(self, method: str, body: Any = None) -> Any:
        path = self._leases if method == "POST" else f"{self._leases}/{LEASE_NAME}"
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **body} if method == "POST" else body
        sent = json.dumps(content).encode() if content is not None else b""
        answer = self._view.send("cluster", method, path, sent, headers={"content-type": media})
        return json.loads(answer.body) if answer.status < 300 else None


def _fence_of(lease: dict[str, Any], holder: str) -> Fence:
    return Fence(lease["spec"]["leaseTransitions"], holder, lease["metadata"]["uid"])


class Stops:
    """Stops processes as SIGSTOP does, and lets them go on as SIGCONT does; cuts them off from the API server."""

    def __init__(
        self,
        run_context: RunContext,
        election: Election,
        *,
        start: Callable[[], None],
        end: Callable[[str, str], None],
    ) -> None:
        """start: starts a process that leads. end: ends the process of this name, for the reason given."""
        self._election = election
        self.actions: Mapping[str, Callable[..., None]] = {
            "stop_process": self.stop_process,
            "stop_before": self.stop_before,
            "cut_off": self.cut_off,
        }
        self.stalled: dict[str, float] = {}
        """Process whose threads are stopped one after another -> loop time at which they go on."""
        self.over = 0.0
        """Loop time at which all that were stopped have gone on, and have noticed it."""
        self._suspended: dict[str, float] = {}
        """Process whose machine is suspended -> seconds."""
        self._armed: dict[str, tuple[float, float]] = {}
        """Hook -> window, and seconds for which its next caller is stopped."""
        self._context = contextvars.copy_context()
        self._processes = election.processes
        self._start = start
        self._end = end
        self._chance = run_context.chance
        self._trace = run_context.trace
        self._violations = run_context.violations
        self._loop = schedule_loop()

    def stop_process(self, window: float, seconds: float) -> None:
        """Stop the only process that lives, and let it go on after so many seconds; another one leads meanwhile.

        window: seconds in which its threads are stopped one by one.
        """
        if len(self._processes) != 1 or self._processes[0].name in self.stalled:
            return
        process = self._processes[0]
        stops = self._loop.time() + window
        self._trace.happened["process: stopped"] += 1
        self.stalled[process.name] = stops + seconds
        self.over = stops + seconds + NOTICED
        self._at(stops, self._stop, process)
        if seconds > LEASE_SECONDS:
            process.leadership.until = stops + LEASE_SECONDS
            self._at(stops + LEASE_SECONDS, self._replace, process)
        if not window and self._chance.number(f"{process.name} is suspended at {stops}") < _SUSPENDED:
            self._trace.happened["machine: suspended"] += 1
            self._suspended[process.name] = seconds
        self._at(stops + seconds, self._go_on, process)

    def cut_off(self, seconds: float) -> None:
        """Cut the only living process off from the API server, but not from the storage: it cannot renew its Lease.

        The worst that may be is simulated: its elector has renewed the Lease a moment ago, and does not end the work
        before the Lease is over, when another process leads.
        """
        if len(self._processes) != 1 or self._processes[0].name in self.stalled or self._processes[0].network.apart:
            return
        process, now = self._processes[0], self._loop.time()
        self._trace.happened["process: cut off from the API server"] += 1
        process.network.apart_until = now + seconds
        self.over = max(self.over, now + seconds + NOTICED)
        if seconds > LEASE_SECONDS:
            process.leadership.until = now + LEASE_SECONDS
            self._at(now + LEASE_SECONDS, self._replace, process)
        self._at(now + seconds, self._notice_end, process)

    def _at(self, when: float, what: Callable[[Process], None], process: Process) -> None:
        """Run in the context of the run: callbacks of a process do not run while it is stopped."""
        self._loop.call_at(when, what, process, context=self._context)

    def stop_before(self, hook: str, seconds: float, window: float = 0.0) -> None:
        """Stop the only process in the middle of its next call of this hook: between the decision and the effect.

        window: as of `stop_process`; with one that is longer than the call, its thread is the first that stops, after
        its last look at the lease. Then somebody deletes the Lease too: terms of two Leases cannot be compared, so no
        storage can refuse what the thread does late.
        """
        self._armed[hook] = window, seconds

    def begins(self, hook: str) -> None:
        """Note that a thread of a process takes up a call of this hook."""
        if (armed := self._armed.pop(hook, None)) is not None and not self._chance.calm.is_set():
            self.stop_process(*armed)
            if armed[0]:
                self._at(self._loop.time() + armed[0], self._delete_lease, self._processes[0])

    def _delete_lease(self, process: Process) -> None:
        if list(self._processes) == [process]:
            self._election.remake_lease(RENEWAL)

    def _stop(self, process: Process) -> None:
        if process in self._processes:
            self._trace.note("fault", f"{process.name} is stopped")
            self._loop.stop_process(process.name)

    def _replace(self, process: Process) -> None:
        if list(self._processes) == [process] and self._violations.violation is None:
            self._start()

    def _go_on(self, process: Process) -> None:
        self.stalled.pop(process.name, None)
        if process not in self._processes:
            return
        self._trace.note("fault", f"{process.name} goes on")
        self._election.slept[process.name] += self._suspended.pop(process.name, 0.0)
        self._loop.continue_process(process.name)
        self._notice_end(process)

    def _notice_end(self, process: Process) -> None:
        if process in self._processes and not process.leadership.may_begin():
            notices = self._chance.between(0.0, NOTICED, f"{process.name} notices")
            self._loop.call_later(notices, self._end, process.name, "its lease is over")


def write_late_attach(do: Callable[..., None], about: str, end: float) -> None:
    """Write an action of `Stops`: a thread attaches late, which no storage can refuse.

    do, about, end: as of `write_partitions`.
    """
    random = Random(f"{about} late attach")  # noqa: S311 -- schedules, not secrets
    if random.random() < 0.2:
        do(random.uniform(0.0, end) / 2, "stop_before", hook="attach", seconds=600.0, window=1.0)


def write_damage(do: Callable[..., None], about: str, share: float, end: float) -> None:
    """Write actions that damage the count of terms on the Lease, and those in the marks of assets.

    do, about, end: as of `write_partitions`.
    """
    random = Random(f"{about} damage")  # noqa: S311 -- schedules, not secrets
    if random.random() >= share:
        return
    if random.random() < 0.5:
        do(random.uniform(0.0, end), "edit_lease", edit="damaged", notices=random.uniform(0.0, RENEWAL))
    for _ in range(random.randint(1, 3)):
        do(random.uniform(0.0, end), "damage_marks", count=random.choice((2**31 - 1, 2**30, 2**40)))


def write_partitions(do: Callable[..., None], about: str, scenario: Scenario, end: float) -> None:
    """Write actions of `Election` and `Stops`: leaders are cut off from the API server, Leases are edited by hand.

    do: adds an action. about: what the draws depend on. end: virtual second before which they begin.
    """
    random = Random(f"{about} partitions")  # noqa: S311 -- schedules, not secrets
    for _ in range(random.randint(1, 2) if random.random() < scenario.parted else 0):
        seconds = random.choice((random.uniform(1.0, 14.0), random.uniform(16.0, 60.0), 600.0))
        do(random.uniform(0.0, end), "cut_off", seconds=seconds)
    if random.random() < scenario.edited:
        edit = random.choice(("fewer terms", "more terms", "another holder", "no holder"))
        at = random.uniform(0.0, end)
        notices = random.uniform(0.0, RENEWAL)
        do(at, "edit_lease", edit=edit, notices=notices)
        if random.random() < 0.6:
            # Its holder does not live to notice; who comes next knows no more than the Lease says.
            do(at + random.uniform(0.0, notices), "crash", which=0)
