"""The driver on a real NFS-Ganesha: exports, restarts, rights, kills, and long ones with the marker `soak`."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from volplane import Absent, BackendError, Erased, InvalidArgument, PermissionDenied, ResourceExhausted, Unavailable
from volplane_nfs.ganesha.bus import DBus
from volplane_nfs.ganesha.export_manager import ExportManager
from volplane_nfs.markers import VolumeMarker
from volplane_nfs.nfs4 import Address, Client, Credentials, NfsError
from volplane_nfs.nfs4.files import make_directory, root_handle
from volplane_nfs.testing import GaneshaServer, why_no_ganesha
from volplane_nfs.testing.subjects import export_options

from .conftest import MIB, Site, mounted

pytestmark = pytest.mark.skipif(bool(why_no_ganesha()), reason=why_no_ganesha())


@pytest.fixture
def exporting(ganesha: GaneshaServer) -> Iterator[Site]:
    site = Site(ganesha.share, **export_options(ganesha), export_id_quarantine=60.0).start()
    yield site
    site.stop()


def directory_of(server: GaneshaServer, site: Site, path: str) -> Path:
    return server.data / path.removeprefix("/vol/")


def reachable(server: GaneshaServer, path: str) -> bool:
    client = Client(Address("127.0.0.1", server.port))
    try:
        root_handle(client, tuple(path.strip("/").encode().split(b"/")))
    except NfsError:
        return False
    finally:
        client.close()
    return True


def test_a_volume_is_a_directory_on_the_servers_disk(ganesha: GaneshaServer, live: Site) -> None:
    made = live.provision(parameters={"mode": 0o2770, "uid": 1000, "gid": 2000})
    directory = directory_of(ganesha, live, made[1].source.fields["path"])
    status = directory.stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o2770, 1000, 2000)
    for number in range(50):
        below = directory / f"d{number}"
        below.mkdir()
        (below / "file").write_text("x")
        (below / "link").symlink_to("/etc")
    assert live.recycle(live.volume(made)) == Erased()
    assert list(directory.iterdir()) == []
    live.delete(live.volume(made))
    assert not directory.exists()
    assert Path("/etc/passwd").exists()


def test_an_export_is_made_and_ends_with_its_volume(ganesha: GaneshaServer, exporting: Site) -> None:
    made = exporting.provision(parameters={"squash": "all_squash", "anonymousUid": 65534, "clients": ("127.0.0.0/8",)})
    path = made[1].source.fields["path"]
    assert path == f"/pv/{made[0].name}"
    assert reachable(ganesha, path)
    [file] = [each for each in ganesha.exports.iterdir() if made[0].name in each.read_text()]
    assert "Squash = all_squash;" in file.read_text()
    assert exporting.provision(made[0])[1] == made[1]
    exporting.delete(exporting.volume(made))
    assert not reachable(ganesha, path)
    assert not file.exists()
    assert exporting.find(made[0]) == Absent()


PODS = {
    "root": (0, 0, ()),
    "root with fsGroup": (0, 0, (2000,)),
    "user": (1000, 1000, ()),
    "fsGroup": (1000, 0, (2000,)),
}
"""Who a pod may be: user, group and further groups. The kubelet changes nothing on NFS; fsGroup is one more group."""


@pytest.mark.parametrize("exported", [True, False], ids=["export", "subdirectory"])
def test_whoever_a_pod_is_it_can_write_into_a_volume_of_a_class_without_parameters(
    ganesha: GaneshaServer, exported: bool
) -> None:
    site = Site(ganesha.share, **(export_options(ganesha) if exported else {})).start()
    made = site.provision()
    for pod, (uid, gid, groups) in PODS.items():
        who = Credentials(uid=uid, gid=gid, groups=groups)
        client = Client(Address("127.0.0.1", ganesha.port), credentials=who)
        directory = root_handle(client, tuple(str(made[1].source.fields["path"]).strip("/").encode().split(b"/")))
        assert make_directory(client, directory, pod.encode(), 0o755)
        client.close()
    site.delete(site.volume(made))
    site.stop()


def test_a_demand_goes_on_with_a_deletion_that_stopped_before_the_export_ended(
    ganesha: GaneshaServer, exporting: Site
) -> None:
    made = exporting.provision()
    _begin_deletion(ganesha, made[0].name)
    with pytest.raises(Unavailable, match="is being deleted"):
        exporting.provision(made[0])
    again = exporting.provision(made[0])
    assert reachable(ganesha, again[1].source.fields["path"])
    [_] = [each for each in ganesha.exports.iterdir() if made[0].name in each.read_text()]
    exporting.delete(exporting.volume(again))
    assert [each for each in ganesha.exports.iterdir() if made[0].name in each.read_text()] == []


def test_an_export_that_is_made_beside_a_deletion_ends_again(ganesha: GaneshaServer, exporting: Site) -> None:
    """The deletion looked for the export before it was there."""
    made = exporting.provision()
    path = made[1].source.fields["path"]
    control = ganesha.data / ".volplane"
    marker = VolumeMarker.decode(os.fsencode((control / "volumes" / made[0].name).readlink()))
    _begin_deletion(ganesha, made[0].name)
    [share] = exporting.backend._shares.all
    with pytest.raises(Unavailable, match="is being deleted"):
        share.work("export", lambda handles: exporting.backend._exports.ensure(share, handles, marker))
    assert not reachable(ganesha, path)
    exporting.delete(exporting.volume(made))


def _begin_deletion(server: GaneshaServer, name: str) -> None:
    """The first step of a deletion, as a process does it that dies after it."""
    volumes = server.data / ".volplane" / "volumes"
    (volumes / name).rename(volumes / f"{name}@1")


def test_a_host_that_is_no_client_cannot_reach_the_export(ganesha: GaneshaServer, exporting: Site) -> None:
    made = exporting.provision(parameters={"clients": ("192.0.2.0/24",)})
    assert not reachable(ganesha, made[1].source.fields["path"])
    exporting.delete(exporting.volume(made))


@pytest.mark.parametrize("client", ["10.0.0.0/33", "a b", 'x"; }', "host;name", ""])
def test_a_client_that_is_none_is_refused(exporting: Site, client: str) -> None:
    with pytest.raises(InvalidArgument, match="parameter clients"):
        exporting.validate(clients=(client,))


def test_an_export_id_is_not_given_again_while_it_rests(ganesha: GaneshaServer) -> None:
    options = {**export_options(ganesha), "first_export_id": 60001, "last_export_id": 60002, "timeout": 5.0}
    site = Site(ganesha.share, **options, export_id_quarantine=600.0).start()
    first, second = site.provision(), site.provision()
    with pytest.raises(ResourceExhausted, match="60001 to 60002"):
        site.provision()
    site.delete(site.volume(first))
    with pytest.raises(ResourceExhausted):
        site.provision()
    hasty = site.again(export_id_quarantine=0.0).start()
    third = hasty.provision()
    assert sorted(ExportManager(DBus(ganesha.bus, "")).exports())[-2:] == [60001, 60002]
    for made in (second, third):
        hasty.delete(hasty.volume(made))
    hasty.stop()
    site.stop()


def test_exports_are_there_after_a_restart_of_the_server(memory: Path) -> None:
    with GaneshaServer(memory) as server:
        site = Site(server.share, **export_options(server)).start()
        made = [site.provision() for _ in range(5)]
        gone = made.pop()
        site.delete(site.volume(gone))
        server.restart(kill=True)
        later = site.again().start()
        for request, asset in made:
            assert reachable(server, asset.source.fields["path"])
            assert later.find(request) == asset
        later.stop()
        assert not reachable(server, gone[1].source.fields["path"])
        site.stop()


def test_exports_whose_files_are_lost_are_made_again_and_their_data_stays(memory: Path) -> None:
    with GaneshaServer(memory) as server:
        site = Site(server.share, **export_options(server)).start()
        made = [site.provision() for _ in range(3)]
        for directory in (server.data / "default").iterdir():
            (directory / "file").touch()
        for repair in (site.probe, lambda: site.again().start().stop(), lambda: site.provision(made[0][0])):
            for file in server.exports.iterdir():
                file.unlink()
            server.restart(kill=True)
            repair()
            assert reachable(server, made[0][1].source.fields["path"])
        assert len(list((server.data / "default").glob("*/file"))) == 3
        site.stop()


def test_a_bus_without_ganesha_is_unavailable(ganesha: GaneshaServer) -> None:
    site = Site(ganesha.share, **{**export_options(ganesha), "bus": "unix:path=/nonexistent/bus"}).start()
    with pytest.raises(Unavailable, match="D-Bus"):
        site.probe()
    request = site.demand()
    with pytest.raises(Unavailable, match="D-Bus"):
        site.provision(request)
    site.stop()
    whole = Site(ganesha.share, **export_options(ganesha)).start()
    whole.delete(whole.volume(whole.provision(request)))
    whole.stop()


def test_a_squashed_root_is_denied_with_what_to_do(memory: Path) -> None:
    with GaneshaServer(memory, export="Squash = Root_Squash;") as server, pytest.raises(PermissionDenied) as caught:
        Site(server.share).start()
    assert "no_root_squash" in str(caught.value)


def test_a_read_only_export_is_unavailable(memory: Path) -> None:
    with (
        GaneshaServer(memory, export="Access_Type = RO;") as server,
        pytest.raises(Unavailable, match="read-only"),
    ):
        Site(server.share).start()


def test_an_export_that_wants_kerberos_is_denied(memory: Path) -> None:
    with (
        GaneshaServer(memory, export="SecType = krb5;") as server,
        pytest.raises(BackendError, match=r"krb5|security flavour"),
    ):
        Site(server.share).start()


def test_an_export_that_takes_kerberos_from_nodes_and_sys_from_the_driver_serves_both(memory: Path) -> None:
    clients = "SecType = krb5p; CLIENT { Clients = 127.0.0.1; SecType = sys; Access_Type = RW; }"
    with GaneshaServer(memory, export=clients) as server:
        site = Site(server.share).start()
        options = ("sec=krb5p", "xprtsec=mtls")
        request, asset = site.provision(site.demand(mount_options=options))
        assert not set(options) & set(asset.mount_options), "those of the class go to the volume without the driver"
        site.delete(site.volume((request, asset)))
        site.stop()


def test_a_share_that_is_not_exported_says_so(ganesha: GaneshaServer) -> None:
    with pytest.raises(Unavailable, match="is not exported to this host"):
        Site(ganesha.share.replace("/vol", "/nothing")).start()


@pytest.mark.parametrize("minors", ["0", "1,2"])
def test_every_minor_version_serves(memory: Path, minors: str) -> None:
    with GaneshaServer(memory, minors=minors) as server:
        site = Site(server.share).start()
        made = site.provision()
        site.delete(site.volume(made))
        assert site.backend._shares._clients[Address("127.0.0.1", server.port)].minor == (0 if minors == "0" else 2)
        site.stop()


def test_names_of_every_byte_and_of_255_bytes_are_removed(ganesha: GaneshaServer, live: Site) -> None:
    made = live.provision()
    place = ganesha.data / str(made[1].source.fields["path"]).removeprefix("/vol/")
    for byte in set(range(1, 256)) - set(b"/."):
        (place / os.fsdecode(bytes([byte]))).touch()
    below = place / os.fsdecode(bytes(range(1, 32)) + b"\xff" * 224)
    below.mkdir()
    (below / ("x" * 255)).symlink_to("/etc/passwd")
    live.delete(live.volume(made))
    assert not place.exists()
    assert Path("/etc/passwd").exists()


def test_a_full_file_system_is_told(memory: Path) -> None:
    disk = memory / "small"
    disk.mkdir()
    with (
        mounted(disk, "-t", "tmpfs", "-o", "size=4m,nr_inodes=60", "tmpfs"),
        GaneshaServer(memory, data=disk) as server,
    ):
        site = Site(server.share).start()
        with pytest.raises(ResourceExhausted, match="bytes left"):
            site.provision(capacity_bytes=1 << 30)
        made = []
        full = None
        while full is None:
            try:
                made.append(site.provision(site.demand()))
            except ResourceExhausted as error:
                full = error
        assert len(made) < 60
        for each in made:
            site.delete(site.volume(each))
        site.stop()


CONTROLLER = """
    import sys
    sys.path.insert(0, {tests!r})
    from conftest import Site
    site = Site({share!r}, timeout=5.0).start()
    number = 0
    while True:
        number += 1
        made = site.provision(site.demand(f"00000000-0000-4000-8000-{{number % 7:012}}"))
        if number % 3:
            site.delete(site.volume(made))
