"""`volplane sim`: run schedules of trouble and show the shortest one that breaks an invariant."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final

import typer

from volplane._messages import nearest
from volplane.cli.framework.console import Console
from volplane_testing.cli.subjects import (
    Capacity,
    Chosen,
    Options,
    Parameters,
    Patience,
    Segments,
    Unreachable,
    changes_of,
    options_of,
)
from volplane_testing.conformance import Subject
from volplane_testing.conformance.subject import MakeSubject
from volplane_testing.simulation.chance import is_mark
from volplane_testing.simulation.coverage import Coverage
from volplane_testing.simulation.report import SeedReport, judge_seed
from volplane_testing.simulation.run import simulate
from volplane_testing.simulation.scenarios import SCENARIOS
from volplane_testing.simulation.shrink import MOST_TRIALS
from volplane_testing.simulation.storages import ROLES

__all__ = ["register"]

CHUNK: Final = 8
"""Seeds that a process takes at once."""

Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        metavar="BACKEND",
        help="Try this one in the place of a simulated one: as of `volplane check`. Repeatable once.",
    ),
]
Seeds = Annotated[
    str,
    typer.Option("--seeds", "-s", metavar="A:B", help="From A up to, but without B; N is 0:N, and one seed is N:N+1."),
]
Scenario = Annotated[
    str, typer.Option("--scenario", metavar="NAME", help=f"any, or one of {', '.join(sorted(SCENARIOS))}.")
]
Only = Annotated[
    str | None,
    typer.Option(
        "--only", metavar="LIST", help="Replay a shortened seed: the actions and faults that it was left with."
    ),
]
Traced = Annotated[bool, typer.Option("--trace", help="Show all that happens in one seed; nothing is left out.")]
Counted = Annotated[bool, typer.Option("--coverage", help="Show which kinds of trouble came, and in how many seeds.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        min=1,
        help="Processes to use, default one per core; results are the same.",
        show_default=False,
    ),
]
Failures = Annotated[int, typer.Option("--failures", min=1, metavar="N", help="End after so many seeds that fail.")]
Shrink = Annotated[
    int, typer.Option("--shrink", min=0, metavar="N", help="Runs that making a failing seed short may take; 0: none.")
]


@dataclass(frozen=True, slots=True)
class _Job:
    """How each seed is run; the same for all of them, and for every process."""

    backends: tuple[Chosen, ...]
    scenario: str
    only: tuple[str, ...] | None
    trials: int
    traced: bool

    def __call__(self, seed: int) -> SeedReport:
        if _told_to_end.is_set():
            raise SystemExit
        run = partial(simulate, backends=[_subject(chosen) for chosen in self.backends])
        report = judge_seed(seed, self.scenario, only=self.only, trials=self.trials, traced=self.traced, run=run)
        begun = time.process_time()
        gc.collect()
        return replace(report, cpu_seconds=report.cpu_seconds + time.process_time() - begun)


_told_to_end: Final = threading.Event()
"""In a process of `--jobs`: the one that the user started wants no more reports."""
_subjects: Final[dict[str, Subject | MakeSubject]] = {}


def _subject(chosen: Chosen) -> Subject | MakeSubject:
    """Return the chosen subject, loaded once a process."""
    key = repr(chosen)
    if key not in _subjects:
        _subjects[key] = chosen.subject()
    return _subjects[key]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sim")(sim)


def sim(
    first: Annotated[str, typer.Argument(metavar="BACKEND", help="As --backend.", show_default=False)] = "",
    *,
    backend: Backends = None,
    options: Options = None,
    parameters: Parameters = None,
    capacity: Capacity = None,
    segment: Segments = None,
    unreachable: Unreachable = None,
    patience: Patience = None,
    seeds: Seeds = "0:200",
    scenario: Scenario = "any",
    only: Only = None,
    trace: Traced = False,
    coverage: Counted = False,
    jobs: Jobs = None,
    failures: Failures = 3,
    shrink: Shrink = MOST_TRIALS,
) -> None:
    """Run the controllers through schedules of trouble, one per seed; exit code 1 if an invariant breaks.

    Everything happens in one process and in virtual time: the API server, the controllers, the storage, the nodes,
    users and faults. A seed is a whole schedule; the same seed always runs alike. With --backend, the hooks of a real
    backend run in it, on a storage for tests; what gives a fresh one each time is best: MODULE:NAME of a function.
    """
    chosen = _seeds(seeds)
    if scenario != "any" and scenario not in SCENARIOS:
        raise typer.BadParameter(f"--scenario {scenario!r} is none{nearest(scenario, ('any', *sorted(SCENARIOS)))}")
    if (trace or only is not None) and len(chosen) != 1:
        option, last = "--trace" if trace else "--only", chosen[-1]
        raise typer.BadParameter(
            f"{option} is about one seed, and --seeds {seeds} names {len(chosen)}; the last is {last}:{last + 1}"
        )
    whole = trace or only is not None
    changes = changes_of(
        parameters=parameters, segment=segment, capacity=capacity, unreachable=unreachable, patience=patience
    )
    backends = _backends([each for each in (first, *(backend or ())) if each], options, changes)
    # One storage that serves all seeds serves one at a time.
    most = 1 if any(isinstance(_subject(each), Subject) for each in backends) else len(chosen)
    job = _Job(backends, scenario, _items(only), 0 if whole else shrink, traced=whole)
    if _run(Console(), job, chosen, min(jobs or os.cpu_count() or 1, most), failures, coverage=coverage):
        raise typer.Exit(1)


# --- what was asked for -----------------------------------------------------------------------------------------


def _backends(names: list[str], options: list[str] | None, changes: dict[str, Any]) -> tuple[Chosen, ...]:
    if len(names) > len(ROLES):
        raise typer.BadParameter(f"--backend: {len(names)} are given, and there is room for {len(ROLES)}")
    if (options or changes) and len(names) != 1:
        given = "no --backend is given" if not names else f"--backend is given {len(names)} times"
        raise typer.BadParameter(
            "--options, --parameters, --capacity, --segment, --unreachable and --patience are of one backend, and "
            f"{given}"
        )
    return tuple(Chosen(name, options_of(options), changes) for name in names)


def _seeds(text: str) -> range:
    low, colon, high = text.partition(":")
    if not re.fullmatch("[0-9]{1,18}", low) or (colon and not re.fullmatch("[0-9]{1,18}", high)):
        raise typer.BadParameter(f"--seeds {text!r} must be A:B or one number, such as 0:200 or 200")
    first, last = (int(low), int(high)) if colon else (0, int(low))
    if last <= first:
        raise typer.BadParameter(f"--seeds {text}: there is no seed from {first} up to, but without {last}")
    return range(first, last)


def _items(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    items = tuple(item for item in text.split(",") if item)
    for item in items:
        if not re.fullmatch("[0-9]{1,18}", item) and not is_mark(item):
            raise typer.BadParameter(f"--only: {item!r} is neither the number of an action nor the mark of a fault")
    return items


# --- running ----------------------------------------------------------------------------------------------------


def _run(console: Console, job: _Job, seeds: range, jobs: int, failures: int, *, coverage: bool) -> int:
    """Describe how many seeds failed."""
    finished, counted, failed, slowest, spent = 0, Coverage(backends=bool(job.backends)), [], 0.0, 0.0
    real, calls, missing = 0.0, Counter[tuple[str, str]](), dict[str, tuple[str, ...]]()
    with _quiet(), _reports(job, seeds, jobs) as reports, console.progress("seeds", len(seeds)) as bar:
        for report in reports:
            finished += 1
            counted.add(report.happened)
            spent += report.cpu_seconds
            real += report.real_seconds
            slowest = max(slowest, report.real_seconds)
            for role, judged in report.judged.items():
                calls.update({(role, hook): times for hook, times in judged.calls.items()})
                missing[role] = judged.missing
            if report.violation is not None:
                failed.append(report)
            bar.advance(detail=f"{len(failed)} failed" if failed else "")
            if len(failed) >= failures:
                break
    for report in failed:
        _show_failure(console, report, job)
    if job.traced and not failed:
        for line in report.trace:
            console.line(line)
    if coverage:
        _show_coverage(console, counted, finished)
    figures = f"{real / finished:.3f} s a seed ({spent / finished:.3f} s of CPU), {slowest:.2f} s at most"
    console.line(f"{finished} {'seed' if finished == 1 else 'seeds'}, {len(failed)} failed; {figures}")
    _show_judged(console, job, calls, missing)
    if finished < len(seeds):
        console.note(f"ended after {len(failed)} failures: {len(seeds) - finished} seeds were not run")
    return len(failed)


@contextmanager
def _reports(job: _Job, seeds: Sequence[int], jobs: int) -> Iterator[Iterator[SeedReport]]:
    """Reports in the order of the seeds, however many processes make them."""
    if jobs == 1:
        with _tidy():
            yield map(job, seeds)
        return
    executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_prepare)
    try:
        with _without_sigint():
            reports = executor.map(job, seeds, chunksize=max(1, min(CHUNK, len(seeds) // jobs)))
        yield reports
    except (KeyboardInterrupt, SystemExit):
        # Once is enough: the others give up what they have at hand, and remove its storage.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _without_sigint() -> Iterator[None]:
    """Block SIGINT here for a moment, and for good in processes that start meanwhile: this process ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare() -> None:
    signal.signal(signal.SIGTERM, _leave)
    logging.disable(logging.CRITICAL)
    gc.disable()
    gc.freeze()


