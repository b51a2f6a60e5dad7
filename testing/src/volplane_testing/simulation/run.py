"""One run of one schedule, from the first action until the cluster is at rest or an invariant is broken."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from volplane.attach.comparison import INTERVAL
from volplane.controller.actions import EventRecord
from volplane.controller.leader import Leadership
from volplane_testing import clock
from volplane_testing.conformance import Subject
from volplane_testing.conformance.subject import MakeSubject, opened
from volplane_testing.simulation.actors import Actors
from volplane_testing.simulation.attached_storage import Machines
from volplane_testing.simulation.attaching_nodes import AttachingNodes, SimulatedMachines, node_body
from volplane_testing.simulation.changes import Changes
from volplane_testing.simulation.election import RENEWAL, Election, Stops
from volplane_testing.simulation.external_backends import Judged
from volplane_testing.simulation.followers import Followers
from volplane_testing.simulation.hooks import FaultInjector, latency_of
from volplane_testing.simulation.installations import SecondInstallation
from volplane_testing.simulation.interruptions import Interruptions
from volplane_testing.simulation.liveness import Liveness
from volplane_testing.simulation.loop import ScheduleLoop
from volplane_testing.simulation.names_used_again import NamesUsedAgain
from volplane_testing.simulation.network import Network
from volplane_testing.simulation.nodes import Nodes
from volplane_testing.simulation.process import FIRST, Installation, Process, ProcessParts
from volplane_testing.simulation.run_context import NAMESPACE, RunContext
from volplane_testing.simulation.schedule import Action, Schedule
from volplane_testing.simulation.server_faults import ServerFaults
from volplane_testing.simulation.snapshots import Snapshots
from volplane_testing.simulation.storages import Storages, check_attachments
from volplane_testing.simulation.tenants import Tenant
from volplane_testing.simulation.trace import InvariantViolation, Trace
from volplane_testing.simulation.trash import KeptVolumes
from volplane_testing.simulation.twins import Twins

__all__ = ["Trial", "TrialResult", "simulate"]

LIMIT: Final = 8 * 3600.0
"""Virtual seconds a run may take."""
RESTLESS: Final = 3600.0
"""Virtual seconds without faults after which the run must be at rest."""
QUIET: Final = 100.0
"""Virtual seconds without a write after which a run counts as at rest."""
COMPARED: Final = 2.5 * INTERVAL
"""The same where volumes are attached: what the storage shows is believed at the second look."""
RESYNC: Final = 60.0
"""Virtual seconds without faults after which a resync comes; once is enough."""
MOST_CRASHES: Final = 5
CAUGHT_UP: Final = 5.0
"""Virtual seconds after which a process has seen every object that existed when it started."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A schedule to run. actions: numbers of those that happen; faults: marks of those that may; None = all of the
    schedule's.
    """

    schedule: Schedule
    actions: frozenset[int] | None = None
    faults: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class TrialResult:
    """How a trial ended. violation: None = well. done: numbers of the actions; fired: marks of the faults that
    struck.
    """

    trial: Trial
    violation: InvariantViolation | None
    trace: Trace
    done: tuple[int, ...]
    fired: tuple[str, ...]
    seconds: float
    """Virtual."""
    judged: Mapping[str, Judged]
    """By driver of a backend under test."""


def simulate(trial: Trial, backends: Sequence[Subject | MakeSubject] = ()) -> TrialResult:
    """Run a trial. The same trial always runs the same way.

    backends: real ones, at most two, in the places of the simulated ones. What gives a fresh storage for each run needs
    no cleaning; a `Subject` itself is one storage for all runs, and is left empty. Raises ConfigurationError for a
    backend that cannot be simulated, or that leaves something behind.
    """
    with ExitStack() as stack:
        subjects = [stack.enter_context(opened(make)) for make in backends]
        if trial.schedule.alpha.attaches:
            check_attachments(trial.schedule.scenario, subjects)
        shared = [isinstance(make, Subject) for make in backends]
        runner = stack.enter_context(
            asyncio.Runner(loop_factory=lambda: ScheduleLoop(seed=trial.schedule.seed, limit=LIMIT))
        )
        return runner.run(_begin(trial, subjects, shared))


async def _begin(trial: Trial, subjects: Sequence[Subject], shared: Sequence[bool]) -> TrialResult:
    simulation = _Simulation(trial, subjects)
    result = await simulation.run()
    simulation.clean_up(shared)
    return result


class _Simulation:
    """Needs a running ScheduleLoop from the start."""

    def __init__(self, trial: Trial, subjects: Sequence[Subject]) -> None:
        self._trial = trial
        self._schedule = schedule = trial.schedule
        chosen = trial.actions
        self._actions = [action for action in schedule.actions if chosen is None or action.number in chosen]
        self._loop = asyncio.get_running_loop()
        self._run_context = run_context = RunContext.create(
            schedule.seed, faults=trial.faults, without_bookmarks=schedule.without_bookmarks
        )
        self._trace = run_context.trace
        self._violations = run_context.violations
        self._chance = run_context.chance
        self._server = run_context.server
        self._view = run_context.view
        self._safety = run_context.safety
        self._injector = FaultInjector(run_context, schedule.hooks, self._crash_named)
        self._storages = Storages(run_context, self._injector, schedule, subjects)
        self._actors = Actors(run_context, self._storages.simulated, self._storages.externals)
        machines: Machines = SimulatedMachines()
        for external in self._storages.externals.values():
            machines = external.attached
        about = (run_context, schedule.pods, self._storages.labels)
        self._machines = machines
        self._nodes = AttachingNodes(machines, *about) if schedule.alpha.attaches else Nodes(*about)
        self._liveness = Liveness(run_context, self._actors, self._nodes, self._storages.externals)
        self._server_faults = ServerFaults(run_context, self._nodes.server_restored)
        self._prepare()
        self._wall, self._started = clock.LoopClock(), 0
        self._living: list[Process] = []
        self._calm_since, self._crashes = math.inf, 0
        self._election = Election(run_context, self._living, start=self._start_process, end=self._end_process)
        self._server_faults.listeners.append(self._election.server_restored)
        self._stops = Stops(run_context, self._election, start=self._start_process, end=self._end_process)
        self._injector.stalled = self._stops.stalled
        run_context.hook_rules.begins = self._stops.begins
        self._tasks: set[asyncio.Task[Any]] = set()
        self._happened = self._trace.happened
        self._process_actions: Mapping[str, Callable[..., Any]] = {
            "crash": self._kill,
            "second_leader": self._let_two_lead,
            "outage": self._set_driver,
            "set_clock": self._set_clock,
            "hold_watches": self._hold_watches,
            "compact": self._compact,
            **self._election.actions,
            **self._stops.actions,
            "end_watches": self._end_watches,
            "damage_marks": self._damage_marks,
            "rotate_certificate": self._server_faults.rotate_certificate,
            "refuse": self._server_faults.refuse,
            "meet_proxy": self._server_faults.meet_proxy,
            "back_up": self._server_faults.back_up,
            "restore_server": self._server_faults.restore_server,
        }
        if isinstance(self._nodes, AttachingNodes):
            troubles = ("lose_node", "taint_node", "evict_pods", "return_node", "renew_node")
            self._process_actions = {**self._process_actions, **{each: getattr(self._nodes, each) for each in troubles}}
        self._changes = Changes(run_context, self._storages.simulated)
        self._second = SecondInstallation(run_context, make=self._make_process)
        self._followers = Followers(run_context, make=self._make_numbered)
        people = (Interruptions(run_context), Twins(run_context), Tenant(run_context, self._actors.hidden))
        others = [each.actions for each in (*people, self._second, self._followers)]
        self._kept, self._snapshots = KeptVolumes(run_context), Snapshots(run_context, self._storages.simulated)
        self._liveness.holds = self._snapshots.holds
        for each in (self._changes.actions, *others, self._kept.actions, self._snapshots.actions):
            self._process_actions = {**self._process_actions, **each}
        self._changes.prepare()
        self._reused: NamesUsedAgain | None = None
        if isinstance(self._nodes, AttachingNodes):
            self._reused = NamesUsedAgain(run_context, self._storages.simulated, self._nodes)
            self._process_actions = {**self._process_actions, **self._reused.actions}

    async def run(self) -> TrialResult:
        self._loop.set_exception_handler(self._unhandled)
        self._spawn(self._nodes.run())
        self._start_process()
        try:
            await self._play()
            await self._come_to_rest()
        finally:
            self._storages.calm()
            await self._end()
        return TrialResult(
            trial=self._trial,
            violation=self._violations.violation,
            trace=self._trace,
            done=tuple(action.number for action in self._actions),
            fired=tuple(self._chance.fired),
            seconds=self._loop.time(),
            judged={role: external.judged() for role, external in self._storages.externals.items()},
        )

    def clean_up(self, shared: Sequence[bool]) -> None:
        """Empty the storages that the next run uses too."""
        for external, needed in zip(self._storages.externals.values(), shared, strict=True):
            if needed:
                external.clean_up()

    async def _end(self) -> None:
        for process in filter(None, [*self._living, self._second.process]):
            process.kill()
        self._followers.end()
        for task in self._tasks:
            task.cancel()
        self._server.close()
        await asyncio.sleep(0)

    def _spawn(self, coro: Coroutine[Any, Any, Any]) -> None:
        task = self._loop.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        self._violations.report("no-internal-error", f"{context['message']}: {context.get('exception')!r}")

    # --- initial objects ----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        bodies: list[tuple[str, Any]] = [("Namespace", {"metadata": {"name": NAMESPACE}})]
        for name, labels in self._storages.labels.items():
            plain = {"metadata": {"name": name, "labels": labels}}
            attaches = self._schedule.alpha.attaches
            bodies.append(("Node", self._node_body(name, labels) if attaches else plain))
        for kind, each in bodies:
            body = json.dumps({"apiVersion": "v1", "kind": kind, **each}).encode()
            self._server.handle("POST", f"/api/v1/{kind.lower()}s", {}, {"content-type": "application/json"}, body)

    def _node_body(self, name: str, labels: Any) -> Any:
        machine = self._machines.machine_for(name)
        return node_body(name, labels, machine, self._machines.csi_ids(machine), f"boot-{machine}")

    # --- processes ----------------------------------------------------------------------------------------------

    def _start_process(self) -> None:
        warm, lag = self._followers.take() or (None, 0.0)
        name = warm.name if warm is not None else f"p{self._started + 1}"
        leadership = self._election.take(name)
        process = warm or self._make_numbered(leadership, FIRST)
        self._trace.note(name, "starts" if warm is None else "leads, as it has followed")
        self._safety.started += 1
        self._living.append(process)
        self._safety.informed = self._loop.time() + CAUGHT_UP + max(lag, self._schedule.network.lag)
        self._safety.overlap = self._overlap()
        if warm is None:
            process.start()
        else:
            process.lead(leadership)

    def _make_numbered(self, leadership: Leadership, installation: Installation) -> Process:
        self._started += 1
        return self._make_process(f"p{self._started}", leadership, installation)

    def _overlap(self) -> bool:
        return len(self._living) > 1 or self._second.process is not None

    def _make_process(self, name: str, leadership: Leadership, installation: Installation) -> Process:
        network = Network(
            name,
            self._run_context,
            self._schedule.network,
            server=self._server_faults,
            crash=lambda why: self._crash_named(name, why),
        )
        return Process(
            name,
            ProcessParts(
                drivers=self._storages.drivers(),
                injector=self._injector,
                network=network,
                latency=latency_of(name, self._run_context, self._schedule.hooks),
                wall=self._wall,
                violations=self._violations,
                record=self._record,
                calm_since=lambda: self._calm_since,
                restart=partial(self._election.begin_anew, name),
                fenced=partial(self._election.fenced, name),
                leadership=leadership,
                rules=self._run_context.hook_rules,
                seed=self._schedule.seed,
                attaches=self._schedule.alpha.attaches,
                cuts=self._schedule.alpha.cuts,
                installation=installation,
            ),
        )

    def _crash_named(self, name: str, why: str) -> bool:
        for process in self._living:
            if process.name == name and self._crashes < MOST_CRASHES:
                self._crash(process, why)
                return True
        return False

    def _end_process(self, name: str, why: str) -> None:
        """End the process of this name, as often as there is a reason."""
        for process in [each for each in self._living if each.name == name]:
            self._crashes -= 1
            self._crash(process, why)

    def _crash(self, process: Process, why: str) -> None:
        self._crashes += 1
        self._trace.note("fault", f"{process.name} dies: {why}")
        self._living.remove(process)
        if self._safety.overlap:
            self._safety.overlap_ended = self._loop.time()
        self._safety.overlap = self._overlap()
        process.kill()
        if not self._working():
            pause = self._chance.between(0.0, 3.0, f"{process.name} restart") ** 2
            self._loop.call_later(pause, self._start_if_none)
        else:
            self._inherit()

    def _inherit(self) -> None:
        """Let a process that works, whose own term is over, begin a term without what it knows once it notices that."""
        if self._election.holder not in {each.name for each in self._living}:
            name = self._working()[-1].name
            notices = self._chance.between(0.0, RENEWAL, f"{name} notices that it was followed")
            self._loop.call_later(notices, self._end_process, name, "another one led since")

    def _working(self) -> list[Process]:
        """Return the processes that live, are not stopped, and reach the API server."""
        return [each for each in self._living if each.name not in self._stops.stalled and not each.network.apart]

    def _start_if_none(self) -> None:
        if self._violations.violation is not None:
            return
        if self._working():
            self._inherit()  # One that was stopped, or cut off, works again.
        else:
            self._start_process()

    def _record(self, who: str, event: EventRecord) -> None:
        self._trace.note(who, f"tells {self._view.spell(event.about.name)}: {event.reason}: {event.message}")

    # --- the schedule -------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        for action in self._actions:
            await self._until(action.at)
            if self._violations.violation is not None:
                return
            self._trace.note("user", action)
            self._act(action)
        await self._until(self._schedule.calm)
        while (over := self._stops.over) > self._loop.time() and self._violations.violation is None:
            await self._until(over)

    async def _come_to_rest(self) -> None:
        """Stop all faults, wait until the run is at rest, and check the invariants of that state."""
        self._trace.note("fault", "no more of them")
        self._chance.calm.set()
        self._calm_since = self._loop.time()
        self._injector.down.clear()
        self._storages.calm()
        for each in (self._nodes, self._changes, self._server_faults, self._kept, self._snapshots):
            each.recover()
        if self._reused is not None:
            self._reused.recover()
        self._second.end()
        self._safety.overlap = self._overlap()
        for stopped in [p for p in self._living if not p.leadership.may_begin()]:
            self._crash(stopped, "its lease is over")
        while (many := len(self._living)) > 1:
            self._crash(self._living[int(self._chance.number(f"who stays {many}") * many)], "another one leads")
        self._loop.call_later(RESYNC, self._look_at_sources)
        # By a clock that was set forth something may be kept for as much longer.
        version, since, end = -1, self._loop.time(), self._loop.time() + RESTLESS + max(self._wall.offset, 0.0)
        quiet = COMPARED if self._schedule.alpha.attaches else QUIET
        while self._violations.violation is None:
            await self._until(self._loop.time() + 10.0)
            process = self._living[0] if self._living else None
            at_rest = process is not None and process.at_rest(self._liveness.unending()) and not self._nodes.busy
            if process is None or not at_rest or self._server.store.version != version:
                version, since = self._server.store.version, self._loop.time()
            elif self._loop.time() - since >= quiet:
                self._take_stock(process)
                return
            if self._loop.time() > end:
                text = f"after an hour without faults there is still something to do: {process and process.reasons()}"
                self._violations.report("comes-to-rest", text)

    def _look_at_sources(self) -> None:
        """Find claims that a process held for a snapshot before it died: no other object tells of them."""
        for process in self._living:
            process.look_again("snapshot-sources")

    def _take_stock(self, process: Process) -> None:
        self._storages.take_stock()
        self._liveness.check(process)
        self._changes.check(process.reasons())
        self._snapshots.check(process.reasons())
        for driver in process.unchecked():
            self._violations.report("hooks-end-nothing", f"nobody checks driver {driver} for leaks any more")
        if self._violations.violation is None:
            self._storages.check_nothing_left()

    async def _until(self, when: float) -> None:
        """Let time pass until then, or until an invariant is broken."""
        left = when - self._loop.time()
        if left > 0:
            await self._violations.until(self._loop.time() + left)

    def _act(self, action: Action) -> None:
        act = self._process_actions.get(action.what)
        taking = act(**action.detail) if act is not None else self._actors.act(action)
        if asyncio.iscoroutine(taking):
            self._spawn(taking)

    def _kill(self, which: int) -> None:
        if self._living:
            self._happened["process: killed"] += 1
            self._crash(self._living[min(which, len(self._living) - 1)], "killed")

    def _let_two_lead(self) -> None:
        if len(self._living) == 1:
            self._happened["process: two lead"] += 1
            self._start_process()

    def _set_driver(self, driver: str, *, down: bool) -> None:
        (self._injector.down.add if down else self._injector.down.discard)(driver)

    def _set_clock(self, seconds: float) -> None:
        self._happened["clock: set forth" if seconds > 0 else "clock: set back"] += 1
        self._wall.offset += seconds

    def _damage_marks(self, count: int) -> None:
        """Damage what the storages say of the terms in which assets were changed, as far as they do."""
        claims = list(self._view.claims_by_uid)
        for backend in self._storages.simulated.values():
            self._happened["storage: marks of terms are damaged"] += sum(
                backend.damage_mark(f"pvc-{uid}", count) for uid in claims
            )

    def _hold_watches(self, seconds: float, plural: str = "") -> None:
        self._happened[f"watch: {plural or 'all'} are held up"] += 1
        for process in self._living:
            process.network.held_until[plural] = self._loop.time() + seconds

    def _compact(self) -> None:
        self._happened["watch: history compacted"] += 1
        self._server.store.compact()

    def _end_watches(self) -> None:
        self._happened["watch: all end"] += 1
        self._server.end_watches()
