"""What stands in the repository works on any machine: no index, no host of one, no path of the machine it was made
on.
"""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# One letter of each stands in brackets, so that this file does not find itself.
FORBIDDEN = {
    "the host of a package index": re.compile(r"[p]ypi\.org|[p]ythonhosted\.org|\b[i]ndex-url\b"),
    "a path of one machine": re.compile(r"(?<![\w.~$}/])/(?:[w]ork|[r]oot|[h]ome|[U]sers)/[a-z.]"),
}


@cache
def tracked_files() -> tuple[Path, ...]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    names = listing.stdout.decode().split("\0")
    return tuple(path for name in names if name and (path := REPOSITORY / name).is_file())


def modules() -> list[Path]:
    packages = [
        REPOSITORY / "core",
        REPOSITORY / "embedded" / "src",
        REPOSITORY / "testing" / "src",
        *REPOSITORY.glob("plugins/*/src"),
    ]
    return [path for package in packages for path in sorted(package.rglob("*.py"))]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_file_names_what_others_do_not_have(what: str) -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()[:120]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if FORBIDDEN[what].search(line)
    ]
    assert not found, f"{what} in:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("pins", "least"),
    [
        ("constraints.txt", 40),
        ("constraints-google.txt", 10),
        ("constraints-cel.txt", 5),
        ("constraints-mutants.txt", 10),
        ("constraints-helm.txt", 1),
    ],
)
def test_every_pinned_package_has_an_exact_version_and_hashes_and_nothing_else(pins: str, least: int) -> None:
    text = (REPOSITORY / pins).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*-[^-]|^--", text, re.MULTILINE), "options belong into the Makefile"
    entries = text.replace("\\\n", " ").splitlines()
    assert len(entries) >= least
    pinned = re.compile(r"[a-z0-9][a-z0-9-]*==\S+( ; [^#]*?)?( +--hash=sha256:[0-9a-f]{64})+ *")
    assert [entry[:60] for entry in entries if not pinned.fullmatch(entry)] == []
