import io

import pytest

from volplane.cli.framework.console import Console
from volplane_embedded.cli.demo_console import DemoConsole

ERASED = "\x1b[2K"
"""Erases the line of the cursor."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_a_pipe_gets_plain_lines() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = DemoConsole(out, err)
    console.heading("Claims")
    console.phase("claim", "default/data", "Bound", "to pvc-1")
    console.done("a file is there")
    console.warning("slow")
    assert out.getvalue() == (
        "\nClaims\n  claim   default/data                             Bound     to pvc-1\nok    a file is there\n"
    )
    assert err.getvalue() == "warning: slow\n"
    assert not console._colour_out


def test_a_terminal_gets_colour(terminal: Terminal) -> None:
    console = DemoConsole(terminal, terminal)
    console.phase("claim", "default/data", "Bound")
    assert "\x1b[32mBound" in terminal.getvalue()
    assert console._colour_out


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", ""), ("TERM", "dumb")])
def test_colour_can_be_declined(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    Console(terminal, terminal).error("no")
    assert terminal.getvalue() == "error: no\n"


def test_an_error_is_one_line_whatever_its_message_holds() -> None:
    err = io.StringIO()
    Console(io.StringIO(), err).error("first\n  second")
    assert err.getvalue() == "error: first second\n"


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    out = io.StringIO()
    Console(out).table(["NAME", "PHASE"], [["a-long-name", "Bound"], ["b", "Pending"]])
    assert out.getvalue() == "NAME          PHASE\na-long-name   Bound\nb             Pending\n"


def test_an_empty_table_is_its_headers() -> None:
    out = io.StringIO()
    Console(out).table(["NAME"], [])
    assert out.getvalue() == "NAME\n"


def test_a_table_says_how_many_rows_it_leaves_out() -> None:
    out = io.StringIO()
    Console(out).table(["NAME"], [["a"], ["b"], ["c"]], most=2)
    assert out.getvalue() == "NAME\na\nb\nand 1 more; -o json shows all\n"


def test_a_style_ends_with_its_text(terminal: Terminal) -> None:
    console = Console(terminal, terminal, colour=True)
    console.sentence("plain")
    console.note("dim")
    assert terminal.getvalue() == "  plain\n\x1b[2mdim\x1b[0m\n"


def test_progress_in_a_pipe_is_a_line_at_the_start_and_one_at_the_end() -> None:
    err = io.StringIO()
    with Console(io.StringIO(), err).progress("making claims", 2) as progress:
        progress.advance(detail="one")
        progress.advance(detail="two")
    assert err.getvalue() == "making claims …\nmaking claims 2/2  two\n"


def test_progress_on_a_terminal_redraws_its_line_and_leaves_a_plain_one(terminal: Terminal) -> None:
    with Console(terminal, terminal).progress("making claims") as progress:
        progress.show("waiting for [bold]x[/bold]\x1b[2J")
    shown = terminal.getvalue()
    assert ERASED in shown
    assert shown.endswith("making claims  waiting for [bold]x[/bold]\\x1b[2J\n")
    assert "\x1b[2J" not in shown, "what a tenant wrote is not obeyed"


def test_an_interrupt_leaves_nothing_of_the_progress_on_a_terminal(terminal: Terminal) -> None:
    with pytest.raises(KeyboardInterrupt), Console(terminal, terminal).progress("making claims"):
        raise KeyboardInterrupt
    assert not terminal.getvalue().rpartition(ERASED)[2].strip("\r\n\x1b[?25h")


@pytest.mark.parametrize(("stream", "lines"), [(io.StringIO, 1), (Terminal, 3)])
def test_a_sentence_is_broken_between_words_on_a_terminal_alone(
    stream: type[io.StringIO], lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = stream()
    Console(out, colour=False).sentence("word " * 40 + "end")
    shown = out.getvalue().splitlines()
    assert len(shown) == lines
    assert all(line.startswith("  ") for line in shown)
    assert lines == 1 or max(map(len, shown)) <= 80


def test_nothing_is_wider_than_the_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    console = DemoConsole(terminal, terminal)
    volume = "pvc-2cb271f6-2e4b-4394-a41e-5be00258fb13"
    console.phase("claim", "default/data", "Bound", f"to {volume}")
    console.phase("pod", "app", "Running", "on node-1")
    console.heading("5. Attach: a pod moves to another node, and its EBS volume of a mocked EC2 follows it")
    console.done("EC2 says that vol-0e5d046d2ce7b1f0d is attached to i-04cd9b7672d7fbee8, which is node-1")
    console.note("    in this demo no volume is attached, because a distribution that it needs is not installed")
    assert terminal.getvalue() == (
        "  claim   default/data                             Bound\n"
        f"          to {volume}\n"
        "  pod     app                                      Running   on node-1\n"
        "\n"
        "5. Attach: a pod moves to another node, and its EBS volume of a mocked EC2\n"
        "   follows it\n"
        "ok    EC2 says that vol-0e5d046d2ce7b1f0d is attached to i-04cd9b7672d7fbee8,\n"
        "      which is node-1\n"
        "    in this demo no volume is attached, because a distribution that it needs is\n"
        "    not installed\n"
    )


def test_cells_are_broken_between_words_where_a_terminal_is_too_narrow(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    name, volume = "a-long-name-of-an-operation", "pvc-2cb271f6-2e4b-4394"
    Console(terminal, terminal, colour=True).table(
        ["NAME", "PHASE", "WHY"], [["a", "Bound", "-"], [name, "[red]", f"waits for {volume} since yesterday"]]
    )
    rows = terminal.getvalue().splitlines()
    assert rows[1] == f"{'a':<{len(name)}}   \x1b[32mBound\x1b[0m   -"
    assert rows[2].startswith(f"{name}   [red]   waits for"), "markup of a tenant is text"
    assert any(volume in row for row in rows), "a name is never cut, even if that is too wide"
    assert len(rows) > 3
    assert not [row for row in rows if row.removesuffix("\x1b[0m").endswith(" ")]
