"""The site builds without a warning, asks no other host for anything, and is the same each time."""

import filecmp
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FETCHED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//[^"]*"|<link[^>]*\shref="(?:https?:)?//[^"]*"|"""
    r"""@import\s+["']?(?:url\(["']?)?(?:https?:)?//[^;]*|url\(["']?(?:https?:)?//[^)]*"""
)


def build(into: Path) -> Path:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    command += ["--doctree-dir", str(into / "doctrees"), "docs", str(into / "site")]
    made = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120)
    assert made.returncode == 0, made.stderr
    return into / "site"


@pytest.mark.soak
def test_two_builds_are_equal_and_fetch_nothing(tmp_path: Path) -> None:
    first, second = build(tmp_path / "first"), build(tmp_path / "second")
    files = sorted(str(path.relative_to(first)) for path in first.rglob("*") if path.is_file())
    assert "explanation/architecture.html" in files
    assert files == sorted(str(path.relative_to(second)) for path in second.rglob("*") if path.is_file())
    assert filecmp.cmpfiles(first, second, files, shallow=False)[1:] == ([], [])
    read = {name: (first / name).read_text("utf-8") for name in files if name.endswith((".html", ".css"))}
    assert {name: FETCHED.findall(text) for name, text in read.items() if FETCHED.search(text)} == {}
