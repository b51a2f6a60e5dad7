"""The backends of one run: simulated ones, and external ones in their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Final

from volplane.assets import Ownership
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver
from volplane.errors import ConfigurationError
from volplane_testing.conformance import Subject
from volplane_testing.simulation.backends import ZONE, LookingBackend, SimulatedBackend
from volplane_testing.simulation.changing_backend import ChangingBackend
from volplane_testing.simulation.cutting_backend import CuttingBackend
from volplane_testing.simulation.disks import source_key
from volplane_testing.simulation.external_backends import ExternalBackend, labels_of_nodes
from volplane_testing.simulation.grouping_backend import GroupingBackend
from volplane_testing.simulation.hooks import FaultInjector, injecting
from volplane_testing.simulation.run_context import RunContext
from volplane_testing.simulation.scenarios import ALPHA, BETA
from volplane_testing.simulation.schedule import Schedule
from volplane_testing.simulation.twins import NotatedBackend

__all__ = ["ROLES", "Storages"]

ROLES: Final = (ALPHA, BETA)
"""Names of the drivers, in the order in which real backends take their places."""


class Storages:
    """What the drivers of every process of a run work on. subjects: at most as many as there are roles."""

    def __init__(
        self, run_context: RunContext, injector: FaultInjector, schedule: Schedule, subjects: Sequence[Subject]
    ) -> None:
        self._run_context = run_context
        self._extensions = [injecting(injector)]
        self._trouble = ExitStack()
        self.externals: Mapping[str, ExternalBackend] = {
            role: ExternalBackend(role, subject, run_context) for role, subject in zip(ROLES, subjects, strict=False)
        }
        injector.externals = self.externals
        self.labels = labels_of_nodes(self.externals.values())
        """Of the nodes: the zones, and the places of the externals."""
        zones = tuple(labels[ZONE] for labels in self.labels.values())
        cutting = GroupingBackend if schedule.alpha.groups else CuttingBackend
        alpha = ChangingBackend if schedule.alpha.attaches else cutting if schedule.alpha.cuts else LookingBackend
        simulated: tuple[SimulatedBackend, ...] = (
            (NotatedBackend if schedule.alpha.notated else alpha)(ALPHA, schedule.alpha, run_context.chance),
            SimulatedBackend(BETA, replace(schedule.beta, zones=zones), run_context.chance),
        )
        self.simulated: Mapping[str, SimulatedBackend] = {
            backend.name: backend for backend in simulated if backend.name not in self.externals
        }
        self._shared = [self._listened_to(backend) for backend in self.simulated.values()]
        for external in self.externals.values():
            if external.subject.trouble is not None:
                self._trouble.enter_context(external.subject.trouble(Random(f"{schedule.seed} {external.role}")))  # noqa: S311

    def drivers(self) -> list[Driver]:
        """Return the drivers of one process. Instances of real backends are its own."""
        return [*(external.build(self._extensions) for external in self.externals.values()), *self._shared]

    def calm(self) -> None:
        """End the faults of external storages."""
        self._trouble.close()

    def take_stock(self) -> None:
        """Learn what is on the external storages at the end."""
        for external in self.externals.values():
            external.take_stock()

    def check_nothing_left(self) -> None:
        """Delete what is left on the external storages; then they are as they were before the run."""
        for external in self.externals.values():
            external.check_nothing_left()

    def _listened_to(self, backend: SimulatedBackend) -> Driver:
        disks, safety, trace = self._run_context.disks, self._run_context.safety, self._run_context.trace

        def key(handle: str) -> str:
            source = backend.source_of(handle)
            return source_key(source.kind, source.fields)

        def made(handle: str, owner: Ownership) -> None:
            trace.note(backend.name, f"makes {key(handle)} for {self._run_context.view.spell(owner.volume_name)}")
            safety.made(backend.name, key(handle), owner, again=not backend.traits.tokens)

        def mounted(handle: str) -> bool:
            disk = disks.by_key.get(key(handle))
            return disk is not None and bool(disk.mounts)

        listeners = backend.listeners
        listeners.made = made
        listeners.unmade = lambda handle: safety.unmade(key(handle))
        listeners.erased = lambda handle: safety.erased(key(handle))
        listeners.trouble = lambda kind: trace.happened.update((kind,))
        listeners.mounted = mounted
        listeners.attached = lambda handle, node: safety.attachments.attached(key(handle), node)
        listeners.detached = lambda handle, node: safety.attachments.detached(key(handle), node)
        listeners.gone = safety.attachments.gone.__contains__
        plugin = Plugin(kind="backend", name=backend.name.partition(".")[0], factory=lambda _options: backend)
        return Driver(backend.name, plugin, backend, self._extensions)


def check_attachments(scenario: str, subjects: Sequence[Subject]) -> None:
    """Raise ConfigurationError if attachments of these cannot be simulated."""
    if len(subjects) > 1 or any(each.attachments is None for each in subjects):
        raise ConfigurationError(
            f"scenario {scenario} runs with one backend whose storage knows what is attached to which machine "
            "(Subject.attachments); try the others, or `volplane check` for attach and detach"
        )
