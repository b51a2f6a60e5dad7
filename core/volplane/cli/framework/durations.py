"""Options that are a length of time: seconds (`300`), or numbers with units (`90s`, `5m`, `1h30m`), as kubectl's."""

from __future__ import annotations

from typing import Any

import typer

from volplane.drivers.parameters import read_value
from volplane.schemas import Parameter, ParameterKind

__all__ = ["duration_option"]


def duration_option(name: str, *, says: str, default: str = "", minimum: float | None = None) -> Any:
    """A `typer.Option` whose value is in seconds. A wrong value is an error of usage that says what would be right.

    says: its help. default: how the help shows the default; "" = it does not. minimum: seconds, allowed itself.
    """
    parameter = Parameter(name=name, doc=says, kind=ParameterKind.DURATION, minimum=minimum)

    def seconds(value: object) -> float:
        try:
            return float(read_value(parameter, value))
        except ValueError as error:
            raise typer.BadParameter(f"it is {str(value)!r}, {error}") from None

    return typer.Option(name, metavar="TIME", help=says, parser=seconds, show_default=default or False)
