"""The code in the documentation of the mocked EC2 runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = [
    DOCS / "how-to" / "test-against-a-mocked-ec2.md",
    DOCS / "reference" / "fake_ec2.md",
    DOCS / "reference" / "fake_ec2_server.md",
]
BLOCKS = [
    block
    for page in PAGES
    if page.is_file()
    for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
]


@pytest.mark.parametrize("code", BLOCKS, ids=[f"block {number}" for number, _ in enumerate(BLOCKS, 1)])
def test_a_block_runs(code: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
