"""Real backends in the schedules, in the place of simulated ones: good ones run clean, sloppy ones are caught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import pytest

from clocks import SteppedClock
from schedules import soaked
from unit.testing.planted_crashes import Disk, files_of
from volplane import Absent, Asset, DeleteRequest, Done, DriverInfo, FindRequest, InProgress, ProvisionRequest, hookimpl
from volplane.assets import AccessMode, Ownership
from volplane.errors import ConfigurationError
from volplane_testing import MemoryBackend, Subject
from volplane_testing.conformance.subject import MakeSubject
from volplane_testing.simulation.report import SeedReport, judge_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate

NOBODY = Ownership(cluster_id="", claim_uid="", volume_name="")


def on(kind: type[MemoryBackend], *, delay: float = 3.0, made_before: int = 0, **fields: Any) -> MakeSubject:
    """What gives the backend on a fresh storage. delay: seconds that making and deleting take."""

    def made() -> Subject:
        clock = SteppedClock()
        storage = Disk(delay=delay, clock=clock, made=made_before)

        def inspect() -> object:
            storage.sweep()
            return [*storage.assets, *storage.snapshots, *storage.files]

        return Subject(lambda options: kind(options, storage=storage), advance=clock.advance, inspect=inspect, **fields)

    return made


def judged(seed: int, *backends: Subject | MakeSubject, **options: Any) -> SeedReport:
    return judge_seed(seed, run=partial(simulate, backends=backends), **options)


def first_violation(kind: type[MemoryBackend]) -> str:
    """Name of the first invariant that a backend breaks within a hundred seeds."""
    for seed in range(100):
        violation = judged(seed, on(kind, delay=0.0), trials=0).violation
        if violation is not None:
            return violation.invariant
    return ""


class Sloppy(MemoryBackend):
    """Forgets what it was asked before."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        before = self.storage.assets.pop(request.name, None)
        if before is not None:
            self.storage.assets[f"{request.name}-{before.handle}"] = before
        return super().provision(request)


class Blind(MemoryBackend):
    """Never finds anything."""

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        return Absent()


class Polite(MemoryBackend):
    """Says that it has deleted what it has only been asked to delete."""

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        return Done()


class Unmarked(MemoryBackend):
    """Writes down whose an asset is only after it was made: a crash between the two leaves a stranger's."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if request.name in self.storage.assets:
            return super().provision(request)
        result = super().provision(request)
        made = self.storage.assets[request.name]
        for _ in range(40):
            made.owner = NOBODY
        made.owner = request.owner
        return result


class ForgetsTheImage(MemoryBackend):
    """`delete` removes the marks and forgets the file, which no list shows."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        result = super().provision(request)
        files_of(self).add(f"{request.name}.img")
        return result


class LeavesAHalfWrittenFile(MemoryBackend):
    """A crash between writing the file and putting it into its place leaves it for ever."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        half_written = f".{request.name}.{request.context.attempt}.{self.storage.made}.new"
        files_of(self).add(half_written)
        for _ in range(60):
            str(request.name)
        files_of(self).remove(half_written)
        return super().provision(request)


@pytest.mark.parametrize("seed", soaked(range(50), few=8))
def test_a_good_backend_runs_clean(seed: int) -> None:
    report = judged(seed, on(MemoryBackend))
    assert report.violation is None, "\n".join((str(report.violation), *report.trace))


def test_its_hooks_are_called_in_virtual_time_and_crash_in_the_middle() -> None:
    assert any(judged(seed, on(MemoryBackend)).happened.get("hook: crash inside") for seed in range(15))
    lines = judged(7, on(MemoryBackend), traced=True).trace
    assert any("alpha.sim  has made memory-2 for " in line for line in lines)
    assert any("gives InProgress(retry_after=3.0" in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "invariant"),
    [
        (Sloppy, "one-asset-per-generation"),
        (Blind, "no-leak"),
        (Polite, "no-leak"),
        (ForgetsTheImage, "nothing-unseen"),
        pytest.param(LeavesAHalfWrittenFile, "nothing-unseen", marks=pytest.mark.soak),
        pytest.param(Unmarked, "comes-to-rest", marks=pytest.mark.soak),
    ],
)
def test_a_sloppy_backend_is_caught(kind: type[MemoryBackend], invariant: str) -> None:
    assert first_violation(kind) == invariant


def test_a_seed_with_a_backend_runs_alike_twice() -> None:
    first, second = (judged(7, on(MemoryBackend), traced=True) for _ in range(2))
    assert first.trace == second.trace


def test_two_backends_take_the_places_of_both_simulated_ones() -> None:
    makers: set[str] = set()
    for seed in range(4):
        report = judged(seed, on(MemoryBackend), on(MemoryBackend, made_before=1000), traced=True)
        assert report.violation is None
        assert not any(" makes path:" in line for line in report.trace)
        makers |= {line.split()[1] for line in report.trace if " has made " in line}
    assert makers == {"alpha.sim", "beta.sim"}


def test_a_storage_that_serves_every_run_is_left_empty() -> None:
    clock, storage = SteppedClock(), Disk()
    subject = Subject(lambda options: MemoryBackend(options, storage=storage), advance=clock.advance)
    for _ in range(2):
        assert judged(2, subject).violation is None
        assert storage.made > 0
        assert storage.assets == {}


def test_trouble_comes_with_the_seed_and_ends_when_all_faults_end() -> None:
    log: list[str] = []

    @contextmanager
    def trouble(random: Random) -> Iterator[None]:
        log.append(f"begins {random.random()}")
        yield
        log.append("ends")

    for _ in range(2):
        simulate(Trial(generate(2)), [on(MemoryBackend, trouble=trouble)])
    assert log[0].startswith("begins 0.")
    assert log == [log[0], "ends"] * 2


def test_a_backend_without_ordinary_claims_is_refused() -> None:
    class ManyOnly(MemoryBackend):
        @hookimpl
        def describe(self, request: Any) -> DriverInfo:
            return DriverInfo(version="1", access_modes=frozenset({AccessMode.READ_WRITE_MANY}))

    with pytest.raises(ConfigurationError, match="the claims of the simulation are ReadWriteOnce"):
        judged(0, on(ManyOnly))
