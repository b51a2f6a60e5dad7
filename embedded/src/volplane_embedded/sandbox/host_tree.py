"""What a sandboxed command sees of the host's file system: programs, libraries, and the part of /etc that they read.

An allow-list: everything else (homes, data, secrets, sockets, other volumes) is not there at all. What is shown is
read-only, without devices and without set-user-id programs.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from volplane_embedded.sandbox import libc

OLD: Final = Path("/old")
"""Where the host's tree is while the new root is built."""
_PROGRAMS: Final = (
    "bin",
    "gnu",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "nix",
    "sbin",
    "usr",
)
"""Top-level directories, or links, that are shown whole. /nix and /gnu are the stores of NixOS and Guix."""
_SETTINGS: Final = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "gai.conf",
    "group",
    "host.conf",
    "hostname",
    "hosts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.conf",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki/ca-trust",
    "profile",
    "protocols",
    "python3",
    "resolv.conf",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
"""Of /etc. Neither passwords nor private keys are among them."""
_EMPTY: Final = {"home": 0o755, "mnt": 0o755, "opt": 0o755, "root": 0o700, "srv": 0o755, "sys": 0o555, "var": 0o755}
"""Directories that programs expect."""
_MASKED: Final = ("kcore", "key-users", "keys", "sched_debug", "sysrq-trigger", "timer_list")
_MASKED_DIRECTORIES: Final = ("acpi", "scsi")


def show_host(root: Path) -> None:
    """Fill `root`, an empty file system, with what the command may see of the tree at `OLD`."""
    for name in _PROGRAMS:
        _show(OLD / name, root / name)
    for name in _SETTINGS:
        _show(OLD / "etc" / name, root / "etc" / name)
    for name, mode in _EMPTY.items():
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(mode)
    for name in ("cache", "lib", "log"):
        (root / "var" / name).mkdir()
    (root / "var" / "tmp").symlink_to("../tmp")
    (root / "var" / "run").symlink_to("../run")


def _show(source: Path, target: Path) -> None:
    try:
        mode = source.lstat().st_mode
    except OSError:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(mode):
        link = os.readlink(source)  # noqa: PTH115 -- a Path would drop a leading "./"
        if _is_shown(os.path.join("/", source.relative_to(OLD).parent, link)):  # noqa: PTH118 -- as the link is read
            target.symlink_to(link)
            return
        source = OLD / os.path.realpath(OLD / link.lstrip("/")).removeprefix(f"{OLD}/").lstrip("/")
        mode = source.stat().st_mode if source.exists() else 0
    if stat.S_ISDIR(mode):
        target.mkdir()
    elif stat.S_ISREG(mode):
        target.touch()
    else:
        return
    # A directory that cannot be bound (another user's FUSE mount) stays empty.
    with contextlib.suppress(PermissionError):
        libc.mount(str(source), str(target), None, libc.MS_BIND | libc.MS_REC)
        libc.restrict_mount(str(target), recursive=True)


def _is_shown(path: str) -> bool:
    """Tell whether a link to this path of the host leads to something that the command sees too."""
    parts = Path(os.path.normpath(path)).parts[1:]
    if not parts:
        return False
    if parts[0] in _PROGRAMS:
        return True
    below = "/".join(parts[1:])
    return parts[0] == "etc" and any(below == name or below.startswith(f"{name}/") for name in _SETTINGS)


def mask_proc(proc: Path) -> None:
    """Cover what /proc tells of, or does to, the whole machine."""
    for name in _MASKED:
        if (proc / name).exists():
            libc.mount(str(OLD / "dev/null"), str(proc / name), None, libc.MS_BIND)
            libc.restrict_mount(str(proc / name), devices=True)
    for name in _MASKED_DIRECTORIES:
        if (proc / name).is_dir():
            libc.mount("tmpfs", str(proc / name), "tmpfs", libc.MS_NOSUID | libc.MS_NODEV | libc.MS_RDONLY, "size=4k")