"""


def killed_controllers(server: GaneshaServer, memory: Path, times: int) -> None:
    """Controllers work on the same few volumes and are killed; in the end everything can be found and deleted."""
    script = memory / "controller.py"
    script.write_text(
        textwrap.dedent(CONTROLLER.format(share=server.share, tests=str(Path(__file__).resolve().parent)))
    )
    chance = random.Random(7)
    for _ in range(times):
        process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
        time.sleep(0.9 + chance.random())
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    nothing_is_left(server)


def nothing_is_left(server: GaneshaServer) -> None:
    """Each of the few volumes can be found, deleted, and made anew, and nothing else is on the share."""
    site = Site(server.share, check_free_space=False).start()
    for number in range(7):
        request = site.demand(f"00000000-0000-4000-8000-{number:012}")
        found = site.find(request)
        if found != Absent():
            site.delete(site.volume((request, found)))
        assert site.find(request) == Absent()
        site.delete(site.volume(site.provision(request)))
    assert site.listed() == []
    assert [each.name for each in server.data.iterdir()] == [".volplane"]
    assert list((server.data / ".volplane" / "trash").iterdir()) == []
    site.stop()


@pytest.mark.soak
def test_a_controller_that_is_killed_twenty_times_leaves_nothing(memory: Path) -> None:
    with GaneshaServer(memory) as server:
        killed_controllers(server, memory, 20)


FILLING_CONTROLLER = """
    import random, sys, time
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from conftest import Site
    from volplane import Absent, BackendError
    chance, site = random.Random({number}), None
    while True:
        try:
            site = site or Site({share!r}, timeout=5.0, check_free_space=False).start()
            request = site.demand(f"00000000-0000-4000-8000-{{chance.randrange(7):012}}")
            if "ResourceExhausted" in Path({told!r}).read_text()[-40:] and (found := site.find(request)) != Absent():
                site.delete(site.volume((request, found)))
            made = site.provision(request)
            Path({told!r}).open("a").write("made ")
            if chance.random() < 0.3:  # A pod fills the share.
                try:
                    directory = Path({data!r}, made[1].source.fields["path"].removeprefix("/vol/"))
                    with (directory / "big").open("ab", buffering=0) as file:
                        while True:
                            file.write(b"x" * 65536)
                except OSError:
                    pass
            if chance.random() < 0.7:
                site.delete(site.volume(made))
        except (BackendError, AssertionError) as error:  # no server, no space, or the other one is at the volume
            Path({told!r}).open("a").write(type(error).__name__ + " ")
            time.sleep(0.01)
