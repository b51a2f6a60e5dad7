"""A line plot as SVG text, with a logarithmic x axis and budgets. Readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

__all__ = ["Line", "svg"]

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 48, 56
COLOURS = ("#2a78c8", "#c8552a", "#3a9a50", "#8a58b8")
GREY = "#808080"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line. points: (x > 0, y >= 0), ascending in x. budget: maximum of y, drawn dashed."""

    name: str
    points: Sequence[tuple[float, float]]
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    top: float

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.low) / ((self.high - self.low) or 1.0)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)


def svg(title: str, x_name: str, y_name: str, lines: Sequence[Line], *, note: str = "") -> str:
    """The content of the SVG file. note: a line at the bottom, for machine and date."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for y in (*(y for _, y in line.points), line.budget or 0.0)]
    step = _step(max(ys))
    scale = _Scale(math.log10(min(xs)), math.log10(max(xs)), step * math.ceil(max(ys) * 1.05 / step))
    parts = [
        _text(LEFT, 24, title, size=15),
        *_axes(scale, sorted(set(xs)), step),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 20, x_name, anchor="middle"),
        _text(LEFT, TOP - 8, y_name),
        *(part for number, line in enumerate(lines) for part in _line(scale, line, COLOURS[number % len(COLOURS)])),
    ]
    if note:
        parts.append(_text(LEFT, HEIGHT - 4, note, size=10))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return "\n".join((head, *parts, "</svg>")) + "\n"


def _step(highest: float) -> float:
    """A round distance of grid lines, so that there are four to eight."""
    rough = (highest or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= rough)


def _axes(scale: _Scale, xs: Iterable[float], step: float) -> Iterable[str]:
    for number in range(round(scale.top / step) + 1):
        y = scale.y(number * step)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{GREY}" stroke-opacity="0.3"/>'
        yield _text(LEFT - 8, y + 4, f"{number * step:g}", anchor="end")
    for x in xs:
        yield _text(scale.x(x), HEIGHT - BOTTOM + 18, f"{x:,.0f}", anchor="middle")


def _line(scale: _Scale, line: Line, colour: str) -> Iterable[str]:
    places = [(scale.x(x), scale.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)
    yield _text(places[-1][0] + 10, places[-1][1] + 4, line.name, colour=colour)
    if line.budget is not None:
        y = scale.y(line.budget)
        yield (
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{colour}" '
            'stroke-dasharray="6 4"/>'
        )
        yield _text(WIDTH - RIGHT + 10, y + 4, f"budget {line.name}: {line.budget:g}", colour=colour, size=11)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = GREY) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )
