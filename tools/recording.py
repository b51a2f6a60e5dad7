"""`make recording`: docs/demo.svg, an animated picture of a real run of the demo.

The picture has the lines of the terminal in their colours, and CSS that moves them as they came. rich's `export_svg`
shows one moment, in a font from another host; here nothing is loaded, and nothing is a script. Where CSS does not move,
or the reader wants no motion, the last lines are shown. A test says when the demo tells another story.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from rich.style import Style
from rich.text import Text

__all__ = ["PICTURE", "lines_of", "picture", "record"]

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "demo.svg"
COMMAND = "$ make demo"
TITLE = "A recording of make demo: volumes live through their whole life"
COLUMNS, ROWS = 116, 26
LINE, MARGIN = 18, 14
WIDTH, HEIGHT = COLUMNS * 8.5 + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
LONGEST_PAUSE, SHORTEST_PAUSE, LAST_PAUSE = 1.5, 0.12, 6.0
COLOURS = ("text", "red", "green", "yellow", "blue", "magenta", "cyan", "text")
SHEET = """\
svg{--back:#f6f8fa;--text:#1f2328;--red:#a40e26;--green:#116329;--yellow:#7d4e00;--blue:#0550ae;--magenta:#6639ba;--cyan:#0e6168}
@media(prefers-color-scheme:dark){svg{--back:#161b22;--text:#e6edf3;--red:#ff7b72;--green:#7ee787;--yellow:#e3b341;--blue:#79c0ff;
--magenta:#d2a8ff;--cyan:#76e3ea}}
.back{fill:var(--back)}
text{fill:var(--text);font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}
.bold{font-weight:700}.dim{opacity:.65}
.red{fill:var(--red)}.green{fill:var(--green)}.yellow{fill:var(--yellow)}.blue{fill:var(--blue)}.magenta{fill:var(--magenta)}
.cyan{fill:var(--cyan)}
@media(prefers-reduced-motion:reduce){*{animation:none!important}}
"""

Line = tuple[float, Text]
"""When it came, and what it shows."""


def record(command: Sequence[str]) -> list[Line]:
    """Run a command in a terminal of this size; return its lines. Raises CalledProcessError if it fails."""
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm-256color"}
    with (
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its_end, stderr=its_end, env=environment) as running,
        os.fdopen(terminal, "rb", buffering=0) as output,
    ):
        os.close(its_end)
        begun, lines, rest = time.monotonic(), list[Line](), b""
        while received := _received(output.fileno()):
            *whole, rest = (rest + received).split(b"\r\n")
            moment = time.monotonic() - begun
            lines += [(moment, Text.from_ansi(line.decode())) for line in whole]
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command, "\n".join(text.plain for _, text in lines))
    return lines


def picture(lines: Sequence[Line]) -> str:
    """The SVG of these lines."""
    shown = [(0.0, Text(COMMAND, style="bold")), *_paced(lines)]
    seconds = shown[-1][0] + LAST_PAUSE
    came = [(moment, len(list(same))) for moment, same in groupby(shown, key=lambda line: line[0])]
    counts, total = list[tuple[float, int]](), 0
    for moment, number in came:
        total += number
        counts.append((moment / seconds * 100, total))
    rolls = _keyframes("roll", ((share, -LINE * max(0, count - ROWS)) for share, count in counts))
    bares = _keyframes("bare", ((share, LINE * min(count, ROWS)) for share, count in counts))
    texts = "\n".join(
        f'<text y="{LINE * number + LINE - 5}">{_spans(text)}</text>' for number, (_, text) in enumerate(shown)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT}" role="img" aria-label="{TITLE}">
<title>{TITLE}</title>
<style>
{SHEET}.roll{{transform:translateY({-LINE * max(0, total - ROWS)}px);animation:roll {seconds:.2f}s step-end infinite}}
.bare{{transform:translateY({LINE * ROWS}px);animation:bare {seconds:.2f}s step-end infinite}}
{rolls}
{bares}
</style>
<rect class="back" width="{WIDTH:g}" height="{HEIGHT}" rx="8"/>
<svg x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN:g}" height="{ROWS * LINE}">
<g class="roll">
{texts}
</g>
<rect class="back bare" width="{WIDTH:g}" height="{ROWS * LINE}"/>
</svg>
</svg>
"""


def lines_of(svg: str) -> list[str]:
    """The lines that a picture shows, without the command."""
    texts = ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()) for text in texts][1:]


def _received(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux says EIO when nothing has the terminal open any more.
        return b""


def _paced(lines: Iterable[Line]) -> Iterator[Line]:
    """Shorten pauses in which nothing is to be seen, and let no two lines come too fast to be seen."""
    before = now = 0.0
    for moment, text in lines:
        now += min(max(moment - before, SHORTEST_PAUSE), LONGEST_PAUSE)
        before = moment
        yield round(now, 2), text


def _keyframes(name: str, places: Iterable[tuple[float, int]]) -> str:
    """An animation that jumps; a place that stays is left out."""
    jumps = [next(same) for _, same in groupby(places, key=lambda place: place[1])]
    return f"@keyframes {name}{{" + "".join(f"{share:.2f}%{{transform:translateY({y}px)}}" for share, y in jumps) + "}"


def _spans(text: Text) -> str:
    """The parts of a line, each with its colour."""
    whole = Style.parse(str(text.style)) if text.style else Style()
    cuts = sorted({0, len(text.plain), *(edge for span in text.spans for edge in (span.start, span.end))})
    parts = []
    for start, end in pairwise(cuts):
        styles = [whole, *(Style.parse(str(span.style)) for span in text.spans if span.start <= start < span.end)]
        classes, part = " ".join(_classes(Style.combine(styles))), escape(text.plain[start:end])
        parts.append(f'<tspan class="{classes}">{part}</tspan>' if classes else part)
    return "".join(parts)


def _classes(style: Style) -> Iterator[str]:
    if style.bold:
        yield "bold"
    if style.dim:
        yield "dim"
    if style.color is not None and style.color.number is not None:
        yield COLOURS[style.color.number]


if __name__ == "__main__":
    PICTURE.write_text(picture(record([sys.executable, "-m", "volplane", "demo"])), "utf-8")
