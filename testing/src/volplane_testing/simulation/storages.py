"""The storage of one run: simulated backends, and real ones in their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Final

from volplane.assets import Ownership
from volplane.drivers.contract import Plugin
from volplane.drivers.driver import Driver
from volplane.drivers.loading import build_driver
from volplane_testing.conformance import Subject
from volplane_testing.simulation.backends import ZONE, LookingBackend, SimulatedBackend
from volplane_testing.simulation.disks import source_key
from volplane_testing.simulation.guests import Guest, labels_of_nodes
from volplane_testing.simulation.hooks import Turbulence, turbulent
from volplane_testing.simulation.plan import ALPHA, BETA, Plan
from volplane_testing.simulation.stage import Stage

__all__ = ["ROLES", "Storages"]

ROLES: Final = (ALPHA, BETA)
"""Names of the drivers, in the order in which real backends take their places."""


class Storages:
    """What the drivers of every process of a run work on. subjects: at most as many as there are roles."""

    def __init__(self, stage: Stage, turbulence: Turbulence, plan: Plan, subjects: Sequence[Subject]) -> None:
        self._stage = stage
        self._extensions = [turbulent(turbulence)]
        self._trouble = ExitStack()
        self.guests: Mapping[str, Guest] = {
            role: Guest(role, subject, stage) for role, subject in zip(ROLES, subjects, strict=False)
        }
        turbulence.guests = self.guests
        self.labels = labels_of_nodes(self.guests.values())
        """Of the nodes: the zones, and the places of the guests."""
        zones = tuple(labels[ZONE] for labels in self.labels.values())
        simulated: tuple[SimulatedBackend, ...] = (
            LookingBackend(ALPHA, plan.alpha, stage.fate),
            SimulatedBackend(BETA, replace(plan.beta, zones=zones), stage.fate),
        )
        self.simulated: Mapping[str, SimulatedBackend] = {
            backend.name: backend for backend in simulated if backend.name not in self.guests
        }
        self._shared = [self._listened_to(backend) for backend in self.simulated.values()]
        for guest in self.guests.values():
            if guest.subject.trouble is not None:
                self._trouble.enter_context(guest.subject.trouble(Random(f"{plan.seed} {guest.role}")))  # noqa: S311

    def drivers(self) -> list[Driver]:
        """For one process: instances of real backends are its own."""
        return [*(guest.build(self._extensions) for guest in self.guests.values()), *self._shared]

    def calm(self) -> None:
        """No trouble any more."""
        self._trouble.close()

    def _listened_to(self, backend: SimulatedBackend) -> Driver:
        disks, safety, trace = self._stage.disks, self._stage.safety, self._stage.trace

        def key(handle: str) -> str:
            return source_key("hostPath", {"path": handle})

        def made(handle: str, owner: Ownership) -> None:
            trace.note(backend.name, f"makes {key(handle)} for {self._stage.truth.spell(owner.volume_name)}")
            safety.made(backend.name, key(handle), owner, again=not backend.traits.tokens)

        def mounted(handle: str) -> bool:
            disk = disks.by_key.get(key(handle))
            return disk is not None and bool(disk.mounts)

        told = backend.listeners
        told.made = made
        told.unmade = lambda handle: safety.unmade(key(handle))
        told.erased = lambda handle: safety.erased(key(handle))
        told.trouble = lambda kind: trace.happened.update((kind,))
        told.mounted = mounted
        plugin = Plugin(kind="backend", name=backend.name.partition(".")[0], factory=lambda _options: backend)
        return build_driver(backend.name, plugin, {}, self._extensions)
