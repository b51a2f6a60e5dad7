"""Reference documentation out of a schema: one source for `volplane plugins show` and for docs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from volplane.drivers.parameters import default_text, type_text
from volplane.schemas import ParameterSchema

__all__ = ["Entry", "entries", "markdown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One parameter, in words."""

    name: str
    value: str
    """What may be given."""
    default: str
    """Text of the default, "required", or empty."""
    doc: str


def entries(schema: ParameterSchema) -> tuple[Entry, ...]:
    """The parameters in the order of the schema."""
    result = []
    for parameter in schema.parameters:
        notes = [parameter.doc]
        if parameter.excludes:
            notes.append(f"Not together with {', '.join(parameter.excludes)}.")
        if parameter.since > 1:
            notes.append(f"Since schema version {parameter.since}.")
        default = "required" if parameter.required else default_text(parameter)
        entry = Entry(name=parameter.name, value=type_text(parameter), default=default, doc=" ".join(notes))
        result.append(entry)
    return tuple(result)


def markdown(schema: ParameterSchema) -> str:
    """A Markdown table; one sentence if there are no parameters."""
    if not schema.parameters:
        return "None.\n"
    lines = ["| name | value | default | |", "|---|---|---|---|"]
    for entry in entries(schema):
        value = re.sub(r"(?<=that matches )(.*)", r"`\1`", entry.value)
        cells = (f"`{entry.name}`", value, f"`{entry.default}`" if entry.default else "", entry.doc)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
