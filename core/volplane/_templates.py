"""Data of the packages: texts, and YAML whose texts $NAME stand for values that code gives."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C, where it is built, takes a sixth of the time."""


def text_of(package: str, file: str) -> str:
    return files(package).joinpath(file).read_text("utf-8")


@functools.cache
def data_of(package: str, file: str) -> dict[str, Any]:
    """Return the mapping in a YAML file, which is shared: it may not be changed."""
    content: dict[str, Any] = yaml.load(text_of(package, file), _LOADER)  # noqa: S506 -- both are safe ones
    return content


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy in which each text $NAME is the value of this name, without the keys whose value is None."""
    if isinstance(template, dict):
        parts = {key: filled(each, values) for key, each in template.items()}
        return {key: part for key, part in parts.items() if part is not None}
    if isinstance(template, list):
        return [filled(each, values) for each in template]
    return values[template[1:]] if isinstance(template, str) and template.startswith("$") else template
