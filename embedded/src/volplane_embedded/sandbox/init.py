"""The first process (pid 1) of a sandbox: builds the root, starts the command, forwards signals, reaps orphans."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from volplane_embedded.sandbox import execution, libc
from volplane_embedded.sandbox.credentials import assume, forbid_user_namespaces
from volplane_embedded.sandbox.limits import limit_process, limit_process_ids
from volplane_embedded.sandbox.rootfs import MountFailure, build
from volplane_embedded.sandbox.spec import Spec, Stage

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WAITED: Final = (*FORWARDED, signal.SIGCHLD, signal.SIGIO)


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


def run(spec: Spec, *, output: int, messages: int, executions: socket.socket) -> NoReturn:
    """Run the command and exit when it does. output: its stdout and stderr. messages: the pipe to the monitor.
    executions: where the connections of further commands come from.
    """
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
    _close_others({output, messages, executions.fileno()})
    command = _start(spec, output, pipe)
    os.close(output)
    _signal_input(executions)
    pipe.send(InitMessage(running=True))
    _reap(spec, command, pipe, executions)


def _signal_input(executions: socket.socket) -> None:
    """Have SIGIO sent to this process when something arrives."""
    executions.setblocking(False)
    fcntl.fcntl(executions, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(executions, fcntl.F_SETFL, fcntl.fcntl(executions, fcntl.F_GETFL) | os.O_ASYNC)


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
    execute(spec, spec.argv, (os.open(os.devnull, os.O_RDONLY), output, output), failed, terminal=False)


def execute(spec: Spec, argv: Sequence[str], streams: Sequence[int], failed: int, *, terminal: bool) -> NoReturn:
    """Execute a command with the rights of the container. streams: stdin, stdout, stderr; terminal: they are one."""
    what = spec.cwd
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        limit_process(spec)
        assume(spec)
        os.chdir(spec.cwd)
        # What is ignored would stay so: by Python the first two, by what a shell starts in the background the last two.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(0o022)
        what = argv[0]
        os.execvpe(argv[0], list(argv), {**spec.env, **({"TERM": "xterm"} if terminal else {})})  # noqa: S606 - the pod's
    except OSError as failure:
        os.write(failed, f"{what}: {failure.strerror}".encode())
    os._exit(127)


def _begin_executions(spec: Spec, executions: socket.socket) -> None:
    """Fork a process for each further command that was asked for."""
    with contextlib.suppress(BlockingIOError, ConnectionError):
        while True:
            message, descriptors, _, _ = socket.recv_fds(executions, 64, 8)
            for descriptor in descriptors:
                if os.fork() == 0:
                    executions.close()
                    execution.serve(spec, socket.socket(fileno=descriptor), execute)
                os.close(descriptor)
            if not message:
                return


def _reap(spec: Spec, command: int, pipe: _MessagePipe, executions: socket.socket) -> NoReturn:
    """Forward signals and reap children until the command ends; the kernel then kills the rest of the namespace."""
    while True:
        _begin_executions(spec, executions)
        number = signal.sigwait(_WAITED)
        if number == signal.SIGIO:
            continue
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
