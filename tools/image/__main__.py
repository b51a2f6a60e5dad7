"""Prepare the context of deploy/Containerfile, and build the image.

python -m tools.image --out DIRECTORY              the context
python -m tools.image --out DIRECTORY --build TAG  and the image, by buildah: DIRECTORY/image.tar, an OCI archive
python -m tools.image --lock                       pin the newest Debian packages in deploy/image/debian.txt

`--newest` takes the newest Debian packages without pinning them: security fixes push those of the lock off the index.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.dist.distributions import ROOT, epoch
from tools.image import debian
from tools.image.wheels import BACKENDS, collect
from tools.sbom import of_image

NAMES: Final = (
    "base-files",
    "ca-certificates",
    "libbz2-1.0",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libssl3",
    "libstdc++6",
    "libuuid1",
    "media-types",
    "python3.11-minimal",
    "zlib1g",
)


def main(arguments: Sequence[str]) -> int:
    """Do what is asked; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.image", description="Build the image of volplane.")
    parser.add_argument("--out", type=Path, help="a directory to make")
    parser.add_argument("--backends", default=",".join(BACKENDS), metavar="LIST", help="default %(default)s")
    parser.add_argument("--newest", action="store_true", help="the newest Debian packages, not those of the lock")
    parser.add_argument("--lock", action="store_true", help="pin the newest Debian packages")
    parser.add_argument("--build", metavar="TAG", help="build with buildah")
    given = parser.parse_args(arguments)
    try:
        if given.lock:
            debian.write_lock(debian.newest(NAMES))
        if given.out is not None:
            context(given.out.absolute(), [name for name in given.backends.split(",") if name], newest=given.newest)
        if given.build:
            build(given.out.absolute(), given.build)
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd[:3]))}: {error.stderr or error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def context(out: Path, backends: Sequence[str], *, newest: bool = False) -> None:
    """Make everything that the Containerfile names."""
    scratch = out.with_name(f"{out.name}.parts")
    for directory in (out, scratch):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    time = epoch()
    packages = debian.newest(NAMES) if newest else debian.read_lock()
    debian.root_archive(debian.fetch(packages, scratch / "debian"), out / "debian.tar", time)
    wheels = collect(backends, out / "wheels", scratch)
    (out / "sbom.cdx.json").write_text(of_image(packages, wheels, time), "utf-8")
    for file in (ROOT / "deploy" / "Containerfile", ROOT / "deploy" / "image" / "install.py"):
        shutil.copyfile(file, out / file.name)
    for path in out.rglob("*"):
        os.utime(path, (time, time))


def build(context: Path, tag: str) -> Path:
    """The image as an OCI archive in the context's directory, of the time that the context's files have."""
    if shutil.which("buildah") is None:
        raise ValueError("buildah is not installed: apt-get install buildah, or build the context with another builder")
    storage = ["--root", str(context) + ".storage/root", "--runroot", str(context) + ".storage/run"]
    buildah = ["buildah", *storage, "--storage-driver", "vfs"]
    layout, archive = Path(f"{context}.layout"), context / "image.tar"
    shutil.rmtree(layout, ignore_errors=True)
    file = context / "Containerfile"
    time = int(file.stat().st_mtime)
    options = ["--isolation", "chroot", "--timestamp", str(time), "--quiet"]
    subprocess.run([*buildah, "build", *options, "--tag", tag, "--file", str(file), str(context)], check=True)
    subprocess.run([*buildah, "push", "--quiet", tag, f"oci:{layout}:{tag}"], check=True)
    _pack(layout, archive, time)
    for directory in (layout, f"{context}.storage"):
        shutil.rmtree(directory, ignore_errors=True)
    return archive


def _pack(layout: Path, archive: Path, time: int) -> None:
    """An OCI archive is a tar of the layout; this one has one time and one order, which buildah's own has not."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as packed:
        for path in sorted(layout.rglob("*")):
            info = packed.gettarinfo(path, str(path.relative_to(layout)))
            info.mtime, info.uid, info.gid, info.uname, info.gname = time, 0, 0, "", ""
            info.mode = 0o755 if path.is_dir() else 0o644
            if path.is_file():
                with path.open("rb") as content:
                    packed.addfile(info, content)
            else:
                packed.addfile(info)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
