"""The messages between kubelet and sandbox: the specification of a command, and reports about it."""

from __future__ import annotations

from typing import Literal

import msgspec

Stage = Literal["", "namespaces", "mounts", "command"]
"""What failed. "namespaces": this machine cannot run any sandbox."""


class Bind(msgspec.Struct, frozen=True, kw_only=True):
    """A file, directory or device of the host that the command sees at `target`.

    sub_path: a path below `source`, without symlinks on the way. make_sub_path: make directories, with the mode of
    `source`, if nothing is there.
    """

    source: str
    target: str
    read_only: bool = False
    sub_path: str = ""
    make_sub_path: bool = True


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One command and its environment. Paths are absolute.

    base: an empty directory of the host on which the new root is built (nothing remains there).
    hidden: directories and files of the host that are shown empty. scratch: whether /tmp and /dev/shm may be written.
    capabilities: names without `CAP_`, held within the command's own user namespace, and only by user 0.
    host_network: use this machine's network; without that the command has a loopback interface of its own, and nothing
    else. memory_bytes, processes: see `volplane_embedded.sandbox.limits`. tmp_bytes: size of /tmp; /dev/shm and /run
    have fixed ones.
    log: file that receives the output as `<time> stdout <F|P> <text>` lines, moved to `<log>.1` at `log_bytes`.
    result: file that receives the last report.
    """

    argv: list[str]
    env: dict[str, str]
    base: str
    log: str
    result: str
    cwd: str = "/"
    hostname: str = ""
    uid: int = 0
    gid: int = 0
    groups: list[int] = []
    capabilities: list[str] = []
    binds: list[Bind] = []
    hidden: list[str] = []
    scratch: bool = True
    host_network: bool = False
    memory_bytes: int = 2 * 2**30
    processes: int = 1024
    tmp_bytes: int = 256 * 2**20
    log_bytes: int = 10 * 1024 * 1024


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A report of the sandbox. Either `started` and then `exited`, or `failed` alone.

    pid: of the first process of the namespace, as the host counts; ticks: its start time in /proc/<pid>/stat.
    code: exit code as a shell would give it (128 + signal for a command ended by one).
    """

    event: Literal["started", "exited", "failed"]
    pid: int = 0
    ticks: int = 0
    stage: Stage = ""
    message: str = ""
    code: int = 0
    signal: int = 0
    began: float = 0.0
    """With `exited`: when the command started, in seconds since the epoch."""
    at: float = 0.0
    """Seconds since the epoch."""


class Exec(msgspec.Struct, frozen=True, kw_only=True):
    """One more command in a sandbox that runs; its streams come as descriptors. tty: they are one terminal."""

    argv: list[str]
    tty: bool = False


class ExecEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How such a command ended. message: why it could not be started."""

    code: int = 0
    message: str = ""


_EXEC = msgspec.json.Decoder(Exec)
_EXEC_END = msgspec.json.Decoder(ExecEnd)
_SPEC = msgspec.json.Decoder(Spec)
_REPORT = msgspec.json.Decoder(Report)


def encode(message: Spec | Report | Exec | ExecEnd) -> bytes:
    """Return one line of JSON, with its newline."""
    return msgspec.json.encode(message) + b"\n"


def decode_spec(line: bytes) -> Spec:
    return _SPEC.decode(line)


def decode_exec(line: bytes) -> Exec:
    return _EXEC.decode(line)


def decode_exec_end(line: bytes) -> ExecEnd:
    return _EXEC_END.decode(line)


def decode_report(line: bytes) -> Report:
    return _REPORT.decode(line)
