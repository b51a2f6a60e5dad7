"""Who a sandboxed command is: its user namespace, ids and capabilities."""

from __future__ import annotations

import os
from pathlib import Path

from volplane_embedded.sandbox import libc
from volplane_embedded.sandbox.spec import Spec

__all__ = ["assume", "enter_user_namespace"]


def enter_user_namespace(spec: Spec, flags: int) -> None:
    """Move into a new user namespace, and the others of `flags`.

    With the right to (as root): every id of this namespace stands for itself, so that files written to volumes have
    the owner asked for. Without: the one id we have stands for the one the command asks for.
    Raises OSError where the kernel or its configuration forbids it.
    """
    us = os.getpid()
    entered, tell = os.pipe()
    answer, told = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        os.close(tell)
        os._exit(_map_ids(us, spec, entered, told))
    os.close(entered)
    os.close(told)
    try:
        libc.unshare(libc.NEW_USER | flags)
        os.write(tell, b"\n")
        failure = os.read(answer, 4096).decode()
    finally:
        os.close(tell)
        os.close(answer)
        os.waitpid(mapper, 0)
    if failure:
        raise PermissionError(failure)


def _map_ids(target: int, spec: Spec, entered: int, told: int) -> int:
    """In a process that stayed outside: a namespace's maps are written from its parent."""
    if not os.read(entered, 1):
        return 1
    try:
        _write_maps(Path(f"/proc/{target}"), spec)
    except OSError as failure:
        os.write(told, f"writing the id maps: {failure.strerror}".encode())
        return 1
    return 0


def _write_maps(process: Path, spec: Spec) -> None:
    try:
        (process / "uid_map").write_text(_every_id("uid_map"))
        (process / "gid_map").write_text(_every_id("gid_map"))
    except PermissionError:
        (process / "setgroups").write_text("deny")
        (process / "uid_map").write_text(f"{spec.uid} {os.geteuid()} 1")
        (process / "gid_map").write_text(f"{spec.gid} {os.getegid()} 1")


def _every_id(name: str) -> str:
    """Each id that exists here, mapped to itself."""
    lines = (line.split() for line in Path("/proc/self", name).read_text().splitlines())
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in lines)


def assume(spec: Spec) -> None:
    """Become the user the command runs as, with the capabilities it may have and never more."""
    allowed = {libc.CAPABILITIES[name] for name in spec.capabilities}
    libc.limit_capabilities(allowed)
    if Path("/proc/self/setgroups").read_text().strip() == "allow":
        os.setgroups(spec.groups)
    os.setresgid(spec.gid, spec.gid, spec.gid)
    os.setresuid(spec.uid, spec.uid, spec.uid)
    libc.hold_capabilities(allowed if spec.uid == 0 else set())
    libc.forbid_new_privileges()