"""


@pytest.fixture
def filling(memory: Path) -> Iterator[GaneshaServer]:
    """A server on a file system of 8 MiB."""
    disk = memory / "disk"
    disk.mkdir()
    with (
        mounted(disk, "-t", "tmpfs", "-o", "size=8m,nr_inodes=400", "tmpfs"),
        GaneshaServer(memory, data=disk) as server,
    ):
        yield server


@contextmanager
def controllers(server: GaneshaServer, told: Path) -> Iterator[Callable[[], None]]:
    """Run two controllers of a share that they fill; calls kill one and start another in its place."""
    running: list[subprocess.Popen[bytes]] = []
    numbers = itertools.count()

    def start() -> None:
        script, tests = server.directory / "filling.py", str(Path(__file__).resolve().parent)
        fields = {"share": server.share, "data": str(server.data), "told": str(told), "tests": tests}
        script.write_text(textwrap.dedent(FILLING_CONTROLLER.format(number=next(numbers), **fields)))
        running.append(subprocess.Popen([sys.executable, str(script)]))

    def replace_one() -> None:
        assert running[0].poll() is None
        running[0].kill()
        running.pop(0).wait()
        start()

    start()
    start()
    try:
        yield replace_one
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.soak
def test_forty_kills_of_the_server_and_of_controllers_on_a_share_that_fills_leave_nothing(
    filling: GaneshaServer,
) -> None:
    site, told, chance = (
        Site(filling.share, check_free_space=False).start(),
        filling.directory / "told",
        random.Random(7),
    )
    kept = site.provision(site.demand("00000000-0000-4000-8000-000000000099"))
    precious = directory_of(filling, site, kept[1].source.fields["path"]) / "file"
    precious.write_text("precious")
    site.stop()
    told.touch()
    with controllers(filling, told) as replace_one:
        for _ in range(20):
            end, before = time.monotonic() + 60, told.read_text().count("made")
            while told.read_text().count("made") < before + 5 and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.3 * chance.random())
            filling.restart(kill=True)
            time.sleep(0.3 * chance.random())
            replace_one()
    words = told.read_text().split()
    assert words.count("made") >= 100
    assert words.count("ResourceExhausted") > 0
    site = Site(filling.share, check_free_space=False).start()
    for number in range(7):  # Whatever fills the share goes first.
        request = site.demand(f"00000000-0000-4000-8000-{number:012}")
        if (found := site.find(request)) != Absent():
            site.delete(site.volume((request, found)))
    assert site.find(kept[0]) == kept[1]
    assert precious.read_text() == "precious"
    site.delete(site.volume(kept))
    site.stop()
    nothing_is_left(filling)


TWO_CONTROLLERS = """
    import random, sys, time
    sys.path.insert(0, {tests!r})
    from conftest import Site
    from volplane import BackendError
    site = Site({share!r}, timeout=5.0).start()
    chance, end, made = random.Random({number}), time.monotonic() + {seconds}, 0
    while made <= 100 and time.monotonic() < end:
        request = site.demand(f"00000000-0000-4000-8000-{{chance.randrange(7):012}}")
        try:
            volume = site.volume(site.provision(request))
            made += 1
            if chance.random() < 0.5:
                site.delete(volume)
        except (BackendError, AssertionError):  # the other one is at the same volume
            time.sleep(0.001)
    sys.exit(0 if made > 100 else f"only {{made}} volumes were made")
