"""The wheels of the image: ours, built from this commit, and what they need, pinned by the digests of constraints."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tools.dist.distributions import CONSTRAINTS, build, pins

__all__ = ["BACKENDS", "collect"]

BACKENDS: Final = ("hostpath", "nfs")
"""Of the image, unless others are asked for: aws-ebs brings 35 MB of a library along, gce-pd 150 MB."""
PYTHON: Final = "3.11"
PLATFORMS: Final = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
OURS: Final = re.compile(r"volplane(_\w+)?-")


def collect(backends: Iterable[str], into: Path, scratch: Path) -> list[Path]:
    """All wheels, in `into`. Raises ValueError for a digest that no constraints have."""
    wanted = {"volplane", *(f"volplane_{name.replace('-', '_')}" for name in backends)}
    built = [path for path in build(scratch / "dist", {}) if path.suffix == ".whl"]
    ours = [path for path in built if path.name.split("-")[0] in wanted]
    if missing := wanted - {path.name.split("-")[0] for path in ours}:
        raise ValueError(f"there is no distribution {', '.join(sorted(missing))}")
    into.mkdir(parents=True)
    constraints = [CONSTRAINTS[0]] if "gce-pd" not in backends else list(CONSTRAINTS)
    unhashed = scratch / "versions.txt"
    unhashed.write_text("\n".join(sorted({pin for file in constraints for pin in pins(file)})) + "\n", "utf-8")
    core = next(path for path in ours if path.name.startswith("volplane-"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--python-version", PYTHON, "--implementation", "cp"]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    command += ["--dest", str(into), "--constraint", str(unhashed)]
    asked = [f"{path}[speed,csi]" if path == core else str(path) for path in ours]
    subprocess.run([*command, *asked], check=True, stderr=subprocess.PIPE, text=True)
    known = {digest for file in constraints for digest in re.findall(r"sha256:([0-9a-f]{64})", file.read_text("utf-8"))}
    wheels = sorted(into.glob("*.whl"))
    for path in wheels:
        if not OURS.match(path.name) and hashlib.sha256(path.read_bytes()).hexdigest() not in known:
            raise ValueError(f"{path.name} is not what the constraints say: its SHA-256 is another one")
    return wheels
