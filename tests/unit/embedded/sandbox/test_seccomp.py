"""The filter of system calls, run on paper."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from volplane_embedded.sandbox.seccomp import _CALLS, _MACHINES, _NONE, _Instruction, _program

ALLOWED = 0


def judged(machine: str, call: str | int, *arguments: int, architecture: int | None = None) -> int:
    """The error that the call fails with, 0 if it is made."""
    known = _MACHINES[machine]
    number = _CALLS[call][known.column] if isinstance(call, str) else call
    return _run(list(_program(known)), number, architecture or known.architecture, arguments)


def _run(program: Sequence[_Instruction], number: int, architecture: int, arguments: Sequence[int]) -> int:
    """Interpret classic BPF over struct seccomp_data."""
    data = {0: number, 4: architecture, **{16 + 8 * index: value & 0xFFFFFFFF for index, value in enumerate(arguments)}}
    accumulator, at = 0, 0
    while True:
        step = program[at]
        at += 1
        match step.code:
            case 0x20:
                accumulator = data.get(step.value, 0)
            case 0x06:
                return step.value & 0xFFFF if step.value & 0x7FFF0000 == 0x00050000 else ALLOWED
            case 0x15:
                at += step.yes if accumulator == step.value else step.no
            case 0x35:
                at += step.yes if accumulator >= step.value else step.no
            case 0x45:
                at += step.yes if accumulator & step.value else step.no
            case code:
                raise AssertionError(code)


@pytest.fixture(params=sorted(_MACHINES))
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def has(machine: str, call: str) -> bool:
    return _CALLS[call][_MACHINES[machine].column] != _NONE


@pytest.mark.parametrize("call", ["unshare", "setns", "mount", "umount2", "pivot_root", "keyctl", "bpf", "move_mount"])
def test_what_no_pod_needs_is_refused(machine: str, call: str) -> None:
    assert judged(machine, call) == errno.EPERM


@pytest.mark.parametrize("call", ["clone3", "openat2", "io_uring_setup"])
def test_what_cannot_be_looked_into_does_not_exist(machine: str, call: str) -> None:
    """C libraries then use the older call."""
    assert judged(machine, call) == errno.ENOSYS


def test_processes_and_threads_are_made_and_namespaces_are_not(machine: str) -> None:
    threads = 0x3D0F00
    assert judged(machine, "clone", threads) == ALLOWED
    assert judged(machine, "clone", 17) == ALLOWED
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert judged(machine, "clone", 17 | namespace) == errno.EPERM


@pytest.mark.parametrize(
    ("call", "place"), [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("creat", 1)]
)
@pytest.mark.parametrize(("mode", "allowed"), [(0o755, True), (0o1777, True), (0o4755, False), (0o2755, False)])
def test_a_file_gets_no_set_id_bit(machine: str, call: str, place: int, mode: int, allowed: bool) -> None:
    if has(machine, call):
        assert (judged(machine, call, *[0] * place, mode) == ALLOWED) is allowed


def test_the_mode_of_an_open_counts_only_where_it_makes_a_file(machine: str) -> None:
    for call, first in (("open", ()), ("openat", (0,))):
        if has(machine, call):
            assert judged(machine, call, *first, 0, 0o1, 0o6755) == ALLOWED
            assert judged(machine, call, *first, 0, 0o101, 0o644) == ALLOWED
            assert judged(machine, call, *first, 0, 0o101, 0o4755) == errno.EPERM
            assert judged(machine, call, *first, 0, 0o20200001, 0o4755) == errno.EPERM


def test_sockets_are_made_but_not_to_the_host_of_a_virtual_machine(machine: str) -> None:
    assert judged(machine, "socket", 1) == ALLOWED
    assert judged(machine, "socket", 40) == errno.EPERM


def test_a_terminal_is_set_but_nothing_put_into_its_input(machine: str) -> None:
    assert judged(machine, "ioctl", 0, 0x5413) == ALLOWED
    assert judged(machine, "ioctl", 0, 0x5412) == errno.EPERM


def test_calls_of_another_architecture_do_not_exist(machine: str) -> None:
    assert judged(machine, 39, architecture=0x40000003) == errno.ENOSYS
    assert judged(machine, 0x40000000 + 39) == errno.ENOSYS
    assert judged(machine, 39 if machine == "x86_64" else 172) == ALLOWED, "getpid"
