"""The system calls that Python 3.11 does not offer: namespaces, mounts, capabilities. Linux 5.12 or newer.

Every function raises OSError, its filename saying what was attempted on.
Source: the manual pages of section 2; numbers from the kernel's uapi headers.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from typing import Final

NEW_MOUNTS: Final = 0x00020000
NEW_CGROUP: Final = 0x02000000
NEW_UTS: Final = 0x04000000
NEW_IPC: Final = 0x08000000
NEW_USER: Final = 0x10000000
NEW_PIDS: Final = 0x20000000
NEW_NETWORK: Final = 0x40000000

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000

AT_RECURSIVE: Final = 0x8000
_AT_FDCWD: Final = -100
_MNT_DETACH: Final = 0x2
_MOUNT_ATTR_RDONLY: Final = 0x1
_MOUNT_ATTR_NOSUID: Final = 0x2
_MOUNT_ATTR_NODEV: Final = 0x4
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_IN_ROOT: Final = 0x10
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAPABILITY_VERSION_3: Final = 0x20080522
_SECCOMP_MODE_FILTER: Final = 2
_SIGKILL: Final = 9
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1

_SYS_OPENAT2: Final = 437
_SYS_MOUNT_SETATTR: Final = 442
_SYS_PIVOT_ROOT: Final = {"x86_64": 155, "i686": 217, "armv7l": 218, "ppc64le": 203, "s390x": 217}
"""By machine; 41 on those with the generic table (aarch64, riscv64, loongarch64)."""

CAPABILITIES: Final = {
    name: number
    for number, name in enumerate(
        (  # noqa: SIM905
            "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
            "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT "
            "SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE "
            "AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ "
            "PERFMON BPF CHECKPOINT_RESTORE"
        ).split()
    )
}
"""Names without `CAP_`, and their numbers."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _MountAttr(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd"))


class _OpenHow(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("flags", "mode", "resolve"))


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable"))


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def _syscall(number: int, what: str, *arguments: object) -> int:
    return _checked(int(_libc.syscall(ctypes.c_long(number), *arguments)), what)


def unshare(flags: int) -> None:
    """Move the calling process (its children, for process ids) into new namespaces."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "namespaces")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount, bind or change a mount; arguments as in the manual page."""
    arguments = [text.encode() if text is not None else None for text in (source, target, kind)]
    options = data.encode() if data is not None else None
    _checked(_libc.mount(*arguments, ctypes.c_ulong(flags), options), target)


def unmount_detached(path: str) -> None:
    """Take a mount tree out of sight at once; it ends when its last user does."""
    _checked(_libc.umount2(path.encode(), ctypes.c_int(_MNT_DETACH)), path)


def pivot_root(new: str, old: str) -> None:
    """Make the mount `new` the root of the namespace and put the former root at `old`."""
    number = _SYS_PIVOT_ROOT.get(os.uname().machine, 41)
    _syscall(number, new, new.encode(), old.encode())


def restrict_mount(path: str, *, read_only: bool = True, devices: bool = False, recursive: bool = False) -> None:
    """Take rights from the mount at `path` (and all below it).

    No program there gains anything by its set-user-id bit, no device there can be opened unless `devices`, and nothing
    can be written if `read_only`.
    """
    taken = _MOUNT_ATTR_NOSUID | (_MOUNT_ATTR_RDONLY if read_only else 0) | (0 if devices else _MOUNT_ATTR_NODEV)
    attributes = _MountAttr(taken, 0, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _syscall(
        _SYS_MOUNT_SETATTR,
        path,
        ctypes.c_int(_AT_FDCWD),
        path.encode(),
        ctypes.c_uint(flags),
        ctypes.byref(attributes),
        size,
    )


def open_in_root(root: int, path: str) -> int:
    """Return a descriptor (O_PATH) of `path` below the directory `root`: no symlink leads out of it."""
    how = _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return _syscall(_SYS_OPENAT2, path, ctypes.c_int(root), path.encode(), ctypes.byref(how), size)


def _prctl(option: int, argument: int) -> None:
    zero = ctypes.c_ulong(0)
    result = _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(argument), zero, zero, zero)
    _checked(result, f"prctl {option}")


def die_with_parent() -> None:
    """Be killed when the process that forked this one ends."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def forbid_inspection() -> None:
    """Keep this process's files and memory from others of the same user."""
    _prctl(_PR_SET_DUMPABLE, 0)


def forbid_new_privileges() -> None:
    """Let no program started from here on gain anything by a set-user-id bit or file capabilities."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install_filter(length: int, steps: int) -> None:
    """Filter system calls from here on. steps: address of so many `struct sock_filter`."""
    program = _FilterProgram(length, steps)
    zero = ctypes.c_ulong(0)
    result = _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program), zero, zero)
    _checked(result, "seccomp")


def bring_up_loopback() -> None:
    """Make 127.0.0.1 of a new network namespace work."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = bytearray(struct.pack("16sh22x", b"lo", 0))
        fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("h", request, 16)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def limit_capabilities(kept: set[int]) -> None:
    """Let no program started from here on hold other capabilities than these."""
    for number in range(64):
        if number in kept:
            continue
        try:
            _prctl(_PR_CAPBSET_DROP, number)
        except OSError as failure:
            if failure.errno != errno.EINVAL:
                raise
            return  # beyond the last one that this kernel knows


def hold_capabilities(held: set[int]) -> None:
    """Hold exactly these, permitted and effective; none is inheritable."""
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)()
    for word in range(2):
        mask = sum(1 << (number % 32) for number in held if number // 32 == word)
        data[word] = _CapData(mask, mask, 0)
    _checked(_libc.capset(ctypes.byref(header), data), "capabilities")
