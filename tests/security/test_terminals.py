"""What a tenant writes into names, annotations and messages reaches no terminal as anything but text."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from unit.cli.test_leaks import controller, finding, report
from volplane.cli.framework.console import Console, Output
from volplane.cli.main import main
from volplane.controller import logs
from volplane.errors import VolplaneError

TERMINAL = "\x1b]0;PWNED\x07\x1b[2J\x1b[31mFAKE LINE\nERROR forged line driver=x\r\x1b[1A"
EVIL = f"{TERMINAL}\x9b31m\u202eback\u2066\u2028\x7f\udcff"
OBEYED = ("\x1b", "\x07", "\r", "\x9b", "\u202e", "\u2066", "\u2028", "\x7f", "\udcff")

WRITE: dict[str, Callable[[Console], object]] = {
    "line": lambda console: console.line(EVIL),
    "heading": lambda console: console.heading(EVIL),
    "note": lambda console: console.note(EVIL),
    "sentence": lambda console: console.sentence(EVIL),
    "done": lambda console: console.done(EVIL),
    "failed": lambda console: console.failed(EVIL),
    "table": lambda console: console.table(("NAME", "WHY"), [(EVIL, EVIL)]),
    "warning": lambda console: console.warning(EVIL),
    "error": lambda console: console.error(EVIL),
    "data": lambda console: (
        console.data({EVIL.replace("\udcff", ""): EVIL.replace("\udcff", "")}, Output.JSON),
        console.data({"why": EVIL.replace("\udcff", "")}, Output.YAML),
    ),
    "progress": lambda console: advance(console),  # noqa: PLW0108 -- defined below
}


def advance(console: Console) -> None:
    with console.progress(EVIL, total=2) as bar:
        bar.advance(detail=EVIL)


def fail() -> None:
    raise ValueError(EVIL)


def test_every_way_to_write_is_tried() -> None:
    assert set(WRITE) == {name for name in vars(Console) if not name.startswith("_")}


@pytest.mark.parametrize("way", sorted(WRITE))
def test_whatever_writes_it_nothing_is_obeyed_and_no_line_is_forged(way: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    WRITE[way](Console(out, err, colour=False))
    text = out.getvalue() + err.getvalue()
    assert not [character for character in OBEYED if character in text]
    assert "FAKE LINE" in text
    assert not any(line.startswith("ERROR forged") for line in text.splitlines())


def evil_controller(**fields: Any) -> Any:
    return controller({"/leaks": lambda _: report(finding("orphan", EVIL[:-1], detail=EVIL[:-1], **fields))})


@pytest.mark.parametrize("form", ["text", "json"])
def test_commands_show_it_as_text(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with evil_controller() as address:
        assert main(["leaks", "--http", address, "-o", form]) == 1
    out = capsys.readouterr().out
    assert not [character for character in OBEYED if character in out]
    if form == "json":
        assert json.loads(out)["findings"][0]["handle"] == EVIL[:-1], "programs get what is there"


def test_an_error_of_a_command_shows_it_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(_: object) -> Any:
        raise VolplaneError(f"claim {EVIL[:-1]} is odd")

    with controller({"/leaks": refuse}) as address:
        assert main(["leaks", "--http", address]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: claim ")
    assert not [character for character in OBEYED if character in err]
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs_show_it_as_text_tracebacks_included(form: Any) -> None:
    stream = io.StringIO()
    handler = logs.configure(form, stream=stream)
    try:
        try:
            fail()
        except ValueError:
            with logs.bound(object=EVIL):
                logging.getLogger("volplane.test").exception("of %s", EVIL)
    finally:
        logging.getLogger().removeHandler(handler)
    text = stream.getvalue()
    assert not [character for character in OBEYED if character in text], ascii(text)
    assert "FAKE LINE" in text
