"""What a hostile pod tries against the machine that it runs on."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node_cluster import why_no_sandbox
from integration.test_sandbox import run
from volplane_embedded.sandbox.limits import own_cgroup, why_no_cgroup
from volplane_embedded.sandbox.spec import Bind


@pytest.fixture(scope="module", autouse=True)
def _namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    if message := why_no_sandbox(tmp_path_factory.mktemp("probe")):
        pytest.skip(message)


def python(directory: Path, program: str, **fields: object) -> list[str]:
    """Run a Python program as the command; what it printed."""
    code = directory / "code"
    code.mkdir()
    (code / "attack.py").write_text(program)
    binds = [*fields.pop("binds", ()), Bind(source=str(code), target="/code")]  # type: ignore[misc]
    lines, _ = run(directory, "exec /usr/bin/env -u LC_ALL python3 /code/attack.py 2>&1", binds=binds, **fields)
    return lines


# --- namespaces and cgroups -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", ["-Ur", "-Urm", "-UrmC", "-m", "-n", "-C", "-p -f"])
def test_no_further_namespace_can_be_made(tmp_path: Path, flags: str) -> None:
    lines, [_, ended] = run(tmp_path, f"unshare {flags} echo nested 2>&1")
    assert "nested" not in lines
    assert ended.code != 0


FREEZE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(what, result):
    print(what, os.strerror(ctypes.get_errno()) if result else "DONE")
tried("unshare", libc.unshare(0x10000000 | 0x20000 | 0x02000000))
CLONE = 56 if os.uname().machine == "x86_64" else 220
tried("clone", libc.syscall(CLONE, 0x10000000 | 17, 0, 0, 0, 0) < 0)
os.makedirs("/tmp/cg", exist_ok=True)
tried("mount cgroup2", libc.mount(b"none", b"/tmp/cg", b"cgroup2", 0, None))
tried("mount cgroup", libc.mount(b"none", b"/tmp/cg", b"cgroup", 0, b"freezer"))
tried("mount tmpfs", libc.mount(b"none", b"/tmp/cg", b"tmpfs", 0, None))
tried("umount", libc.umount2(b"/proc", 2))
tried("remount", libc.mount(b"none", b"/", None, 0x20 | 0x1000, None))
found = [os.path.join(top, name) for top, _, names in os.walk("/sys") for name in names if name.startswith("cgroup.")]
print("cgroup files", found)
print("own cgroup", open("/proc/self/cgroup").read().split("0::")[-1].strip() or "/")
"""


@pytest.mark.parametrize("uid", [0, 1000])
def test_the_cgroup_of_the_host_can_be_neither_frozen_nor_killed(tmp_path: Path, uid: int) -> None:
    lines = python(tmp_path, FREEZE, uid=uid)
    said = dict(line.rsplit(" ", 1) for line in lines if line.endswith(("DONE",)))
    assert said == {}, lines
    assert "cgroup files []" in lines
    assert any(line.startswith("own cgroup /") for line in lines), lines
    if own_cgroup() not in ("", "/"):
        assert f"own cgroup {own_cgroup()}" not in lines, "the path of the host's cgroup is not shown"


def test_the_command_has_no_way_to_keys_or_kernel_programs(tmp_path: Path) -> None:
    program = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
for name, number in {"keyctl": 250 if x86 else 219, "bpf": 321 if x86 else 280, "perf": 298 if x86 else 241,
                     "userfaultfd": 323 if x86 else 282, "io_uring": 425, "open_by_handle_at": 304 if x86 else 265,
                     "x32 getpid": 0x40000000 + 39, "clone3": 435}.items():
    result = libc.syscall(number, 0, 0, 0, 0, 0)
    print(name, os.strerror(ctypes.get_errno()) if result < 0 else "DONE")
"""
    lines = python(tmp_path, program)
    assert [line for line in lines if not line.endswith(("not permitted", "not implemented"))] == []
    assert len(lines) == 8


# --- sockets of the host --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening(family: int, address: str | tuple[str, int]) -> Iterator[str | tuple[str, int]]:
    """A service of the host."""
    with socket.socket(family) as server:
        server.bind(address)
        server.listen()
        server.settimeout(60)

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(b"HELLO FROM HOST")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            with contextlib.suppress(OSError), socket.socket(family) as last:
                last.connect(server.getsockname())
            thread.join()


CONNECT = """
import socket
for family, address in {addresses!r}:
    with socket.socket(family) as client:
        client.settimeout(30)
        try:
            client.connect(address)
            print(client.recv(100).decode())
        except OSError as error:
            print(type(error).__name__)
"""


def test_no_socket_of_the_host_is_reached_abstract_ones_included(tmp_path: Path) -> None:
    abstract = f"\0volplane-test-{os.getpid()}"
    path = str(tmp_path / "service.sock")
    with (
        listening(socket.AF_UNIX, abstract),
        listening(socket.AF_UNIX, path),
        listening(socket.AF_INET, ("127.0.0.1", 0)) as loopback,
    ):
        addresses = [(1, abstract), (1, path), (2, loopback)]
        lines = python(tmp_path, CONNECT.format(addresses=addresses))
    assert lines == ["ConnectionRefusedError", "FileNotFoundError", "ConnectionRefusedError"]


def test_the_hosts_network_is_reached_where_the_pod_asks_for_it(tmp_path: Path) -> None:
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as loopback:
        assert python(tmp_path, CONNECT.format(addresses=[(2, loopback)]), host_network=True) == ["HELLO FROM HOST"]


def test_a_command_has_a_loopback_interface_of_its_own(tmp_path: Path) -> None:
    program = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
print("connected", sorted(name for _, name in socket.if_nameindex())[:1])
"""
    assert python(tmp_path, program) == ["connected ['lo']"]