"""


@pytest.mark.soak
def test_two_controllers_at_once_leave_nothing(memory: Path) -> None:
    with GaneshaServer(memory) as server:
        scripts = []
        for number in range(2):
            script = memory / f"controller-{number}.py"
            tests = str(Path(__file__).resolve().parent)
            text = TWO_CONTROLLERS.format(share=server.share, tests=tests, number=number, seconds=100)
            script.write_text(textwrap.dedent(text))
            scripts.append(script)
        processes = [subprocess.Popen([sys.executable, str(script)]) for script in scripts]
        assert [process.wait(120) for process in processes] == [0, 0]
        killed_controllers(server, memory, 0)


@pytest.mark.soak
def test_200_volumes_live_through_restarts_of_the_server(memory: Path) -> None:
    chance = random.Random(11)
    with GaneshaServer(memory, grace=5, lease=3) as server:
        site = Site(server.share, timeout=5.0).start()

        def patiently(call: object, *arguments: object) -> object:
            end = time.monotonic() + 60
            while True:
                try:
                    return call(*arguments)  # type: ignore[operator]
                except (Unavailable, BackendError):
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.2)

        for number in range(200):
            request = site.demand()
            made = patiently(site.provision, request)
            if chance.random() < 0.1:
                server.restart(kill=chance.random() < 0.5)
            assert patiently(site.find, request) == made[1]  # type: ignore[index]
            if number % 2:
                patiently(site.recycle, site.volume(made))  # type: ignore[arg-type]
            patiently(site.delete, site.volume(made))  # type: ignore[arg-type]
        assert patiently(site.listed) == []
        site.stop()


@pytest.mark.soak
def test_a_server_that_is_gone_for_a_while_is_taken_up_again(memory: Path) -> None:
    with GaneshaServer(memory) as server:
        site = Site(server.share).start()
        made = site.provision()
        server.stop()
        end = time.monotonic() + 60
        slowest = 0.0
        while time.monotonic() < end:
            begun = time.monotonic()
            with pytest.raises(Unavailable):
                site.find(made[0])
            slowest = max(slowest, time.monotonic() - begun)
            time.sleep(0.5)
        assert slowest < 1.0
        server.start()
        time.sleep(16.0)
        assert site.find(made[0]) == made[1]
        site.stop()


@pytest.mark.soak
def test_a_thousand_exports(memory: Path) -> None:
    with GaneshaServer(memory) as server:
        site = Site(server.share, **export_options(server)).start()
        made = [site.provision(capacity_bytes=MIB) for _ in range(1000)]
        assert len(ExportManager(DBus(server.bus, "")).exports()) >= 1000
        server.restart()
        time.sleep(1.1)
        assert reachable(server, made[-1][1].source.fields["path"])
        for each in made:
            site.delete(site.volume(each))
        assert site.listed() == []
        site.stop()


@pytest.fixture
def squashing(memory: Path) -> Iterator[tuple[GaneshaServer, Site]]:
    """A driver that is not root, on an export that squashes root."""
    memory.chmod(0o755)
    server = GaneshaServer(memory, export="Squash = root_squash;")
    os.chown(server.data, 1000, 1000)
    with server:
        site = Site(server.share, uid=1000, gid=1000).start()
        yield server, site
        site.stop()


def test_a_driver_that_is_not_root_removes_what_its_user_made(squashing: tuple[GaneshaServer, Site]) -> None:
    """As nodes do for which the export has all_squash and that user."""
    server, site = squashing
    made = site.provision()
    place = directory_of(server, site, made[1].source.fields["path"])
    for _ in range(2):
        for path in (place / "closed", place / "closed" / "deeper", place / "closed" / "deeper" / "deepest"):
            path.mkdir()
            (path / "file").touch()
        for path in (place, *place.rglob("*")):
            os.chown(path, 1000, 1000)
        (place / "closed" / "deeper" / "deepest").chmod(0o500)
        (place / "closed" / "deeper").chmod(0)
        (place / "closed").chmod(0o500)
        assert site.recycle(site.volume(made)) == Erased()
    (place / "closed").mkdir()
    os.chown(place / "closed", 1000, 1000)
    (place / "closed").chmod(0)
    site.delete(site.volume(made))
    assert not place.exists()
    assert list((server.data / ".volplane" / "trash").iterdir()) == []


def test_what_the_drivers_user_may_not_remove_is_named_and_keeps_nothing_else(
    squashing: tuple[GaneshaServer, Site],
) -> None:
    server, site = squashing
    made = site.provision()
    place = directory_of(server, site, made[1].source.fields["path"])
    for name in ("a", "theirs", "z"):
        (place / name).mkdir()
        (place / name / "file").touch()
        os.chown(place / name, 1000, 1000)
    os.chown(place / "theirs", 2000, 2000)
    for mode in (0o700, 0o755):
        (place / "theirs").chmod(mode)
        with pytest.raises(PermissionDenied, match=r"'(theirs|file)' in .* cannot be removed: .* no_root_squash"):
            site.recycle(site.volume(made))
        assert [each.name for each in place.iterdir()] == ["theirs"]
    with pytest.raises(PermissionDenied, match="cannot be removed"):
        site.delete(site.volume(made))
    (left,) = server.data.glob("**/file")
    os.chown(left.parent, 1000, 1000)
    site.delete(site.volume(made))
    assert not place.exists()
    assert list((server.data / ".volplane" / "trash").iterdir()) == []


def test_an_immutable_file_is_named_and_keeps_no_other(ganesha: GaneshaServer, live: Site) -> None:
    made = live.provision()
    place = directory_of(ganesha, live, made[1].source.fields["path"])
    for number in range(200):
        (place / f"d{number % 5}").mkdir(exist_ok=True)
        (place / f"d{number % 5}" / f"{number}").touch()
    if subprocess.run(["chattr", "+i", place / "d3" / "33"], check=False, capture_output=True).returncode:
        pytest.skip("no immutable files here")
    try:
        with pytest.raises(PermissionDenied, match=r"'33' in .* chattr -i"):
            live.delete(live.volume(made))
        [left] = (each for each in (ganesha.data / ".volplane" / "trash").rglob("*") if each.is_file())
    finally:
        for each in ganesha.data.rglob("33"):
            subprocess.run(["chattr", "-i", each], check=True)
    assert left.name == "33"
    live.delete(live.volume(made))
    assert not left.exists()
