"""Whether what `make dist` builds may be published: all but the upload.

python -m tools.dist.check --out DIRECTORY

Builds twice, as two people with other settings would, and compares the bytes; verifies checksums and metadata; installs
the files with the pinned versions into a new environment, outside the repository, and runs what a newcomer runs first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from packaging.metadata import Metadata
from trove_classifiers import classifiers

from tools.dist.distributions import CONSTRAINTS, ROOT, pins, version

ANOTHER: Final = {"TZ": "Pacific/Auckland", "PYTHONHASHSEED": "7", "LC_ALL": "C"}
"""Settings of the second build: whatever of them reaches the bytes makes them differ."""
INSTALLED: Final = ("volplane[dev,testing]", "volplane-hostpath")
RUN: Final = (
    ("volplane", "plugins"),
    ("kubectl-volplane", "--help"),
    ("volplane", "manifests", "--image", "registry.example.com/volplane:1"),
    ("volplane", "demo"),
)


def main(arguments: Sequence[str]) -> int:
    """Check; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.dist.check", description="Check what is to be released.")
    parser.add_argument("--out", type=Path, required=True, help="an empty directory, or one to make")
    out = parser.parse_args(arguments).out.absolute()
    try:
        with TemporaryDirectory() as directory:
            scratch = Path(directory)
            _build(out, 0o022, {})
            _build(scratch / "again", 0o077, ANOTHER)
            problems = [*differing(out, scratch / "again"), *wrong_metadata(out)]
            if not problems:
                subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=out, check=True)
                _use(out, scratch)
    except (OSError, subprocess.CalledProcessError) as error:
        problems = [str(error)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        print(f"{out} may be published")
    return 1 if problems else 0


def differing(one: Path, other: Path) -> Iterator[str]:
    """What two builds do not agree on."""
    for name in sorted({path.name for directory in (one, other) for path in directory.iterdir()}):
        contents = [each.read_bytes() if each.is_file() else None for each in (one / name, other / name)]
        if contents[0] != contents[1]:
            yield f"{name} is not the same in two builds"


def wrong_metadata(dist: Path) -> Iterator[str]:
    """What an index would refuse: by the specification of core metadata, the known classifiers, and one version."""
    for path in sorted(dist.iterdir()):
        if (text := _metadata(path)) is None:
            continue
        try:
            told = Metadata.from_email(text, validate=True)
        except ExceptionGroup as error:
            yield from (f"{path.name}: {each}" for each in error.exceptions)
            continue
        yield from (f"{path.name}: there is no {each}" for each in told.classifiers or () if each not in classifiers)
        if not told.description or told.description_content_type != "text/markdown":
            yield f"{path.name}: its page is empty, or no Markdown"
        if str(told.version) != version():
            yield f"{path.name} has version {told.version}; volplane has {version()}"


def _metadata(path: Path) -> bytes | None:
    """That of a wheel or a source distribution; None for another file."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            [name] = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
            return wheel.read(name)
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            found = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
            return found.read() if found is not None else b""
    return None


def _build(out: Path, umask: int, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tools.dist", "--out", str(out)]
    given = {**os.environ, **environment}
    subprocess.run(command, cwd=ROOT, env=given, umask=umask, check=True, stdout=subprocess.DEVNULL)


def _use(dist: Path, scratch: Path) -> None:
    """Install with the pinned versions, and nothing of the repository; then run. Raises CalledProcessError."""
    versions = scratch / "versions.txt"
    versions.write_text("\n".join(pins(CONSTRAINTS[0])) + "\n", "utf-8")
    subprocess.run([sys.executable, "-m", "venv", str(scratch / "venv")], check=True)
    programs = scratch / "venv" / "bin"
    pip = [str(programs / "pip"), "install", "-qq", "--disable-pip-version-check", "--no-compile"]
    pip += ["--only-binary", ":all:"]
    subprocess.run([*pip, "--find-links", str(dist), "--constraint", str(versions), *INSTALLED], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean["PATH"] = f"{programs}:{clean['PATH']}"

    def run(program: str, *words: str) -> str:
        command = [str(programs / program), *words]
        ended = subprocess.run(command, cwd=scratch, env=clean, check=False, capture_output=True, text=True)
        if ended.returncode != 0:
            raise OSError(f"{program} {' '.join(words)} ended with {ended.returncode}: {ended.stdout}{ended.stderr}")
        return ended.stdout

    if version() not in (told := run("volplane", "--version")):
        raise OSError(f"the installed volplane says that it is {told.strip()!r}, not {version()}")
    for command in RUN:
        run(*command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