def _leave(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _told_to_end.set()
    # The exit is lost if it comes within a finalizer: then the process ends after the seed at hand.
    sys.unraisablehook = lambda _: None
    raise SystemExit


@contextmanager
def _tidy() -> Iterator[None]:
    """Collect garbage between seeds instead of within, and never what was there before: a fifth of the time.

    What the caller has frozen stays frozen.
    """
    gc.disable()
    frozen_before = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()
        gc.enable()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the controllers' warnings, which are expected here; they are shown only where `--debug` asks for it."""
    level = logging.root.manager.disable
    if not logging.getLogger("volplane").isEnabledFor(logging.DEBUG):
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)


# --- reporting --------------------------------------------------------------------------------------------------


def _show_failure(console: Console, report: SeedReport, job: _Job) -> None:
    console.failed(f"seed {report.seed} ({report.scenario}): {report.violation}")
    for line in report.trace:
        console.note(f"      {line}")
    if report.left_out:
        console.line(f"      {report.left_out} of {report.left_out + len(report.kept)} actions and faults are left out")
    seeds = f"{report.seed}:{report.seed + 1}"
    words = ["volplane", "sim", *_about(job.backends), "--seeds", seeds, "--scenario", job.scenario]
    words += ["--only", ",".join(report.kept)]
    console.line(f"      replay: {shlex.join(words)}")
    console.line()


