"""`volplane sim`: seeds from the command line."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from simulation.planting import planted
from simulation.plants import PLANTS
from simulation.recorded import CAUGHT
from volplane.cli.main import main

MODULE = """
import time

from volplane import Done, hookimpl
from volplane_testing import MemoryBackend, MemoryStorage, Subject


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


def subject():
    clock = Clock()
    storage = MemoryStorage(delay=2.0, clock=clock)
    return Subject(lambda options: MemoryBackend(options, storage=storage), advance=clock.advance)


class Blind(MemoryBackend):
    @hookimpl
    def probe(self, request):
        return Done()


def blind():
    storage = MemoryStorage()
    return Subject(lambda options: Blind(options, storage=storage), outage=storage.outage)


class Dozing(MemoryBackend):
    @hookimpl
    def provision(self, request):
        try:
            time.sleep(60)
        except Exception:
            pass
        return super().provision(request)


def dozing():
    storage = MemoryStorage()
    return Subject(lambda options: Dozing(options, storage=storage))


STORAGE = MemoryStorage()


class OneStorage(MemoryBackend):
    def __init__(self, options):
        super().__init__(options, storage=STORAGE)


def nothing():
    return 7
"""
BUG = "release_before_it_is_erased"
SEED = CAUGHT[BUG][0]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    (tmp_path / "simulated_backends.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def volplane(*arguments: str) -> tuple[int, str, str]:
        code = main(["sim", *arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    yield volplane
    sys.modules.pop("simulated_backends", None)


def test_seeds_that_run_clean_are_counted(run: Run) -> None:
    code, out, err = run("--seeds", "5", "--jobs", "1")
    assert code == 0
    assert re.match(r"5 seeds, 0 failed; [0-9.]+ s a seed \([0-9.]+ s of CPU\), [0-9.]+ s at most\n", out)
    assert out.endswith("judged: the controllers, on simulated storages; with --backend also a backend\n")
    assert err.startswith("seeds …\n")
    assert err.endswith("seeds 5/5\n")


def test_several_processes_find_what_one_finds(run: Run) -> None:
    _, alone, _ = run("--seeds", "0:3", "--jobs", "1", "--coverage")
    code, together, _ = run("--seeds", "0:3", "--jobs", "2", "--coverage")
    assert code == 0
    assert together.splitlines()[:-2] == alone.splitlines()[:-2]


@pytest.fixture(scope="module")
def failed() -> str:
    """What is said of a seed that fails."""
    said = io.StringIO()
    with planted(PLANTS[BUG]), redirect_stdout(said):
        assert main(["sim", "--seeds", f"{SEED}:{SEED + 1}", "--jobs", "1"]) == 1
    return said.getvalue()


def test_a_failing_seed_shows_the_invariant_a_short_trace_and_how_to_replay_it(failed: str) -> None:
    first, *rest = failed.splitlines()
    assert first.startswith(f"FAIL  seed {SEED} (")
    assert "): unscrubbed: volume " in first
    assert any("VIOLATION  unscrubbed" in line for line in rest)
    assert any("actions and faults are left out" in line for line in rest)
    assert rest[-2].startswith("1 seed, 1 failed")


def test_the_command_that_a_failure_prints_replays_it_exactly(run: Run, failed: str) -> None:
    [replay] = [line for line in failed.splitlines() if line.startswith("      replay: volplane sim ")]
    with planted(PLANTS[BUG]):
        code, second, _ = run(*replay.removeprefix("      replay: volplane sim ").split(), "--jobs", "1")
    assert code == 1
    trace = [line for line in failed.splitlines() if "left out" not in line][:-2]
    assert second.splitlines()[:-2] == trace


def test_enough_failures_end_the_command(run: Run) -> None:
    with planted(PLANTS["lift_the_gate_without_a_permit"]):
        code, out, _ = run("--seeds", "0:100", "--jobs", "1", "--failures", "2", "--shrink", "0")
    assert code == 1
    assert out.count("FAIL  seed ") == 2
    assert "seeds were not run\n" in out


def test_one_seed_can_be_watched(run: Run) -> None:
    code, out, _ = run("--seeds", "3:4", "--scenario", "bind", "--trace")
    assert code == 0
    assert out.splitlines()[:3] == [
        "     0.0000             creates node node-a ",
        "     0.0000             creates node node-b ",
        "     0.0000  p1         starts",
    ]
    assert "fault      no more of them" in out


def test_what_came_can_be_counted(run: Run) -> None:
    code, out, err = run("--seeds", "0:3", "--jobs", "1", "--coverage")
    assert code == 0
    assert out.splitlines()[0].split() == ["trouble", "times", "seeds"]
    assert "warning: never came: user: restores from a backup (both)" in err


def test_a_backend_takes_the_place_of_a_simulated_one(run: Run) -> None:
    code, out, _ = run("--backend", "simulated_backends:subject", "--seeds", "2:3", "--trace")
    assert code == 0
    assert "alpha.sim  has made memory-1 for " in out


def test_a_backend_is_named_as_for_check(run: Run) -> None:
    code, out, _ = run("simulated_backends:subject", "--seeds", "0:1", "--scenario", "provision")
    assert (code, "judged: simulated_backends:subject, by calls of " in out) == (0, True)


def test_a_backend_is_not_tried_on_nodes_to_which_it_cannot_attach(run: Run) -> None:
    code, _, err = run(
        "--backend", "simulated_backends:subject", "--scenario", "attach", "--seeds", "3:4", "--jobs", "1"
    )
    assert code == 1
    assert "scenario attach runs with one backend whose storage knows what is attached" in err


def test_a_backend_runs_in_several_processes(run: Run) -> None:
    code, out, err = run("--backend", "simulated_backends:subject", "--seeds", "0:4", "--jobs", "2")
    assert code == 0, err
    assert out.startswith("4 seeds, 0 failed")


def test_one_storage_serves_all_seeds_and_is_empty_in_the_end(run: Run) -> None:
    code, _, err = run("--backend", "simulated_backends:OneStorage", "--seeds", "0:4", "--jobs", "2")
    assert code == 0, err
    storage = sys.modules["simulated_backends"].STORAGE  # in this process: one storage, one process
    assert storage.made > 0
    assert storage.assets == {}


def test_an_installed_backend_is_found_by_name_with_its_options(run: Run, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    options = ("-o", f"root={tmp_path}/root", "-o", "node_name=node-a", "-o", "overcommit_percent=100000")
    code, out, err = run("--backend", "hostpath", *options, "--seeds", "2:3", "--trace")
    assert code == 0, err
    assert f"'path': '{tmp_path}/root/" in out


def test_what_was_judged_of_a_backend_is_said_and_what_not(run: Run) -> None:
    _, out, _ = run("--backend", "simulated_backends:subject", "--seeds", "2", "--jobs", "1")
    [judged] = [line for line in out.splitlines() if line.startswith("judged: ")]
    assert judged.startswith("judged: simulated_backends:subject, by calls of ")
    assert "provision (" in judged
    [never, unseen, reach] = [line for line in out.splitlines() if line.startswith("not judged: ")]
    assert "create_snapshot" in never
    assert never.endswith("never called; `volplane check` calls every hook")
    assert unseen == "not judged: what list_assets does not show (Subject.inspect)"
    assert reach == "not judged: a storage that cannot be reached (Subject.unreachable or Subject.outage)"


def test_an_outage_that_is_swallowed_breaks_an_invariant(run: Run) -> None:
    code, out, _ = run("--backend", "simulated_backends:blind", "--seeds", "3:4", "--jobs", "1", "--shrink", "0")
    assert code == 1
    assert "): an-outage-is-an-error: probe of alpha.sim answers Done() while its storage cannot be reached" in out


def test_a_hook_that_takes_a_minute_of_real_time_breaks_an_invariant(run: Run) -> None:
    about = ("--backend", "simulated_backends:dozing", "--seeds", "2:3", "--scenario", "provision")
    code, out, _ = run(*about, "--jobs", "1", "--patience", "0.5")
    assert code == 1
    assert "): returns-in-time: provision of alpha.sim took " in out
    assert " s of real time, and its patience is 0.5 s; it waits in provision, " in out


def test_two_backends_may_be_tried_together(run: Run) -> None:
    both = ("--backend", "simulated_backends:subject", "--backend", "volplane_hostpath.testing:subject")
    code, _, err = run(*both, "--seeds", "0:2", "--jobs", "1")
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--backend", "hostpth"), "backend 'hostpth' is not installed; did you mean 'hostpath'?"),
        (("--backend", "simulated_backends:subjct"), "has no subjct; did you mean 'subject'?"),
        (("--backend", "simulated_backends:nothing"), "gives int, expected a backend class or a Subject"),
        (("--backend", "simulated_backends:subject", "-o", "colour=red"), "unknown option 'colour'"),
        (("--backend", "hostpath", "-o", "shared=true"), "driver alpha.sim: option 'root' is required"),
    ],
)
def test_a_backend_that_cannot_be_tried_is_one_line(run: Run, arguments: tuple[str, ...], says: str) -> None:
    code, _, err = run(*arguments, "--seeds", "0:1", "--jobs", "1")
    assert code == 1
    [error] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert says in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--seeds", "few"), "--seeds 'few' must be A:B or one number"),
        (("--seeds", "5:5"), "there is no seed from 5 up to, but without 5"),
        (("--seeds", "1:"), "--seeds '1:' must be A:B or one number"),
        (("--scenario", "mixde"), "did you mean 'mixed'?"),
        (("--seeds", "0"), "--seeds 0: there is no seed from 0 up to, but without 0"),
        (("--seeds", "17", "--trace"), "--trace is about one seed, and --seeds 17 names 17; the last is 16:17"),
        (("--seeds", "0:2", "--only", "1"), "--only is about one seed, and --seeds 0:2 names 2"),
        (("--seeds", "1", "--only", "1,fault"), "'fault' is neither the number of an action nor the mark of a fault"),
        (("-o", "root=/srv"), "--patience are of one backend, and no --backend is given"),
        (("--backend", "a:b", "--backend", "a:b", "-p", "k=v"), "--backend is given 2 times"),
        (("--backend", "a:b") * 3, "--backend: 3 are given, and there is room for 2"),
        (("--jobs", "0"), "Invalid value for '--jobs'"),
    ],
)
def test_wrong_usage_says_what_would_be_right(run: Run, arguments: tuple[str, ...], says: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert says in err
