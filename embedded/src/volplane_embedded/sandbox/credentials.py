"""The credentials of a sandboxed command: user namespace, ids and capabilities (credentials(7), user_namespaces(7))."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from volplane_embedded.sandbox import libc
from volplane_embedded.sandbox.seccomp import filter_system_calls
from volplane_embedded.sandbox.spec import Spec


def enter_user_namespace(spec: Spec, flags: int) -> None:
    """Move into a new user namespace, and into the others of `flags`.

    As root every id is mapped to itself, so that files in volumes get the owner that the pod asks for. As another user
    only the own id can be mapped; it is mapped to the id that the command asks for.
    Raises OSError if the kernel or its configuration forbids it.
    """
    target = os.getpid()
    entered, entered_end = os.pipe()
    failed, failed_end = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        os.close(entered_end)
        os._exit(_map_ids(target, spec, entered, failed_end))
    os.close(entered)
    os.close(failed_end)
    try:
        libc.unshare(libc.NEW_USER | flags)
        os.write(entered_end, b"\n")
        failure = os.read(failed, 4096).decode()
    finally:
        os.close(entered_end)
        os.close(failed)
        os.waitpid(mapper, 0)
    if failure:
        raise PermissionError(failure)


def _map_ids(target: int, spec: Spec, entered: int, failed: int) -> int:
    """Write the maps from a process in the parent namespace. Returns the exit code of that process."""
    if not os.read(entered, 1):
        return 1
    try:
        _write_maps(Path(f"/proc/{target}"), spec)
    except OSError as failure:
        os.write(failed, f"writing the id maps: {failure.strerror}".encode())
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
    """Return the map of every id that exists in this namespace to itself."""
    lines = (line.split() for line in Path("/proc/self", name).read_text().splitlines())
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in lines)


def forbid_user_namespaces() -> None:
    """Let no further user namespace be made within this one. The filter of system calls says the same."""
    with contextlib.suppress(OSError):  # inside a container /proc/sys may be read-only
        Path("/proc/sys/user/max_user_namespaces").write_text("0")


def assume(spec: Spec) -> None:
    """Take the ids and capabilities of `spec`, with no way to gain more, and the filter of system calls."""
    allowed = {libc.CAPABILITIES[name] for name in spec.capabilities}
    libc.limit_capabilities(allowed)
    if Path("/proc/self/setgroups").read_text().strip() == "allow":
        os.setgroups(spec.groups)
    os.setresgid(spec.gid, spec.gid, spec.gid)
    os.setresuid(spec.uid, spec.uid, spec.uid)
    libc.hold_capabilities(allowed if spec.uid == 0 else set())
    libc.forbid_new_privileges()
    filter_system_calls()