def _about(backends: tuple[Chosen, ...]) -> Iterator[str]:
    """Return the words that choose them again."""
    for chosen in backends:
        yield from ("--backend", chosen.backend)
        for key, value in chosen.options.items():
            yield from ("--options", f"{key}={value}")
        for key, value in chosen.changes.get("parameters", {}).items():
            yield from ("--parameters", f"{key}={value}")
        for place in chosen.changes.get("segments", ()):
            yield from ("--segment", ",".join(f"{key}={value}" for key, value in place.items()))
        for key, value in chosen.changes.get("unreachable", {}).items():
            yield from ("--unreachable", f"{key}={value}")
        if "patience" in chosen.changes:
            yield from ("--patience", f"{chosen.changes['patience']:g}s")
        if "capacity_bytes" in chosen.changes:
            yield from ("--capacity", str(chosen.changes["capacity_bytes"]))


def _show_judged(
    console: Console, job: _Job, calls: Counter[tuple[str, str]], missing: Mapping[str, Sequence[str]]
) -> None:
    """Say what the seeds have judged of each backend, and what not."""
    if not job.backends:
        console.note("judged: the controllers, on simulated storages; with --backend also a backend")
    for role, chosen in zip(ROLES, job.backends, strict=False):
        hooks = sorted((hook, times) for (of, hook), times in calls.items() if of == role)
        told = ", ".join(f"{hook} ({times})" for hook, times in hooks if times)
        console.note(f"judged: {chosen.backend}, by calls of {told or 'no hook'}")
        if missed := [hook for hook, times in hooks if not times]:
            console.note(f"not judged: {', '.join(missed)}: never called; `volplane check` calls every hook")
        for what in missing.get(role, ()):
            console.note(f"not judged: {what}")


def _show_coverage(console: Console, counted: Coverage, seeds: int) -> None:
    rows = [[kind, str(times), f"{runs} of {seeds}"] for kind, times, runs in counted.rows()]
    console.table(["trouble", "times", "seeds"], rows)
    for kind in counted.missing():
        console.warning(f"never came: {kind}")