# --- files of the host ------------------------------------------------------------------------------------------------


def test_the_host_shows_programs_and_settings_and_no_more(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush")
    script = f"""
        cat /etc/shadow /etc/gshadow /etc/ssh/* /etc/ssl/private/* {secret} 2>/dev/null
        ls -A /root /home /srv /mnt /opt /var/lib /var/log /sys /run 2>/dev/null | grep -v -e ':$' -e '^$'
        ls -d {tmp_path} /boot /lost+found /media 2>/dev/null
        head -c 20 /proc/kcore /proc/keys 2>/dev/null | grep -a -v -e '^==>' -e '^$'
        test -r /etc/passwd && test -x /bin/sh && echo usable
    """
    lines, _ = run(tmp_path, script)
    assert lines == ["usable"]


def test_only_the_volumes_of_the_pod_are_there(tmp_path: Path) -> None:
    volumes = tmp_path / "data" / "volumes"
    for name in ("mine", "theirs"):
        (volumes / name).mkdir(parents=True)
        (volumes / name / "file").write_text(name)
    script = f"cat /v/file; cat {volumes}/theirs/file /v/../theirs/file 2>/dev/null; ls {volumes} 2>/dev/null"
    lines, _ = run(tmp_path, script, binds=[Bind(source=str(volumes / "mine"), target="/v")])
    assert lines == ["mine"]


SETUID = """
import ctypes, os, shutil
libc = ctypes.CDLL(None, use_errno=True)
os.chdir("/v")
shutil.copyfile("/bin/sh", "sh")
def tried(what, action):
    try:
        print(what, "DONE", action())
    except OSError as error:
        print(what, error.strerror)
tried("chmod", lambda: os.chmod("sh", 0o4755))
tried("setgid", lambda: os.chmod("sh", 0o2755))
fd = os.open("sh", os.O_RDONLY)
tried("fchmod", lambda: os.fchmod(fd, 0o6755))
tried("fchmodat", lambda: os.chmod("sh", 0o4755, dir_fd=os.open(".", os.O_RDONLY)))
tried("open", lambda: os.open("new", os.O_CREAT | os.O_WRONLY, 0o4755))
tried("mknod", lambda: os.mknod("node", 0o104755))
tried("capability", lambda: os.setxattr("sh", "security.capability", bytes.fromhex("0000000280000000" + "00" * 12)))
tried("plain", lambda: os.chmod("sh", 0o755))
"""


@pytest.mark.parametrize("uid", [0, 1000])
def test_no_setuid_file_or_file_capability_is_planted_in_a_volume(tmp_path: Path, uid: int) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    lines = python(tmp_path, SETUID, uid=uid, binds=[Bind(source=str(volume), target="/v")], capabilities=["CHOWN"])
    assert [line for line in lines if "DONE" in line] == ["plain DONE None"]
    assert len(lines) == 8, lines
    for path in volume.iterdir():
        assert path.stat().st_mode & 0o6000 == 0, path
        assert "security.capability" not in os.listxattr(path)


def test_a_setuid_program_in_a_volume_gives_nothing(tmp_path: Path) -> None:
    """One that lies there already, from whomever."""
    volume = tmp_path / "volume"
    volume.mkdir()
    binds = [Bind(source=str(volume), target="/v")]
    lines, _ = run(tmp_path, "grep -e ' /v ' /proc/self/mountinfo", binds=binds)
    assert "nosuid" in lines[0]
    assert "nodev" in lines[0]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_memory_is_limited(tmp_path: Path) -> None:
    program = "try:\n    held = bytearray(400 * 2**20)\n    print('DONE')\nexcept MemoryError:\n    print('refused')\n"
    lines = python(tmp_path, program, memory_bytes=200 * 2**20)
    assert "DONE" not in lines


def test_processes_are_limited(tmp_path: Path) -> None:
    if os.geteuid() == 0 and why_no_cgroup() and not _process_ids_can_be_limited():
        pytest.skip("this kernel limits no processes of user 0 without cgroups")
    program = """
import os, time
made = 0
try:
    while made < 2000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    print("refused after", made)
"""
    lines = python(tmp_path, program, processes=310)
    assert lines[0].startswith("refused after")
    assert int(lines[0].split()[-1]) < 320


def _process_ids_can_be_limited() -> bool:
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    return (major, minor) >= (6, 14)


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_file_systems_in_memory_are_limited(tmp_path: Path, place: str) -> None:
    script = f"head -c 100M /dev/zero > {place}/big; stat -c %s {place}/big"
    lines, _ = run(tmp_path, script, tmp_bytes=32 * 2**20)
    assert int(lines[-1]) <= 64 * 2**20
    assert any("No space left" in line for line in lines)
