"""docs/reference/configuration.md says what the configuration file may hold, and with which defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from volplane.controller.config import (
    Configuration,
    DriverSettings,
    ExtensionSettings,
    ScrubberSettings,
    parse_configuration,
)
from volplane.operations.operation import DriverLimits

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/configuration.md").read_text("utf-8")
EXAMPLE = PAGE.partition("```yaml\n")[2].partition("```")[0]
ROWS = {
    row[0].strip("`"): row[2] for row in (line.strip("| ").split(" | ") for line in PAGE.splitlines() if "| `" in line)
}


def keys(mapping: dict[str, Any]) -> Iterator[str]:
    """The keys of the example as the table spells them; what stands in free mappings is not ours."""
    for key, value in mapping.items():
        match key, value:
            case "drivers" | "extensions", [dict(one)]:
                yield key
                yield from (f"{key}[].{name}" for name in one)
            case "scrubber", dict():
                yield from (f"{key}.{name}" for name in value)
            case _:
                yield key


def fields(kind: type) -> set[str]:
    """The fields of a dataclass as the file spells them."""
    spelled = {field.name: field.name for field in dataclasses.fields(kind) if field.name != "where"}
    words = {name: name.split("_") for name in spelled}
    camel = {name: parts[0] + "".join(part.capitalize() for part in parts[1:]) for name, parts in words.items()}
    return {name.replace("Gib", "GiB") for name in camel.values()}


def test_the_example_can_be_read_and_shows_every_key_that_there_is() -> None:
    read = parse_configuration(EXAMPLE, "example")
    assert read.drivers is not None
    shown = set(keys(yaml.safe_load(EXAMPLE)))
    assert shown == (
        (fields(Configuration) - {"scrubber"})
        | {f"drivers[].{name}" for name in fields(DriverSettings)}
        | {f"extensions[].{name}" for name in fields(ExtensionSettings)}
        | {f"scrubber.{name}" for name in fields(ScrubberSettings)}
    )


def test_the_table_has_a_row_for_every_key_of_the_example() -> None:
    assert list(ROWS) == list(keys(yaml.safe_load(EXAMPLE)))


def test_the_defaults_in_the_table_are_those_of_the_code() -> None:
    limits, scrubber = DriverLimits(), ScrubberSettings()
    assert ROWS["drivers[].concurrency"] == f"{limits.concurrency}"
    assert ROWS["drivers[].timeout"] == f"{limits.timeout:g}"
    assert ROWS["scrubber.attempts"] == f"{scrubber.attempts}"
    assert ROWS["scrubber.baseDeadline"] == f"{scrubber.base_deadline:g}"
    assert ROWS["scrubber.deadlinePerGiB"] == f"{scrubber.deadline_per_gib:g}"
    assert ROWS["scrubber.allowUnsafe"] == f"{scrubber.allow_unsafe}".lower()
