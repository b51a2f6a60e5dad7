"""The process outside of a sandbox: starts it, writes its log, sends reports, and kills it if the kubelet goes away."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Final, NoReturn

from volplane_embedded.sandbox import init, libc
from volplane_embedded.sandbox.credentials import enter_user_namespace
from volplane_embedded.sandbox.limits import Cgroup
from volplane_embedded.sandbox.log_writer import ContainerLog
from volplane_embedded.sandbox.spec import Report, Spec, Stage, decode_spec, encode

TERMINATE: Final = b"T"
"""Order of the kubelet: send SIGTERM to the command. The end of the connection means KILL."""
KILL: Final = b"K"
EXECUTE: Final = b"E"
"""With one descriptor: the connection of one more command, see `volplane_embedded.sandbox.execution`."""

_NAMESPACES: Final = libc.NEW_PIDS | libc.NEW_IPC | libc.NEW_UTS
"""And a network one, unless the command uses the host's; the rest is made by the first process within."""
_SWITCHES: Final = (
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces is 0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns is 1",
    ),
)


def run(control: socket.socket) -> NoReturn:
    """Serve one command: read its Spec from `control`, then orders; write Reports."""
    try:
        os.setsid()
        line, orders = _first_line(control)
        _Monitor(decode_spec(line), control).run(orders)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the kubelet went away; the sandbox dies with this process
    os._exit(0)


def _first_line(control: socket.socket) -> tuple[bytes, bytes]:
    """Return the line with the spec, and the orders that were received with it."""
    received = bytearray()
    while b"\n" not in received:
        chunk = control.recv(65536)
        if not chunk:
            raise EOFError
        received += chunk
    line, _, orders = bytes(received).partition(b"\n")
    return line, orders


class _Monitor:
    def __init__(self, spec: Spec, control: socket.socket) -> None:
        self._spec = spec
        self._control = control
        self._pid = 0
        self._euid = os.geteuid()
        self._started = 0.0
        self._failed = False
        self._status: int | None = None
        self._cgroup: Cgroup | None = None
        self._executions, self._executions_end = socket.socketpair()

    def run(self, orders: bytes) -> None:
        """Start the command and follow it to its end. orders: those received together with the spec."""
        try:
            log = ContainerLog(Path(self._spec.log), self._spec.log_bytes)
            output, output_end = os.pipe()
            messages, messages_end = os.pipe()
        except OSError as failure:
            self._fail("mounts", f"the log cannot be opened: {failure.filename or ''}: {failure.strerror}")
            return
        try:
            network = 0 if self._spec.host_network else libc.NEW_NETWORK
            self._cgroup = Cgroup.make(self._spec)
            enter_user_namespace(self._spec, _NAMESPACES | network)
            self._pid = self._fork()
        except OSError as failure:
            self._remove_cgroup()
            self._fail("namespaces", f"{failure.filename or ''}: {failure.strerror or failure}".lstrip(": "))
            return
        if self._pid == 0:
            os.close(output)
            os.close(messages)
            self._control.close()
            self._executions.close()
            init.run(self._spec, output=output_end, messages=messages_end, executions=self._executions_end)
        self._executions_end.close()
        os.close(output_end)
        os.close(messages_end)
        if orders:
            self._carry_out(orders)
        self._follow(output, messages, log)

    def _fork(self) -> int:
        """Fork the first process of the sandbox, in the command's cgroup if it has one."""
        if self._cgroup is None:
            return os.fork()
        self._cgroup.enter()
        pid = os.fork()
        if pid:
            self._cgroup.leave()
        return pid

    def _remove_cgroup(self) -> None:
        if self._cgroup is not None:
            self._cgroup.remove()

    def _follow(self, output: int, messages: int, log: ContainerLog) -> None:
        """Serve pipes and orders until the sandbox has ended, which closes both pipes."""
        poll = select.poll()
        control = self._control.fileno()
        for fd in (output, messages, control):
            poll.register(fd, select.POLLIN)
        open_pipes = {output, messages}
        received = b""
        while open_pipes:
            for fd, _ in poll.poll():
                if fd == control:
                    if not self._receive_orders():
                        poll.unregister(control)
                    continue
                chunk = os.read(fd, 65536)
                if not chunk:
                    poll.unregister(fd)
                    open_pipes.discard(fd)
                elif fd == output:
                    log.write(chunk)
                else:
                    received = self._receive(received + chunk)
        log.close()
        self._finish()

    def _receive_orders(self) -> bool:
        try:
            orders, descriptors, _, _ = socket.recv_fds(self._control, 64, 8)
        except ConnectionResetError:
            orders, descriptors = b"", []
        for descriptor in descriptors:
            with contextlib.suppress(OSError):  # the sandbox has ended: the other end sees the connection close
                socket.send_fds(self._executions, [EXECUTE], [descriptor])
            os.close(descriptor)
        self._carry_out(orders or KILL)
        return bool(orders)

    def _carry_out(self, orders: bytes) -> None:
        if KILL in orders or TERMINATE in orders:
            os.kill(self._pid, signal.SIGKILL if KILL in orders else signal.SIGTERM)

    def _receive(self, received: bytes) -> bytes:
        *lines, rest = received.split(b"\n")
        for message in init.decode_messages(b"\n".join(lines)):
            if message.running:
                self._started = time.time()
                self._send(Report(event="started", pid=self._pid, ticks=start_ticks(self._pid), at=self._started))
            elif message.status is not None:
                self._status = message.status
            else:
                self._fail(message.stage, message.message)
        return rest

    def _finish(self) -> None:
        _, first = os.waitpid(self._pid, 0)
        self._remove_cgroup()
        if self._failed:
            return
        if not self._started:
            self._fail("mounts", "the sandbox ended before the command started")
            return
        status = self._status if self._status is not None else first
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 128 + number if number else os.waitstatus_to_exitcode(status)
        self._send(Report(event="exited", code=code, signal=number, began=self._started, at=time.time()))

    def _fail(self, stage: Stage, message: str) -> None:
        self._failed = True
        if stage == "namespaces":
            message = (
                f"no sandbox can be had on this machine ({message}{_hint(self._euid)}); containers do not run "
                "without one"
            )
        self._send(Report(event="failed", stage=stage, message=message, at=time.time()))

    def _send(self, report: Report) -> None:
        line = encode(report)
        with contextlib.suppress(OSError):  # a full disk must not keep the report from the kubelet
            Path(self._spec.result).write_bytes(line)
        self._control.sendall(line)


def _hint(euid: int) -> str:
    """Return the kernel setting that forbids namespaces to this user, or ""."""
    for path, bad, hint in _SWITCHES:
        try:
            value = Path(path).read_text().strip()
        except OSError:
            continue
        if value == bad and (euid != 0 or path.endswith("max_user_namespaces")):
            return f"; {hint}"
    return ""


def start_ticks(pid: int) -> int:
    """Start time of a process (field 22 of /proc/<pid>/stat, proc(5)); with the pid it is unique."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[19])
