"""The first process of a sandbox's process namespace: builds the root, starts the command, buries its orphans."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from volplane_embedded.sandbox import libc
from volplane_embedded.sandbox.credentials import assume
from volplane_embedded.sandbox.rootfs import MountFailure, build
from volplane_embedded.sandbox.spec import Spec, Stage

__all__ = ["FORWARDED", "Word", "decode_words", "run"]

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WAITED: Final = (*FORWARDED, signal.SIGCHLD)


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the first process tells the monitor: the command runs; or it cannot, and why; or it ended with a status."""

    running: bool = False
    stage: Stage = ""
    message: str = ""
    status: int | None = None


_WORD = msgspec.json.Decoder(Word)


def decode_words(text: bytes) -> list[Word]:
    return [_WORD.decode(line) for line in text.splitlines()]


class _Voice:
    def __init__(self, fd: int) -> None:
        self.fd = fd

    def say(self, word: Word) -> None:
        os.write(self.fd, msgspec.json.encode(word) + b"\n")

    def end(self, stage: Stage, message: str) -> NoReturn:
        self.say(Word(stage=stage, message=message))
        os._exit(1)


def run(spec: Spec, *, output: int, words: int) -> NoReturn:
    """Run the command and exit when it does. output: its stdout and stderr; words: where the monitor listens."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    os.umask(0o022)
    voice = _Voice(words)
    libc.die_with_parent()
    if _unheard(words):
        os._exit(1)
    try:
        libc.forbid_inspection()
        libc.unshare(libc.NEW_MOUNTS)
        socket.sethostname(spec.hostname or "localhost")
        build(spec)
    except MountFailure as failure:
        voice.end("mounts", str(failure))
    except OSError as failure:
        voice.end("namespaces", f"{failure.filename or 'root'}: {failure.strerror}")
    _close_others({output, words})
    command = _start(spec, output, voice)
    os.close(output)
    voice.say(Word(running=True))
    _attend(command, voice)


def _unheard(words: int) -> bool:
    """Whether the monitor was gone before we asked to die with it."""
    poll = select.poll()
    poll.register(words, 0)
    return bool(poll.poll(0))


def _close_others(kept: set[int]) -> None:
    """The descriptors of the host's tree must not live on beside the command."""
    for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if fd not in kept and fd > 2:
            with contextlib.suppress(OSError):  # the one that listed the directory is closed already
                os.close(fd)


def _start(spec: Spec, output: int, voice: _Voice) -> int:
    failed, tell = os.pipe()
    command = os.fork()
    if command == 0:
        _become(spec, output, tell)
    os.close(tell)
    message = os.read(failed, 4096).decode()
    os.close(failed)
    if message:
        voice.end("command", message)
    return command


def _become(spec: Spec, output: int, tell: int) -> NoReturn:
    """Turn into the command. `tell` closes by itself when that succeeds."""
    what = spec.cwd
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        assume(spec)
        os.chdir(spec.cwd)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # Python ignores the first two, and that would be inherited
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(0o022)
        what = spec.argv[0]
        os.execvpe(spec.argv[0], spec.argv, spec.env)  # noqa: S606 - running what the pod says is the point
    except OSError as failure:
        os.write(tell, f"{what}: {failure.strerror}".encode())
    os._exit(127)


def _attend(command: int, voice: _Voice) -> NoReturn:
    """Pass signals on and reap, until the command ends; then everything here ends."""
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
                voice.say(Word(status=status))
                os._exit(0)
