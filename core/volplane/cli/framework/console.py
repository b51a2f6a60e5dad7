"""What commands say to people: colour and moving progress on a terminal, plain lines in a pipe or a log.

Results go to stdout, everything about the way there (progress, warnings, errors) to stderr, so that
`volplane status | less` and `volplane status 2>/dev/null` both do what one expects. `NO_COLOR` and `TERM=dumb` are
honoured. Nothing here is for machines: commands that offer `-o json` print that themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TextIO

import typer

__all__ = ["Console", "Progress"]

COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "Available": "green",
        "Bound": "green",
        "Failed": "red",
        "Lost": "red",
        "Pending": "yellow",
        "Released": "yellow",
        "Running": "cyan",
        "Succeeded": "green",
        "Terminating": "magenta",
        "deleted": "magenta",
    }
)
"""Colour of a phase; one that is not listed has none."""

ERASE_LINE = "\r\x1b[2K"


class Console:
    """Where a command writes.

    out, err: streams; None = the process's own. colour: None = decided for each stream: a terminal that can.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, *, colour: bool | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self._colour_out = _can_colour(self._out) if colour is None else colour
        self._colour_err = _can_colour(self._err) if colour is None else colour

    def line(self, text: str = "") -> None:
        """A line of the result."""
        self._write(text)

    def heading(self, text: str) -> None:
        """A line that opens a part, with an empty line before it."""
        self._write("")
        self._write(self._styled(text, bold=True))

    def note(self, text: str) -> None:
        """A line of lesser weight: why, or what to do by hand."""
        self._write(self._styled(text, dim=True))

    def done(self, text: str) -> None:
        """Something that was to be shown, and was."""
        self._write(f"{self._styled('ok', fg='green', bold=True)}    {text}")

    def failed(self, text: str) -> None:
        """Something that was to be shown, and was not. The command goes on to say why, and exits 1."""
        self._write(f"{self._styled('FAIL', fg='red', bold=True)}  {text}")

    def phase(self, kind: str, name: str, phase: str, detail: str = "") -> None:
        """An object has come to a phase: `claim   default/data   Bound   to pvc-…`."""
        shown = self._styled(f"{phase:<11}", fg=COLOURS.get(phase))
        self._write(f"  {kind:<7} {name:<41} {shown} {detail}".rstrip())

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Columns, each as wide as its widest cell. Cells that are phases are coloured."""
        lines = [list(row) for row in rows]
        widths = [max(len(row[column]) for row in [list(headers), *lines]) for column in range(len(headers))]
        heads = "   ".join(f"{header:<{width}}" for header, width in zip(headers, widths, strict=True)).rstrip()
        self._write(self._styled(heads, bold=True))
        for row in lines:
            cells = [
                self._styled(f"{cell:<{width}}", fg=COLOURS.get(cell)) for cell, width in zip(row, widths, strict=True)
            ]
            self._write("   ".join(cells).rstrip())

    def warning(self, text: str) -> None:
        """What does not stop the command, on stderr."""
        typer.echo(f"{self._styled_err('warning:', fg='yellow')} {text}", file=self._err, color=self._colour_err)

    def error(self, text: str) -> None:
        """Why the command fails, on stderr as one line."""
        sentence = " ".join(text.split())
        typer.echo(
            f"{self._styled_err('error:', fg='red', bold=True)} {sentence}", file=self._err, color=self._colour_err
        )

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Progress]:
        """Show that something goes on: one line that is redrawn on a terminal, else a line at the start and the end."""
        bar = Progress(self._err, what, total, moving=self._colour_err)
        try:
            yield bar
        finally:
            bar.close()

    def _write(self, text: str) -> None:
        typer.echo(text, file=self._out, color=self._colour_out)
        self._out.flush()

    def _styled(self, text: str, *, fg: str | None = None, bold: bool | None = None, dim: bool | None = None) -> str:
        return typer.style(text, fg=fg, bold=bold, dim=dim) if self._colour_out else text

    def _styled_err(self, text: str, *, fg: str, bold: bool | None = None) -> str:
        return typer.style(text, fg=fg, bold=bold) if self._colour_err else text


class Progress:
    """How far something has come. Made by `Console.progress`."""

    def __init__(self, stream: TextIO, what: str, total: int | None, *, moving: bool) -> None:
        self._stream = stream
        self._what = what
        self._total = total
        self._moving = moving
        self._done = 0
        self._detail = ""
        self._draw()

    def advance(self, by: int = 1, detail: str = "") -> None:
        """So many more are done; `detail` says what is at hand."""
        self._done += by
        self.say(detail)

    def say(self, detail: str) -> None:
        """Show what is at hand; in a pipe this writes nothing."""
        self._detail = detail
        if self._moving:
            self._draw()

    def close(self) -> None:
        """Leave one plain line behind."""
        if self._moving:
            self._stream.write(ERASE_LINE)
        if self._moving or self._done or self._detail:
            self._stream.write(f"{self._text()}\n")
        self._stream.flush()

    def _draw(self) -> None:
        self._stream.write(f"{ERASE_LINE}{self._text()}" if self._moving else f"{self._what} …\n")
        self._stream.flush()

    def _text(self) -> str:
        count = "" if self._total is None and not self._done else f" {self._done}"
        of = "" if self._total is None else f"/{self._total}"
        return f"{self._what}{count}{of}{f'  {self._detail}' if self._detail else ''}"


def _can_colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"
