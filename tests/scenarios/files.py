"""Where the scenario data lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenarios.rows import read_rows

DIRECTORY = Path(__file__).resolve().parents[3] / "shared" / "scenarios"


def scenario_rows(name: str) -> list[dict[str, Any]]:
    """Rows of a file beside the checkout; none where it is absent."""
    file = DIRECTORY / name
    return read_rows(file) if file.is_file() else []
