"""What the kubelet remembers of a pod that it runs: the state that its decisions read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from volplane_embedded.objects import Pod

FIRST_PAUSE = 10.0
LONGEST_PAUSE = 300.0
_STABLE = 600.0
_LONGEST_RETRY = 60.0


@dataclass(frozen=True, slots=True)
class Terminated:
    """How a container ended. Times are RFC 3339; started is "" for one that never ran."""

    code: int
    reason: str
    finished: str
    started: str = ""
    signal: int = 0
    message: str = ""


@dataclass(slots=True)
class ContainerRecord:
    """One container of a pod.

    attempt: number of the start, from 0; -1 before the first. It is in exactly one state: waiting, launching, running
    or ended. pause, due: the back-off before the next start in seconds, and the loop time at which it is over.
    """

    name: str
    init: bool = False
    attempt: int = -1
    launching: bool = False
    running: str = ""
    """Start time (RFC 3339), "" while it does not run."""
    ran_from: float = 0.0
    ended: Terminated | None = None
    last: Terminated | None = None
    waiting: tuple[str, str] = ("ContainerCreating", "")
    """Reason and message while it neither runs nor has ended."""
    pause: float = 0.0
    due: float = 0.0
    ends: int = 0
    refusals: int = 0

    @property
    def active(self) -> bool:
        return self.launching or bool(self.running)

    @property
    def succeeded(self) -> bool:
        return self.ended is not None and self.ended.code == 0

    def launch(self) -> None:
        """Record that it is being started."""
        self.attempt += 1
        self.launching = True
        self.last, self.ended = self.ended or self.last, None

    def run(self, since: str, mono: float) -> None:
        self.launching = False
        self.running, self.ran_from = since, mono

    def refuse(self, reason: str, message: str, mono: float) -> None:
        """Record that it could not be started; it is tried again after 1 s doubling to 60 s."""
        if self.launching:
            self.attempt -= 1
        self.launching, self.running = False, ""
        self.waiting = (reason, message)
        self.pause = min(2.0**self.refusals, _LONGEST_RETRY)
        self.refusals = min(self.refusals + 1, 10)
        self.due = mono + self.pause

    def end(self, ended: Terminated, mono: float) -> None:
        """Record its end. The first restart follows at once, later ones after 10 s doubling to 5 min."""
        if self.running and mono - self.ran_from >= _STABLE:
            self.ends = 0
        self.launching, self.running = False, ""
        self.ended = ended
        self.pause = min(FIRST_PAUSE * 2.0 ** (self.ends - 1), LONGEST_PAUSE) if self.ends else 0.0
        self.ends = min(self.ends + 1, 10)
        self.refusals = 0
        self.due = mono + self.pause


@dataclass(slots=True)
class PodRecord:
    """A pod on this node.

    begun: when the kubelet first saw it (status.startTime). failure: reason and message of a pod that must not run.
    stopping: loop time of the SIGTERM to its containers. mount_error: why its volumes are not mounted.
    """

    uid: str
    begun: datetime
    init: list[ContainerRecord] = field(default_factory=list)
    main: list[ContainerRecord] = field(default_factory=list)
    prepared: bool = False
    prepare_due: float = 0.0
    mount_error: str = ""
    failure: tuple[str, str] | None = None
    stopping: float | None = None
    killed: bool = False
    torn_down: bool = False

    @property
    def containers(self) -> Iterator[ContainerRecord]:
        yield from self.init
        yield from self.main

    @property
    def active(self) -> list[ContainerRecord]:
        return [container for container in self.containers if container.active]

    def container(self, name: str) -> ContainerRecord:
        """Raises KeyError for an unknown name."""
        for container in self.containers:
            if container.name == name:
                return container
        raise KeyError(name)


def new_record(pod: Pod, begun: datetime) -> PodRecord:
    """Return the record of a pod of which nothing ran yet."""
    return PodRecord(
        uid=pod.uid,
        begun=begun,
        init=[ContainerRecord(one.name, init=True) for one in pod.spec.init_containers or ()],
        main=[ContainerRecord(one.name) for one in pod.spec.containers],
    )
