"""The output of commands for people: colour and progress on a terminal, plain lines in a pipe or a log.

Results go to stdout; progress, warnings and errors go to stderr. `NO_COLOR` and `TERM=dumb` switch colour off.

Names, reasons and messages come from objects that tenants write. So every text passes `sanitize` here, and nowhere
else: it is one line without anything that a terminal obeys. rich lays tables and progress out; its markup is off.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal, TextIO

import typer

from volplane._messages import escaped_json, sanitize

if TYPE_CHECKING:
    # rich takes 0.1 s to import, which a command without a table or progress does not pay.
    import rich.console
    import rich.progress

COLOURS: Final = (
    dict.fromkeys(("Available", "Bound", "Succeeded"), "green")
    | dict.fromkeys(("Failed", "Lost"), "red")
    | dict.fromkeys(("Pending", "Released"), "yellow")
    | dict.fromkeys(("Terminating", "deleted"), "magenta")
    | {"Running": "cyan"}
)

NARROWEST: Final = 40
"""Columns of the narrowest terminal for which lines are broken."""
UNLIMITED: Final = 1_000_000
"""Columns of a pipe: a row stays one line."""
_PADDING: Final = re.compile(r" +((?:\x1b\[0m)?)$")
"""The blanks with which rich pads the last column."""


class Output(StrEnum):
    """Format of a result: for people, or with all that is known for programs."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


class Console:
    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, *, colour: bool | None = None) -> None:
        """out, err: streams; None = those of the process. colour: None = on for each terminal that has colours."""
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self._colour_out = _can_colour(self._out) if colour is None else colour
        self._colour_err = _can_colour(self._err) if colour is None else colour
        # COLUMNS alone proves nothing: readline sets it for every child of a process that loads it.
        self._width = max(NARROWEST, shutil.get_terminal_size().columns) if self._out.isatty() else UNLIMITED

    def line(self, text: str = "") -> None:
        self._write(sanitize(text))

    def sentence(self, text: str) -> None:
        """Write an indented line of the result, broken between words on a narrow terminal, whole in a pipe."""
        self._paragraph(f"  {text}", 4)

    def heading(self, text: str) -> None:
        """Write the title of a part, after an empty line."""
        self._write("")
        self._paragraph(text, 3, bold=True)

    def note(self, text: str) -> None:
        """Write a dimmed line: a reason, or what the reader can do."""
        self._paragraph(text, len(text) - len(text.lstrip()), dim=True)

    def done(self, text: str) -> None:
        """Write a result that is as it should be, marked "ok"."""
        self._marked("ok", "green", text)

    def failed(self, text: str) -> None:
        """Write a result that is not as it should be, marked "FAIL". The command then exits with code 1."""
        self._marked("FAIL", "red", text)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, most: int | None = None) -> None:
        """Write columns as wide as their widest cell. Cells that are phases are coloured.

        On a narrow terminal cells are broken between words. In a pipe each row stays one line. most: rows to write at
        most; a note says how many are left out.
        """
        from rich.table import Table  # noqa: PLC0415 - start-up time
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
        cells = [[sanitize(cell) for cell in row] for row in rows[:most]]
        for column, header in enumerate(headers):
            words = [word for row in cells for word in row[column].split()]
            # Words are never cut: people copy names.
            table.add_column(Text(header), overflow="fold", min_width=max(map(len, (header, *words))))
        for row in cells:
            table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
        console = _rich_console(self._out, self._width, colour=self._colour_out)
        with console.capture() as rendered:
            console.print(table, crop=False)
        for line in rendered.get().splitlines():
            self._write(_PADDING.sub(r"\1", line))
        if len(rows) > len(cells):
            self.note(f"and {len(rows) - len(cells)} more; -o json shows all")

    def data(self, value: object, output: Output) -> None:
        """Write JSON or YAML of anything that msgspec can encode; what a terminal obeys is written as escapes."""
        import msgspec  # noqa: PLC0415 - start-up time

        if output is Output.JSON:
            self._write(escaped_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))
            return
        import yaml  # noqa: PLC0415 - start-up time

        # In ASCII, in which a terminal obeys nothing.
        self._write(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, width=120).rstrip())

    def warning(self, text: str) -> None:
        """Write a problem that does not stop the command to stderr."""
        self._write_err("warning:", "yellow", sanitize(text))

    def error(self, text: str) -> None:
        """Write why the command fails, as one line on stderr."""
        self._write_err("error:", "red", " ".join(sanitize(text).split()), bold=True)

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Progress]:
        """Show progress on stderr: a line that is redrawn on a terminal, else one at the start and one at the end."""
        shown = Progress(self._err, what, total, moving=self._colour_err)
        final = True
        try:
            yield shown
        except KeyboardInterrupt:
            final = not self._colour_err
            raise
        finally:
            shown.close(final=final)

    def _marked(self, mark: str, colour: str, text: str) -> None:
        first, *others = self._broken(f"{mark:<6}{sanitize(text)}", 6)
        self._write(f"{typer.style(mark, fg=colour, bold=True)}{first[len(mark) :]}")
        for line in others:
            self._write(line)

    def _paragraph(self, text: str, indent: int, *, bold: bool | None = None, dim: bool | None = None) -> None:
        for line in self._broken(sanitize(text), indent):
            self._write(typer.style(line, bold=bold, dim=dim, reset=bool(bold or dim)))

    def _broken(self, text: str, indent: int) -> list[str]:
        """Break a text into lines that fit the terminal, without cutting words. Later lines are indented."""
        if len(text) <= self._width:
            return [text]
        return textwrap.wrap(
            text, self._width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )

    def _write(self, text: str) -> None:
        # Without colour, typer takes the styles out again.
        typer.echo(text, file=self._out, color=self._colour_out)
        self._out.flush()

    def _write_err(self, word: str, colour: str, text: str, *, bold: bool | None = None) -> None:
        typer.echo(f"{typer.style(word, fg=colour, bold=bold)} {text}", file=self._err, color=self._colour_err)


