"""The backend of docs/how-to/write-a-cloud-backend.md works, and keeps the promises of every backend."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "write-a-cloud-backend.md"


def test_every_block_of_the_page_runs_in_its_order() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    assert len(blocks) == 5
    shelf = sys.modules["shelf_of_the_how_to"] = ModuleType("shelf_of_the_how_to")
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), shelf.__dict__)
    finally:
        del sys.modules["shelf_of_the_how_to"]
    assert vars(shelf)["report"].passed
