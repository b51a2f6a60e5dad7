"""Formats of the results of commands."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Output"]


class Output(StrEnum):
    """Format of a result: for people, or with all that is known for programs."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