class Progress:
    """A line that shows how much is done. Made by `Console.progress`."""

    def __init__(self, stream: TextIO, what: str, total: int | None, *, moving: bool) -> None:
        self._stream = stream
        self._what = sanitize(what)
        self._total = total
        self._done = 0
        self._detail = ""
        self._bar: rich.progress.Progress | None = None
        if not moving:
            self._stream.write(f"{self._what} …\n")
            self._stream.flush()
            return
        from rich import progress  # noqa: PLC0415 - start-up time

        console = _rich_console(stream, max(NARROWEST, shutil.get_terminal_size().columns), colour=True)
        text = progress.TextColumn("{task.description}", markup=False)
        self._bar = progress.Progress(progress.SpinnerColumn(), text, console=console, transient=True)
        self._task = self._bar.add_task(self._text())
        self._bar.start()

    def advance(self, by: int = 1, detail: str = "") -> None:
        """Count `by` more as done. detail: the current item."""
        self._done += by
        self.show(detail)

    def show(self, detail: str) -> None:
        """Show the current item. Writes nothing in a pipe."""
        self._detail = detail
        if self._bar is not None:
            self._bar.update(self._task, description=self._text())

    def close(self, *, final: bool = True) -> None:
        """Erase the moving line. final: write a plain last one in its place."""
        if self._bar is not None:
            self._bar.stop()
        if final and (self._bar is not None or self._done or self._detail):
            self._stream.write(f"{self._text()}\n")
        self._stream.flush()

    def _text(self) -> str:
        count = "" if self._total is None and not self._done else f" {self._done}"
        of = "" if self._total is None else f"/{self._total}"
        detail = f"  {self._detail}" if self._detail else ""
        return sanitize(f"{self._what}{count}{of}{detail}")


def _rich_console(stream: TextIO, width: int, *, colour: bool) -> rich.console.Console:
    from rich.console import Console as RichConsole  # noqa: PLC0415 - start-up time

    system: Literal["standard"] | None = "standard" if colour else None
    return RichConsole(
        file=stream, width=width, force_terminal=colour, color_system=system, highlight=False, markup=False, emoji=False
    )


def _can_colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"
