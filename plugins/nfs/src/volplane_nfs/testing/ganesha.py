"""A private NFS-Ganesha: started on loopback at a free port, with a D-Bus of its own, and stopped again.

Needs the Debian packages nfs-ganesha, nfs-ganesha-vfs, nfs-ganesha-mem and dbus, and root for FSAL_VFS. Nothing outside
of its directory is touched, and no rpcbind is used.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

START_SECONDS: Final = 20.0
_READ_SEARCH: Final = 2
"""CAP_DAC_READ_SEARCH: FSAL_VFS opens files by handle."""

_CONFIGURATION: Final = """\
NFS_CORE_PARAM {{ NFS_Port = {port}; Bind_addr = {host}; Protocols = 4; Enable_UDP = false; Enable_NLM = false;
                 Enable_RQUOTA = false; }}
NFSV4 {{ {grace} Lease_Lifetime = {lease}; RecoveryRoot = {directory}/recovery; Only_Numeric_Owners = true;
        Minor_Versions = {minors}; }}
NFS_KRB5 {{ Active_krb5 = false; }}
EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Protocols = 4; Transports = TCP;
                  Attr_Expiration_Time = 0; }}
EXPORT {{ Export_Id = 1; Path = "{data}"; Pseudo = /vol; {export} FSAL {{ Name = {fsal}; }} }}
LOG {{ Default_Log_Level = EVENT; }}
%dir {directory}/exports.d
"""
_BUS: Final = """\
<busconfig><listen>unix:path={directory}/bus.sock</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy></busconfig>
"""


def why_no_ganesha(fsal: str = "VFS") -> str:
    """Return why no Ganesha can be started here; empty if it can."""
    for program, package in (("ganesha.nfsd", f"nfs-ganesha and nfs-ganesha-{fsal.lower()}"), ("dbus-daemon", "dbus")):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian package {package})"
    if fsal == "VFS" and not _may_open_by_handle():
        return "FSAL_VFS needs root with CAP_DAC_READ_SEARCH"
    return ""


def _may_open_by_handle() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _READ_SEARCH & 1)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class GaneshaServer:
    """A server whose export /vol is `<directory>/data`. directory: on ext4, xfs or tmpfs, not on overlayfs.

    grace: seconds of its grace period, 0 = none. minors: versions 4.x that it speaks. export: more of the EXPORT block.
    data: what is exported, if not `<directory>/data`. host: the address that it listens on.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fsal: Literal["VFS", "MEM"] = "VFS",
        grace: int = 0,
        lease: int = 10,
        minors: str = "0,1,2",
        export: str = "",
        data: Path | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.directory = directory
        self.data = data or directory / "data"
        self.exports = directory / "exports.d"
        self.host = host
        self.port = _free_port()
        self.bus = f"unix:path={directory}/bus.sock"
        self._processes: list[subprocess.Popen[bytes]] = []
        for each in (self.data, self.exports, directory / "recovery"):
            each.mkdir(parents=True, exist_ok=True)
        period = f"Graceless = false; Grace_Period = {grace};" if grace else "Graceless = true;"
        self._text = _CONFIGURATION.format(
            port=self.port,
            host=host,
            directory=directory,
            data=self.data,
            fsal=fsal,
            grace=period,
            lease=lease,
            minors=minors,
            export=export,
        )

    @property
    def share(self) -> str:
        """Return the share as in the driver's option `shares`."""
        return f"nfs://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/vol"

    @property
    def log(self) -> str:
        with suppress(OSError):
            return (self.directory / "ganesha.log").read_text(errors="replace")
        return ""

    def __enter__(self) -> Self:
        (self.directory / "bus.conf").write_text(_BUS.format(directory=self.directory))
        (self.directory / "ganesha.conf").write_text(self._text)
        self._run("dbus-daemon", f"--config-file={self.directory}/bus.conf", "--nofork", "--nopidfile")
        self._until((self.directory / "bus.sock").exists)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            _end(process)
        self._processes.clear()

    def start(self) -> None:
        """Start the server and wait until it answers. Raises RuntimeError with its log."""
        self._run(
            "ganesha.nfsd",
            "-F",
            "-f",
            f"{self.directory}/ganesha.conf",
            "-L",
            f"{self.directory}/ganesha.log",
            "-p",
            f"{self.directory}/ganesha.pid",
        )
        self._until(self._answers)

    def stop(self, *, kill: bool = False) -> None:
        """Stop the server; its bus stays. kill: as by a crash."""
        process = self._processes.pop()
        if kill:
            process.send_signal(signal.SIGKILL)
        _end(process)

    def restart(self, *, kill: bool = False) -> None:
        self.stop(kill=kill)
        self.start()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """Return the running server."""
        return self._processes[-1]

    def _run(self, program: str, *arguments: str) -> None:
        found = shutil.which(program)
        if found is None:
            raise RuntimeError(why_no_ganesha())
        environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": self.bus}
        process = subprocess.Popen(  # noqa: S603 - a program of this machine
            [found, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._processes.append(process)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection((self.host, self.port), timeout=1.0):
            return True
        return False

    def _until(self, reached: Callable[[], bool]) -> None:
        end = time.monotonic() + START_SECONDS
        while not reached():
            process = self._processes[-1]
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(
                    f"{process.args!r} did not start (exit code {process.returncode}):\n{self.log[-2000:]}"
                )
            time.sleep(0.01)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
