"""The Debian packages of the image: pinned by version and digest, fetched by apt, unpacked without their scripts."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["LOCK", "DebianPackage", "fetch", "newest", "read_lock", "root_archive", "write_lock"]

LOCK: Final = Path(__file__).resolve().parents[2] / "deploy" / "image" / "debian.txt"
HEAD: Final = """\
# Debian packages of the image: name, version, SHA-256 of the file for amd64. Python with what its extension modules and
# those of our wheels are linked to; no shell, no package tools. Written by `python -m tools.image --lock`.
"""
DROPPED: Final = (
    "./usr/share/man/",
    "./usr/share/locale/",
    "./usr/share/lintian/",
    "./usr/share/bug/",
    "./usr/share/doc-base/",
    "./usr/share/pixmaps/",
    "./usr/share/binfmts/",
    "./usr/share/python3/",
    "./usr/share/gcc/",
    "./usr/share/gdb/",
    "./usr/share/info/",
    "./usr/lib/x86_64-linux-gnu/gconv/",
    "./usr/lib/python3.11/test/",
    "./usr/lib/python3.11/pydoc_data/",
    "./usr/lib/python3.11/turtle.py",
    "./boot/",
    "./home/",
    "./media/",
    "./mnt/",
    "./srv/",
    "./var/",
)
"""What no process of the image reads. Of ./usr/share/doc the copyright files stay."""
CERTIFICATES: Final = "./usr/share/ca-certificates/mozilla/"
ACCOUNTS: Final = {
    "./etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nvolplane:x:65532:65532::/tmp:/sbin/nologin\n",
    "./etc/group": "root:x:0:\nvolplane:x:65532:\n",
    "./etc/nsswitch.conf": "hosts: files dns\n",
}


LINKS: Final = {"./usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt", "./usr/lib/ssl/certs": "/etc/ssl/certs"}
"""Where OpenSSL looks for certificates; in Debian they come with its command, which the image has not."""


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """One line of the lock."""

    name: str
    version: str
    sha256: str


def read_lock() -> list[DebianPackage]:
    """What the image is made of."""
    lines = (line.split() for line in LOCK.read_text("utf-8").splitlines() if not line.startswith("#"))
    return [DebianPackage(name, version, sha256) for name, version, sha256 in lines]


def write_lock(packages: Iterable[DebianPackage]) -> None:
    """Write deploy/image/debian.txt."""
    lines = (f"{package.name} {package.version} {package.sha256}\n" for package in packages)
    LOCK.write_text(HEAD + "".join(lines), "utf-8")


def newest(names: Iterable[str]) -> list[DebianPackage]:
    """The versions that the package index has now; `apt-get update` brings it up to date. Raises ValueError."""
    found = []
    for name in names:
        shown = _run("apt-cache", "show", "--no-all-versions", name)
        fields = dict(line.split(": ", 1) for line in shown.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Architecture") not in ("amd64", "all"):
            raise ValueError(f"{name} is not to be had for amd64 here, the architecture of the image")
        found.append(DebianPackage(name, fields["Version"], fields["SHA256"]))
    return found


def fetch(packages: Iterable[DebianPackage], into: Path) -> list[Path]:
    """The files of the packages, in their order. Raises ValueError for one that is not what the lock says."""
    into.mkdir(parents=True, exist_ok=True)
    kept = []
    for package in packages:
        wanted = into / f"{package.name}_{package.version.replace(':', '%3a')}.deb"
        if not wanted.is_file():
            try:
                _run("apt-get", "download", "-qq", f"{package.name}={package.version}", cwd=into)
            except subprocess.CalledProcessError:
                raise ValueError(
                    f"{package.name} {package.version} is not in the package index any more; "
                    "`python -m tools.image --lock` pins the newest versions"
                ) from None
            (fetched,) = into.glob(f"{package.name}_{package.version.replace(':', '%3a')}_*.deb")
            fetched.rename(wanted)
        if (digest := hashlib.sha256(wanted.read_bytes()).hexdigest()) != package.sha256:
            wanted.unlink()
            raise ValueError(f"{package.name} {package.version} has SHA-256 {digest}; the lock says {package.sha256}")
        kept.append(wanted)
    return kept


def root_archive(files: Iterable[Path], out: Path, epoch: int) -> None:
    """Write a tar of the unpacked packages: sorted, of one time, owned by root."""
    members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    certificates = b""
    for name, info, content in _unpacked(files):
        if name.startswith(CERTIFICATES) and info.isreg():
            certificates += content
        elif _kept(name):
            members[name] = info, content
    added = {name: text.encode() for name, text in ACCOUNTS.items()}
    added["./etc/ssl/certs/ca-certificates.crt"] = certificates
    for name, content in added.items():
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), 0o644
        members[name] = info, content
    for name, target in LINKS.items():
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
        members[name] = info, b""
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        for _, (info, content) in sorted(members.items()):
            info.mtime, info.uid, info.gid, info.uname, info.gname = epoch, 0, 0, "", ""
            info.pax_headers = {}
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)


def _kept(name: str) -> bool:
    if name.startswith("./usr/share/doc/"):
        return name.endswith(("/", "/copyright")) or name.count("/") == 4
    return not f"{name}/".startswith(DROPPED) and not name.startswith(DROPPED)


def _unpacked(files: Iterable[Path]) -> Iterator[tuple[str, tarfile.TarInfo, bytes]]:
    for file in files:
        packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(file)], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for info in archive:
                opened = archive.extractfile(info) if info.isreg() else None
                yield info.name, info, opened.read() if opened is not None else b""


def _run(*command: str, cwd: Path | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise ValueError(f"{command[0]} is not installed: the image is built on Debian")
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, env=environment).stdout
