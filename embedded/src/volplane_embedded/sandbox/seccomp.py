"""The system call filter of a sandboxed command: no namespaces, no mounts, no keys, no set-user-id files.

A program of classic BPF (seccomp(2)), for the machines of `_MACHINES`. A call that is not allowed fails with EPERM; one
whose arguments lie in memory, where a filter cannot look, with ENOSYS, upon which C libraries use the older call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from volplane_embedded.sandbox import libc

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

_OTHER_ABI: Final = 0x40000000
"""Numbers from here on belong to the x32 ABI of x86_64."""
_SET_ID: Final = stat.S_ISUID | stat.S_ISGID
_MAKES_FILE: Final = 0o100 | 0o20000000
"""O_CREAT and the bit of O_TMPFILE: without one of them the mode of an open means nothing."""
_NEW_NAMESPACES: Final = 0x7E020000
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put characters into the input of a terminal."""
_VSOCK: Final = 40
"""Address family of sockets to the host of a virtual machine, which no network namespace separates."""


class _Machine(NamedTuple):
    """architecture: AUDIT_ARCH_* of linux/audit.h. column: of `_CALLS`."""

    architecture: int
    column: int


_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 0),
    "aarch64": _Machine(0xC00000B7, 1),
    "riscv64": _Machine(0xC00000F3, 1),
}

_NONE: Final = -1
_CALLS: Final[dict[str, tuple[int, int]]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chmod": (90, _NONE),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "creat": (85, _NONE),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, _NONE),
    "iopl": (172, _NONE),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mknod": (133, _NONE),
    "mknodat": (259, 33),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open": (2, _NONE),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, _NONE),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
"""Numbers on x86_64 and in the generic table. Source: arch/x86/entry/syscalls/syscall_64.tbl, scripts/syscall.tbl."""

_UNREADABLE: Final = ("clone3", "openat2", "io_uring_enter", "io_uring_register", "io_uring_setup")
_MODES: Final = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
"""Which argument is the mode of a file."""
_OPENS: Final = {"open": 1, "openat": 2}
"""Which argument holds the flags; the mode follows."""


class _Instruction(NamedTuple):
    """struct sock_filter. yes, no: instructions to skip after a comparison."""

    code: int
    value: int
    yes: int = 0
    no: int = 0


def filter_system_calls() -> None:
    """Filter the calls of this process and of all that it starts; it must hold no_new_privs.

    Raises OSError if the kernel has no filters, or the numbers of this machine's calls are unknown.
    """
    name = os.uname().machine
    machine = _MACHINES.get(name)
    if machine is None:
        known = ", ".join(_MACHINES)
        raise OSError(errno.ENOSYS, f"system calls can be filtered on {known}, not on {name}", "seccomp")
    packed = [struct.pack("<HBBI", step.code, step.yes, step.no, step.value) for step in _program(machine)]
    steps = ctypes.create_string_buffer(b"".join(packed))
    libc.install_filter(len(packed), ctypes.addressof(steps))


def _program(machine: _Machine) -> Iterator[_Instruction]:
    yield _Instruction(_LOAD, 4)
    yield from _unless(_EQUAL, machine.architecture, _failing(errno.ENOSYS))
    yield _Instruction(_LOAD, 0)
    yield from _if(_AT_LEAST, _OTHER_ABI, _failing(errno.ENOSYS))
    for name, numbers in _CALLS.items():
        if numbers[machine.column] != _NONE:
            yield from _if(_EQUAL, numbers[machine.column], tuple(_rule(name)))
    yield _Instruction(_RETURN, _ALLOW)


def _rule(name: str) -> Iterator[_Instruction]:
    """Yield the filter for a call of this name, which ends the program."""
    refuse = _failing(errno.EPERM)
    if name in _UNREADABLE:
        yield from _failing(errno.ENOSYS)
    elif name in _MODES:
        yield _argument(_MODES[name])
        yield from _if(_ANY_BIT, _SET_ID, refuse)
    elif name in _OPENS:
        yield _argument(_OPENS[name])
        yield from _unless(_ANY_BIT, _MAKES_FILE, (_Instruction(_RETURN, _ALLOW),))
        yield _argument(_OPENS[name] + 1)
        yield from _if(_ANY_BIT, _SET_ID, refuse)
    elif name == "clone":
        yield _argument(0)
        yield from _if(_ANY_BIT, _NEW_NAMESPACES, refuse)
    elif name == "socket":
        yield _argument(0)
        yield from _if(_EQUAL, _VSOCK, refuse)
    elif name == "ioctl":
        yield _argument(1)
        for request in _TERMINAL_INPUT:
            yield from _if(_EQUAL, request, refuse)
    else:
        yield from refuse
    yield _Instruction(_RETURN, _ALLOW)


def _argument(number: int) -> _Instruction:
    """Load the lower half of an argument (struct seccomp_data, little endian)."""
    return _Instruction(_LOAD, 16 + 8 * number)


def _failing(code: int) -> tuple[_Instruction, ...]:
    return (_Instruction(_RETURN, _ERRNO | code),)


def _if(comparison: int, value: int, block: Sequence[_Instruction]) -> tuple[_Instruction, ...]:
    return (_Instruction(comparison, value, 0, len(block)), *block)


def _unless(comparison: int, value: int, block: Sequence[_Instruction]) -> tuple[_Instruction, ...]:
    return (_Instruction(comparison, value, len(block), 0), *block)
