"""The output of commands for people: colour and progress on a terminal, plain lines in a pipe or a log.

Results go to stdout; progress, warnings and errors go to stderr. `NO_COLOR` and `TERM=dumb` switch colour off.

Names, reasons and messages come from objects that tenants write. So everything passes `sanitize` here, and nowhere
else: each text is one line, in which nothing is left that a terminal obeys.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TextIO

import typer

from volplane._messages import escaped_json, sanitize
from volplane.cli.framework.output import Output

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

GAP = "   "
NARROWEST = 40
ERASE_LINE = "\r\x1b[2K"


class Console:
    """Writes the output of a command.

    out, err: streams; None = those of the process. colour: None = on for each stream that is a terminal with colours.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, *, colour: bool | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self._colour_out = _can_colour(self._out) if colour is None else colour
        self._colour_err = _can_colour(self._err) if colour is None else colour
        # COLUMNS alone says nothing: readline gives it to every child of a process that loads it.
        self._width = max(NARROWEST, shutil.get_terminal_size().columns) if self._out.isatty() else sys.maxsize

    def line(self, text: str = "") -> None:
        """A line of the result."""
        self._write(sanitize(text))

    def sentence(self, text: str) -> None:
        """An indented line of the result, broken between words where a terminal is narrower; whole in a pipe."""
        for line in self._broken(f"  {sanitize(text)}", 4):
            self._write(line)

    def _broken(self, text: str, indent: int) -> list[str]:
        """Lines of a text that fit the terminal, those after the first one indented; no word is cut."""
        if len(text) <= self._width:
            return [text]
        return textwrap.wrap(
            text, self._width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )

    def heading(self, text: str) -> None:
        """The title of a part, after an empty line."""
        self._write("")
        for line in self._broken(sanitize(text), 3):
            self._write(self._styled(line, bold=True))

    def note(self, text: str) -> None:
        """A dimmed line: a reason, or what the reader can do."""
        text = sanitize(text)
        for line in self._broken(text, len(text) - len(text.lstrip())):
            self._write(self._styled(line, dim=True))

    def done(self, text: str) -> None:
        """A result that is as it should be, marked "ok"."""
        self._marked("ok", "green", text)

    def failed(self, text: str) -> None:
        """A result that is not as it should be, marked "FAIL". The command then exits with code 1."""
        self._marked("FAIL", "red", text)

    def _marked(self, mark: str, colour: str, text: str) -> None:
        first, *others = self._broken(f"{mark:<6}{sanitize(text)}", 6)
        self._write(f"{self._styled(mark, fg=colour, bold=True)}{first[len(mark) :]}")
        for line in others:
            self._write(line)

    def phase(self, kind: str, name: str, phase: str, detail: str = "") -> None:
        """The new phase of an object: `claim   default/data   Bound   to pvc-…`.

        What does not fit the terminal stands on a line of its own.
        """
        head = f"  {kind:<7} {sanitize(name):<40} "
        detail = sanitize(detail)
        fits = len(head) + max(9, len(sanitize(phase))) + 1 + len(detail) <= self._width
        shown = self._styled(f"{phase:<9}" if fits and detail else phase, fg=COLOURS.get(phase))
        self._write(f"{head}{shown} {detail}".rstrip() if fits else f"{head}{shown}")
        if not fits:
            for line in self._broken(f"{'':<10}{detail}", 12):
                self._write(line)

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Columns as wide as their widest cell. Cells that are phases are coloured.

        If that is wider than the terminal, the widest columns leave the table: their cells stand below
        each row, under the header's name, and no word is cut. In a pipe each row stays one line.
        """
        lines = [[sanitize(cell) for cell in row] for row in rows]
        widths = [max(len(row[column]) for row in [list(headers), *lines]) for column in range(len(headers))]
        across = _columns_that_fit(widths, self._width)
        heads = (f"{headers[column]:<{widths[column]}}" for column in across)
        self._write(self._styled(GAP.join(heads).rstrip(), bold=True))
        for row in lines:
            padded = [*(f"{row[column]:<{widths[column]}}" for column in across[:-1]), row[across[-1]]]
            cells = [
                self._styled(text, fg=COLOURS.get(row[column])) for text, column in zip(padded, across, strict=True)
            ]
            self._write(GAP.join(cells).rstrip())
            for column, header in enumerate(headers):
                if column not in across and row[column] not in ("", "-"):
                    self._below(header, row[column])

    def _below(self, header: str, cell: str) -> None:
        """A cell that has no column of its own, on lines below its row."""
        lead = f"    {header.lower()}: "
        for line in textwrap.wrap(
            cell,
            self._width,
            initial_indent=lead,
            subsequent_indent="      ",
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self._write(line)

    def data(self, value: object, output: Output) -> None:
        """A result for programs: JSON or YAML of anything that msgspec can encode, never coloured."""
        if output is Output.JSON:
            self.json(value)
            return
        import msgspec  # noqa: PLC0415 - start-up time, as below
        import yaml  # noqa: PLC0415

        # In ASCII: a terminal obeys nothing of it.
        self._write(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, width=120).rstrip())

    def warning(self, text: str) -> None:
        """A problem that does not stop the command, on stderr."""
        typer.echo(
            f"{self._styled_err('warning:', fg='yellow')} {sanitize(text)}", file=self._err, color=self._colour_err
        )

    def error(self, text: str) -> None:
        """Why the command fails, as one line on stderr."""
        sentence = " ".join(sanitize(text).split())
        typer.echo(
            f"{self._styled_err('error:', fg='red', bold=True)} {sentence}", file=self._err, color=self._colour_err
        )

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Progress]:
        """Show progress on stderr: one line that is redrawn on a terminal, else a line at the start and the end."""
        bar = Progress(self._err, what, total, moving=self._colour_err)
        try:
            yield bar
        except KeyboardInterrupt:
            bar.erase()
            raise
        except BaseException:
            bar.close()
            raise
        bar.close()

    def _write(self, text: str) -> None:
        typer.echo(text, file=self._out, color=self._colour_out)
        self._out.flush()

    def json(self, value: Any) -> None:
        """A result for programs. The characters that a terminal obeys are written as JSON escapes."""
        import msgspec  # noqa: PLC0415 - a part of the start-up time that most commands do not need

        self._write(escaped_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))

    def _styled(self, text: str, *, fg: str | None = None, bold: bool | None = None, dim: bool | None = None) -> str:
        shown = sanitize(text)
        plain = not self._colour_out or (fg is None and bold is None and dim is None)
        return shown if plain else typer.style(shown, fg=fg, bold=bold, dim=dim)

    def _styled_err(self, text: str, *, fg: str, bold: bool | None = None) -> str:
        return typer.style(text, fg=fg, bold=bold) if self._colour_err else text


class Progress:
    """A line that shows how much is done. Made by `Console.progress`."""

    def __init__(self, stream: TextIO, what: str, total: int | None, *, moving: bool) -> None:
        self._stream = stream
        self._what = what
        self._total = total
        self._moving = moving
        self._done = 0
        self._detail = ""
        self._draw()

    def advance(self, by: int = 1, detail: str = "") -> None:
        """Add `by` to what is done. detail: the current item."""
        self._done += by
        self.show(detail)

    def show(self, detail: str) -> None:
        """Show the current item; writes nothing in a pipe."""
        self._detail = detail
        if self._moving:
            self._draw()

    def erase(self) -> None:
        """Leave nothing of the moving line, for one who wants to see no more."""
        if self._moving:
            self._stream.write(ERASE_LINE)
            self._stream.flush()

    def close(self) -> None:
        """Replace the moving line by a final plain one."""
        if self._moving:
            self._stream.write(ERASE_LINE)
        if self._moving or self._done or self._detail:
            self._stream.write(f"{self._text()}\n")
        self._stream.flush()

    def _draw(self) -> None:
        self._stream.write(f"{ERASE_LINE}{self._text()}" if self._moving else f"{sanitize(self._what)} …\n")
        self._stream.flush()

    def _text(self) -> str:
        count = "" if self._total is None and not self._done else f" {self._done}"
        of = "" if self._total is None else f"/{self._total}"
        return sanitize(f"{self._what}{count}{of}{f'  {self._detail}' if self._detail else ''}")


def _columns_that_fit(widths: Sequence[int], width: int) -> list[int]:
    """Columns of a table that is not wider than `width`: without the widest ones, but never without the first."""
    across = list(range(len(widths)))
    while len(across) > 1 and sum(widths[column] for column in across) + len(GAP) * (len(across) - 1) > width:
        # Of equally wide ones the last goes.
        across.remove(max(across[1:], key=lambda column: (widths[column], column)))
    return across


def _can_colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"
