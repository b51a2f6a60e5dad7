"""The first process (pid 1) of a sandbox: builds the root, starts the command, forwards signals, reaps orphans."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from volplane_embedded.sandbox import libc
from volplane_embedded.sandbox.credentials import assume, forbid_user_namespaces
from volplane_embedded.sandbox.limits import limit_process, limit_process_ids
from volplane_embedded.sandbox.rootfs import MountFailure, build
from volplane_embedded.sandbox.spec import Spec, Stage

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WAITED: Final = (*FORWARDED, signal.SIGCHLD)


class InitMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to the monitor: the command runs; or it cannot be started, with the reason; or it ended with a
    status.
    """

    running: bool = False
    stage: Stage = ""
    message: str = ""
    status: int | None = None


_DECODER = msgspec.json.Decoder(InitMessage)


def decode_messages(text: bytes) -> list[InitMessage]:
    return [_DECODER.decode(line) for line in text.splitlines()]


class _MessagePipe:
    def __init__(self, fd: int) -> None:
        self.fd = fd

    def send(self, message: InitMessage) -> None:
        os.write(self.fd, msgspec.json.encode(message) + b"\n")

    def end(self, stage: Stage, message: str) -> NoReturn:
        self.send(InitMessage(stage=stage, message=message))
        os._exit(1)


def run(spec: Spec, *, output: int, messages: int) -> NoReturn:
    """Run the command and exit when it does. output: its stdout and stderr. messages: the pipe to the monitor."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    os.umask(0o022)
    pipe = _MessagePipe(messages)
    libc.die_with_parent()
    if _is_orphan(messages):
        os._exit(1)
    try:
        libc.forbid_inspection()
        libc.unshare(libc.NEW_MOUNTS | libc.NEW_CGROUP)
        forbid_user_namespaces()
        limit_process_ids(spec)
        if not spec.host_network:
            libc.bring_up_loopback()
        socket.sethostname(spec.hostname or "localhost")
        build(spec)
    except MountFailure as failure:
        pipe.end("mounts", str(failure))
    except OSError as failure:
        pipe.end("namespaces", f"{failure.filename or 'root'}: {failure.strerror}")
    _close_others({output, messages})
    command = _start(spec, output, pipe)
    os.close(output)
    pipe.send(InitMessage(running=True))
    _reap(command, pipe)


def _is_orphan(messages: int) -> bool:
    """Tell whether the monitor ended before `die_with_parent` was in effect."""
    poll = select.poll()
    poll.register(messages, 0)
    return bool(poll.poll(0))


def _close_others(kept: set[int]) -> None:
    """Close all other descriptors: some lead to the host's tree."""
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd not in kept and fd > 2:
            with contextlib.suppress(OSError):  # the one that listed the directory is closed already
                os.close(fd)


def _start(spec: Spec, output: int, pipe: _MessagePipe) -> int:
    failed, failed_end = os.pipe()
    command = os.fork()
    if command == 0:
        _execute(spec, output, failed_end)
    os.close(failed_end)
    message = os.read(failed, 4096).decode()
    os.close(failed)
    if message:
        pipe.end("command", message)
    return command


def _execute(spec: Spec, output: int, failed: int) -> NoReturn:
    """Execute the command. `failed`, close-on-exec, receives the error if that fails."""
    what = spec.cwd
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        limit_process(spec)
        assume(spec)
        os.chdir(spec.cwd)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # Python ignores the first two, and that would be inherited
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(0o022)
        what = spec.argv[0]
        os.execvpe(spec.argv[0], spec.argv, spec.env)  # noqa: S606 - the command is the pod's
    except OSError as failure:
        os.write(failed, f"{what}: {failure.strerror}".encode())
    os._exit(127)


def _reap(command: int, pipe: _MessagePipe) -> NoReturn:
    """Forward signals and reap children until the command ends; the kernel then kills the rest of the namespace."""
    while True:
        number = signal.sigwait(_WAITED)
        if number != signal.SIGCHLD:
            os.kill(command, number)
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == command:
                pipe.send(InitMessage(status=status))
                os._exit(0)
