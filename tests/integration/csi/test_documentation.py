"""The table of codes in the reference is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from volplane.csi.codes import CODES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "csi.md"


def test_the_table_of_codes_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    said = {name: (creating, other) for name, creating, other in rows}
    for method in ("CreateVolume", "CreateSnapshot"):
        assert said == {kind.__name__: (row.get(method, row["*"]), row["*"]) for kind, row in CODES.items()}
