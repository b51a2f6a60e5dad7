"""What `volplane leaks` and `volplane adopt` make of a controller's answers."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ports import free_port
from volplane.cli.main import main
from volplane.controller.http import Pages, serve_pages
from volplane.controller.http_access import DIRECTORY_VARIABLE, HttpAddress
from volplane.errors import VolplaneError
from volplane.leaks.repair import digest_of


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volplane.cli.leaks.POLL_SECONDS", 0.01)


Answers = Mapping[str, Callable[[Mapping[str, str]], Any]]


@contextmanager
def controller(answers: Answers, actions: Answers | None = None) -> Iterator[str]:
    """Answers over HTTP from another thread; yields ADDRESS:PORT."""
    ready, address, stop = threading.Event(), [""], asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def answering(answer: Callable[[Mapping[str, str]], Any]) -> Callable[[Mapping[str, str]], Any]:
        async def respond(query: Mapping[str, str]) -> Any:
            return answer(query)

        return respond

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        pages = Pages(
            unready=tuple,
            metrics=bytes,
            answers={path: answering(answer) for path, answer in answers.items()},
            actions={path: answering(answer) for path, answer in (actions or {}).items()},
        )
        async with serve_pages(HttpAddress("127.0.0.1", 0), pages) as url:
            address[0] = url.removeprefix("http://")
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield address[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


def finding(verdict: str, handle: str = "h", *, confirmed: bool = True, **fields: Any) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "driver": "d",
        "handle": handle,
        "name": handle,
        "volume": "",
        "detail": "why",
        "capacity_bytes": 64 * 2**20,
        "type": "",
        "created_at": "2025-12-29T00:00:00Z",
        "age_seconds": 259_200,
        "first_seen": "2026-01-01T00:00:00Z",
        "seconds": 700.0,
        "confirmed": confirmed,
        **fields,
    }


def report(*findings: Any, repairs: Any = (), drivers: Any = None) -> dict[str, Any]:
    checked = {"driver": "d", "can_list": True, "checked_at": "2026-01-01T00:10:00Z", "error": "", "attempts": 7}
    return {
        "grace_seconds": 300.0,
        "drivers": drivers or [checked],
        "findings": list(findings),
        "repairs": list(repairs),
    }


def test_nothing_found_is_success(capsys: pytest.CaptureFixture[str]) -> None:
    with controller({"/leaks": lambda _: report()}) as address:
        assert main(["leaks", "--http", address]) == 0
    out = capsys.readouterr().out
    assert "nothing found" in out
    assert "driver d was checked at 2026-01-01T00:10:00Z" in out


def test_a_controller_whose_drivers_are_on_nodes_says_who_checks_them(capsys: pytest.CaptureFixture[str]) -> None:
    said = {**report(), "drivers": []}
    with controller({"/leaks": lambda _: said}, {"/leaks/check": lambda _: {}}) as address:
        assert main(["leaks", "--check", "--http", address]) == 0
        assert "kubectl -n volplane-system-nodes exec POD -- volplane leaks --http" in capsys.readouterr().out
        assert main(["leaks", "--check", "--http", address, "--system-namespace", "storage"]) == 0
        assert "kubectl -n storage-nodes exec POD" in capsys.readouterr().out


@pytest.mark.parametrize(("verdict", "code"), [("orphan", 1), ("ghost", 1), ("drifted", 0), ("foreign", 0)])
def test_orphans_and_ghosts_are_a_failure(verdict: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with controller({"/leaks": lambda _: report(finding(verdict))}) as address:
        assert main(["leaks", "--http", address]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [verdict, "d", "h", "-", "64Mi", "3d", "2026-01-01T00:00:00Z", "yes", "why"]
    assert ("`volplane leaks --fix` deletes them" in lines) == (verdict == "orphan")


def test_size_type_and_age_tell_what_an_orphan_costs(capsys: pytest.CaptureFixture[str]) -> None:
    with controller({"/leaks": lambda _: report(finding("orphan", type="gp3", capacity_bytes=100 << 30))}) as address:
        assert main(["leaks", "--http", address]) == 1
    assert capsys.readouterr().out.splitlines()[1].split()[4:7] == ["100Gi", "gp3", "3d"]


def test_a_wide_table_breaks_sentences_and_leaves_names_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    name = "pvc-3cbfdc90-6c2c-4d0c-a9ac-c22dade88819"
    wide = finding("ghost", f"data-{name}", volume=name, driver="hostpath.volplane.dev", detail="gone " * 20)
    with controller({"/leaks": lambda _: report(wide, finding("orphan"))}) as address:
        assert main(["leaks", "--http", address]) == 1
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("ghost"))
    assert row.split()[:4] == ["ghost", "hostpath.volplane.dev", f"data-{name}", name]
    assert "\n".join(lines).count("gone") == 20
    assert row.count("gone") < 20


def test_a_check_can_be_had_now(capsys: pytest.CaptureFixture[str]) -> None:
    """The second check ends only after some questions."""
    asked: list[Mapping[str, str]] = []
    attempts = iter([7, 8, 9, 9])

    def request(query: Mapping[str, str]) -> Any:
        asked.append(query)
        return {"d": 9}

    def answer(_: Mapping[str, str]) -> Any:
        number = next(attempts)
        found = [finding("orphan")] if number == 9 else []
        checked = {"driver": "d", "can_list": True, "checked_at": "t", "error": "", "attempts": number}
        return report(*found, drivers=[checked])

    with controller({"/leaks": answer}, {"/leaks/check": request}) as address:
        assert main(["leaks", "--check", "--driver", "d", "--http", address]) == 1
    assert [dict(each) for each in asked] == [{"driver": "d"}]
    assert "orphan" in capsys.readouterr().out


def test_the_worst_comes_first_and_what_is_not_confirmed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [finding("foreign"), finding("drifted"), finding("ghost"), finding("orphan", confirmed=False)]
    with controller({"/leaks": lambda _: report(*findings)}) as address:
        assert main(["leaks", "--http", address]) == 1
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:5]] == ["orphan", "ghost", "drifted", "foreign"]
    assert "1 orphan is not confirmed yet: a check at least 5 min after the first must find the same" in out


def test_json_is_the_whole_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with controller({"/leaks": lambda _: report(finding("orphan"), finding("foreign", driver="e"))}) as address:
        assert main(["leaks", "-o", "json", "--driver", "d", "--http", address]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [each["verdict"] for each in told["findings"]] == ["orphan"]
    assert told["grace_seconds"] == 300


def test_drivers_of_which_nothing_is_known_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    drivers = [
        {"driver": "a", "can_list": False, "checked_at": None, "error": ""},
        {"driver": "b", "can_list": True, "checked_at": None, "error": "away"},
        {"driver": "c", "can_list": None, "checked_at": None, "error": ""},
        {"driver": "d", "can_list": True, "checked_at": "2026-01-01T00:10:00Z", "error": "late"},
    ]
    with controller({"/leaks": lambda _: report(drivers=drivers)}) as address:
        assert main(["leaks", "--http", address]) == 0
    out = capsys.readouterr().out
    assert "driver a cannot list its assets" in out
    assert "driver b could not be checked yet: away" in out
    assert "driver d: the last check failed: late; the last complete one was at 2026-01-01T00:10:00Z" in out
    assert "driver c has not been checked yet" in out


@pytest.mark.parametrize("answer", ["y\n", "n\n", "--yes"])
def test_fix_deletes_what_a_person_agrees_to_and_waits_for_no_second_check(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, terminal, deleted = [answer] if answer == "--yes" else [], answer != "--yes", answer != "n\n"
    found = report(finding("orphan", "a", confirmed=False), finding("foreign", "b"))
    repaired = report(repairs=[{"driver": "d", "handle": "a", "state": "done", "detail": "deleted"}])
    asked: list[Mapping[str, str]] = []

    def fix(query: Mapping[str, str]) -> Any:
        asked.append(dict(query))
        return repaired

    standing = io.StringIO(answer)
    monkeypatch.setattr(standing, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdin", standing)
    actions = {"/leaks/fix": fix, "/leaks/check": lambda _: {"d": 7}}
    with controller({"/leaks": lambda _: repaired if asked else found}, actions) as address:
        assert main(["leaks", "--fix", *words, "--http", address]) == (0 if deleted else 1)
    assert asked == ([{"agreed": digest_of([("d", "a")])}] if deleted else [])
    out = capsys.readouterr().out
    assert ("deleted a of driver d" in out) is deleted
    assert ("a restore of the cluster has not reached yet" in out) is terminal


def test_without_a_terminal_and_without_yes_only_what_is_confirmed_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Mapping[str, str]] = []

    def fix(query: Mapping[str, str]) -> Any:
        asked.append(dict(query))
        return report()

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with controller({"/leaks": lambda _: report(finding("orphan"))}, {"/leaks/fix": fix}) as address:
        assert main(["leaks", "--fix", "--http", address]) == 0
    assert asked == [{}]


def test_fix_waits_for_the_deletions_and_tells_each(capsys: pytest.CaptureFixture[str]) -> None:
    def repair(handle: str, state: str, detail: str = "") -> dict[str, str]:
        return {"driver": "d", "handle": handle, "state": state, "detail": detail}

    begun = report(
        finding("orphan", "a"), finding("orphan", "b"), repairs=[repair("a", "running"), repair("b", "running")]
    )
    over = report(finding("orphan", "b"), repairs=[repair("a", "done", "deleted"), repair("b", "failed", "away")])
    asked: list[Mapping[str, str]] = []

    def fix(query: Mapping[str, str]) -> Any:
        asked.append(dict(query))
        return begun

    with controller({"/leaks": lambda _: over if asked else begun}, {"/leaks/fix": fix}) as address:
        assert main(["leaks", "--fix", "--driver", "d", "--http", address]) == 1
        out = capsys.readouterr().out
        assert main(["leaks", "--fix", "--handle", "a", "--http", address]) == 0
    assert asked == [{"driver": "d"}, {"handle": "a"}]
    assert "ok    deleted a of driver d" in out
    assert "FAIL  b of driver d: away" in out


def test_a_process_that_does_not_lead_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_: Mapping[str, str]) -> Any:
        raise VolplaneError("this process waits for the lease")

    with controller({"/leaks": refuse}) as address:
        assert main(["leaks", "--http", address]) == 1
    assert capsys.readouterr().err == "error: this process waits for the lease\n"


@pytest.mark.parametrize("command", [["leaks", "--fix"], ["adopt", "--from", "old"]])
def test_without_the_controllers_token_it_says_where_to_run(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    actions: Answers = {"/leaks/fix": lambda _: report(), "/adopt/plan": lambda _: []}
    with controller({"/leaks": lambda _: report()}, actions) as address:
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
        assert main([*command, "--http", address]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}/http-{address.rpartition(':')[2]}.token" in said
    assert "as the user that it runs as" in said


@pytest.mark.parametrize("command", [["leaks"], ["leaks", "--fix"], ["adopt", "--from", "old"]])
def test_without_a_controller_it_says_so(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert main([*command, "--http", address]) == 1
    assert f"error: no controller answers at {address}\n" in capsys.readouterr().err


# --- adopt ------------------------------------------------------------------------------------------------------

PLAN = [
    {"driver": "d", "handle": "a", "volume": "pvc-1", "obstacle": ""},
    {"driver": "d", "handle": "b", "volume": "pvc-2", "obstacle": "no volume of this cluster has its name"},
]


def test_adopt_shows_what_it_would_do_and_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Mapping[str, str]] = []

    def plan(query: Mapping[str, str]) -> Any:
        asked.append(dict(query))
        return PLAN

    status = {"drivers": [{"name": "d"}]}
    with controller({"/status": lambda _: status}, {"/adopt/plan": plan}) as address:
        assert main(["adopt", "--from", "old", "--driver", "d", "--http", address]) == 0
    out = capsys.readouterr().out
    assert asked == [{"from": "old", "driver": "d"}]
    assert "nothing was changed; --yes takes over what has no problem" in out
    assert "no volume of this cluster has its name" in out


def test_adopt_asks_for_volumes_of_a_former_controller_to_be_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Mapping[str, str]] = []
    with controller({}, {"/adopt/plan": lambda query: asked.append(dict(query)) or []}) as address:
        assert main(["adopt", "--from", "ebs.csi.aws.com", "--back", "--stopped", "--http", address]) == 0
    assert asked == [{"from": "ebs.csi.aws.com", "back": "yes", "stopped": "yes"}]
    assert "no asset carries the marks of this cluster" in capsys.readouterr().out


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 1)])
def test_adopt_tells_what_became_of_each(state: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [{**PLAN[0], "state": state, "detail": "so it is"}]
    with controller({"/adopt": lambda _: outcomes}, {"/adopt": lambda _: PLAN}) as address:
        assert main(["adopt", "--from", "old", "--yes", "--http", address]) == code
    out = capsys.readouterr().out
    assert ("ok" if state == "done" else "FAIL") in out
    assert "so it is" in out
    assert "no volume of this cluster has its name" in out


def test_adopt_of_nothing_is_success(capsys: pytest.CaptureFixture[str]) -> None:
    with controller({}, {"/adopt/plan": lambda _: []}) as address:
        assert main(["adopt", "--from", "old", "--http", address]) == 0
    assert "no asset carries the marks of cluster old" in capsys.readouterr().out


def test_programs_get_the_plan_and_what_became_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with controller({"/adopt": lambda _: []}, {"/adopt/plan": lambda _: PLAN}) as address:
        assert main(["adopt", "--from", "old", "-o", "json", "--http", address]) == 0
    assert json.loads(capsys.readouterr().out) == {"plan": PLAN, "outcomes": None}


def test_yaml_holds_the_whole_answer_too(capsys: pytest.CaptureFixture[str]) -> None:
    with controller({"/leaks": lambda _: report(finding("drifted"))}) as address:
        assert main(["leaks", "-o", "yaml", "--http", address]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["findings"][0]["verdict"] == "drifted"


def test_a_driver_that_the_controller_has_not_is_a_slip(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing found would be no comfort."""
    status = {"drivers": [{"name": "disks.example.com"}]}
    with controller({"/leaks": lambda _: report(), "/status": lambda _: status}) as address:
        assert main(["leaks", "--driver", "zzz", "--http", address]) == 1
        assert main(["adopt", "--from", "old", "--driver", "disk.example.com", "--http", address]) == 1
    err = capsys.readouterr().err
    assert "error: --driver: the controller has no driver 'zzz'; known: d\n" in err
    assert "has no driver 'disk.example.com'; did you mean 'disks.example.com'?" in err


def test_an_address_that_is_none_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leaks", "--http", "9809"]) == 1
    assert 'error: --http is "9809"; it must be ADDRESS:PORT, such as 127.0.0.1:9809' in capsys.readouterr().err
