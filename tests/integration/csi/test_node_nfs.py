"""The service Node over volumes of NFS servers. A tmpfs stands in for what the client of the kernel would mount."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from integration.csi.caller import WRITER, bridged
from integration.csi.pods import Pods, points
from volplane.assets import ListedAsset, VolumeSource
from volplane.csi import syscalls
from volplane.csi.codes import CsiError
from volplane.csi.mounts import Targets
from volplane.csi.node import NodeOptions
from volplane.csi.sources import Share, source_of

nfs = pytest.importorskip("volplane_nfs.testing")
pytestmark = pytest.mark.real_time
HAS_CLIENT = any(line.split()[-1] == "nfs" for line in Path("/proc/filesystems").read_text("ascii").splitlines())
ADDRESS = "203.0.113.7"


@dataclass
class Client:
    """The kernel's client of NFS, played below the calls: keeps the options, and mounts a tmpfs."""

    refuses: Callable[[str, str | None], str] = lambda _key, _value: ""
    """Returns why an option is refused, or for the key "" the mount."""
    mounted: list[dict[str, str | None]] = field(default_factory=list)
    """The options of each attempt to mount."""

    def file_system(self, kind: str, label: str) -> syscalls.FileSystem:
        assert kind == "nfs"
        client, options = self, dict[str, str | None]()

        class Played(syscalls.FileSystem):
            why = ""

            def set(self, key: str, value: str | None = None) -> None:
                if (why := client.refuses(key, value)) != "":
                    self.why = f"nfs: {why}"
                    raise OSError(errno.EINVAL, "Invalid argument", label)
                options[key] = value
                if key == "source":
                    super().set(key, value)

            def mount(self, attributes: int) -> int:
                client.mounted.append(options)
                if (why := client.refuses("", options.get("vers"))) != "":
                    raise OSError(errno.EPROTONOSUPPORT, why, label)
                return super().mount(attributes)

            def messages(self) -> str:
                return self.why

        return Played("tmpfs", label)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    played = Client()
    monkeypatch.setattr("volplane.csi.sources.FileSystem", played.file_system)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: [(0, 0, 0, "", (ADDRESS, 0))])
    return played


def share(*options: str) -> Share:
    return Share("filer", "/export/a", options)


def options_of(*options: str) -> tuple[int, dict[str, str | None]]:
    attributes, given = share(*options).read()
    return attributes, dict(given)


def test_options_go_to_the_mount_to_the_client_or_nowhere() -> None:
    attributes, given = options_of(
        "hard,nconnect=4", "noatime", "ro", "_netdev", "x-systemd.automount", "retry=2", "sync"
    )
    assert attributes == syscalls.ATTRIBUTES["noatime"] | syscalls.RDONLY
    assert given == {"hard": None, "nconnect": "4", "sync": None}


@pytest.mark.parametrize("option", ["addr=203.0.113.9", "source=filer:/etc", "mountaddr=203.0.113.9"])
def test_where_the_share_is_follows_from_the_volume_alone(option: str) -> None:
    with pytest.raises(CsiError, match=rf"mount option {option.partition('=')[0]}: it follows from the volume"):
        options_of(option)


@pytest.mark.parametrize("options", [("vers=3",), ("nfsvers=3", "hard"), ("v3",)])
def test_that_locks_of_version_3_need_a_program_is_said(options: tuple[str, ...]) -> None:
    with pytest.raises(CsiError, match=r"starts rpc.statd, as mount.nfs does: add nolock, or take version 4") as error:
        options_of(*options)
    assert error.value.code == "FAILED_PRECONDITION"
    assert options_of(*options, "nolock")[1]["nolock"] is None


def test_the_options_of_the_asset_come_before_those_of_the_class() -> None:
    source = VolumeSource(kind="nfs", fields={"server": "fe80::1", "path": "/export/a/"})
    asset = ListedAsset(
        handle="h", name="pvc-1", capacity_bytes=1, owner=None, source=source, mount_options=("port=12049",)
    )
    found = source_of(asset, ("port=2049",))
    assert isinstance(found, Share)
    assert (found.options, found.name) == (("port=12049", "port=2049"), "[fe80::1]:/export/a")


@pytest.mark.usefixtures("mounting")
async def test_a_share_is_published_and_unpublished_as_often_as_asked(directory: Path, client: Client) -> None:
    """... read-only if asked, with usage, and without a look at what else is there."""
    async with AsyncExitStack() as stack:
        subject = stack.enter_context(nfs.subject())
        node = NodeOptions(node_id="node-a", kubelet_dir=directory / "kubelet")
        csi = await stack.enter_async_context(bridged(subject, node=node))
        pods = Pods(csi, directory / "kubelet", (await csi.create("pvc-1")).volume_id)
        nconnect = {"mount": {"mount_flags": ["nconnect=4", "nosuid"]}, "access_mode": WRITER["access_mode"]}
        for _ in range(2):
            mounted = await pods.publish(volume_capability=nconnect)
        assert [each["nconnect"] for each in client.mounted] == ["4"]
        assert {"nosuid", "rw"} <= set(_options(mounted))
        (mounted / "file").write_bytes(b"x" * 4096)
        read_only = await pods.publish("reader", readonly=True)
        by_class = {"mount": {"mount_flags": ["hard,ro"]}, "access_mode": WRITER["access_mode"]}
        for _ in range(2):
            assert "ro" in _options(await pods.publish("by_class", volume_capability=by_class))
        with pytest.raises(OSError, match="Read-only"):
            (read_only / "file").touch()
        await csi.refused("ALREADY_EXISTS", "NodePublishVolume", **pods.demand(readonly=True))
        place: dict[str, Any] = {"volume_id": pods.id, "volume_path": str(mounted)}
        size, _inodes = (await csi.call("NodeGetVolumeStats", **place)).usage
        assert size.total == os.statvfs(mounted).f_blocks * os.statvfs(mounted).f_frsize
        for name in ("mount", "reader", "by_class", "mount"):
            await pods.unpublish(name)
        assert points(pods.kubelet) == []
        assert not mounted.exists()


def _options(path: Path) -> list[str]:
    (line,) = (
        line for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines() if line.split()[4] == str(path)
    )
    return line.split()[5].split(",")


@pytest.mark.usefixtures("mounting")
def test_a_share_that_is_mounted_is_not_opened_since_its_server_may_be_gone(
    directory: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets, target = Targets(directory / "kubelet"), str(directory / "kubelet" / "pods" / "a" / "mount")
    targets.publish(share(), target, read_only=False, alone=False)
    opened = os.open

    def hanging(path: Any, *args: Any, **more: Any) -> int:
        assert path != "mount", "it hangs"
        return opened(path, *args, **more)

    monkeypatch.setattr(os, "open", hanging)
    targets.publish(share(), target, read_only=False, alone=False)
    with pytest.raises(CsiError, match="but writable"):
        targets.publish(share(), target, read_only=True, alone=False)
    targets.unpublish(target)
    assert (len(client.mounted), points(directory / "kubelet")) == (1, [])


@pytest.mark.usefixtures("mounting")
def test_the_newest_version_is_taken_that_the_server_speaks(directory: Path, client: Client) -> None:
    client.refuses = lambda key, value: "not spoken" if (key, value) == ("", "4.2") else ""
    targets, target = Targets(directory / "kubelet"), str(directory / "kubelet" / "pods" / "a" / "mount")
    targets.publish(share(), target, read_only=False, alone=False)
    assert [each["vers"] for each in client.mounted] == ["4.2", "4.1"]
    assert client.mounted[-1] == {"source": "filer:/export/a", "addr": ADDRESS, "vers": "4.1"}
    targets.unpublish(target)
    client.refuses = lambda key, _value: "not spoken" if key == "" else ""
    with pytest.raises(OSError, match="not spoken"):
        targets.publish(share("vers=4.1"), target, read_only=False, alone=False)
    assert len(client.mounted) == 3
    assert not Path(target).exists()


@pytest.mark.usefixtures("mounting")
def test_a_share_of_a_volume_for_a_single_pod_is_published_once(directory: Path, client: Client) -> None:
    targets, pods = Targets(directory / "kubelet"), directory / "kubelet" / "pods" / "a"
    targets.publish(share(), str(pods / "one"), read_only=False, alone=True)
    with pytest.raises(CsiError, match=rf"{pods}/one has it"):
        targets.publish(share(), str(pods / "two"), read_only=False, alone=True)
    targets.publish(Share("filer", "/export/b", ()), str(pods / "two"), read_only=False, alone=True)
    with pytest.raises(CsiError, match="something else is mounted"):
        targets.publish(share(), str(pods / "two"), read_only=False, alone=False)
    assert len(client.mounted) == 2


@pytest.mark.usefixtures("mounting", "directory")
def test_an_option_that_the_client_does_not_know_is_named_without_its_value(client: Client) -> None:
    client.refuses = lambda key, _value: f"Unknown parameter '{key}'" if key == "passwrd" else ""
    with ExitStack() as stack, pytest.raises(CsiError) as error:
        share("passwrd=hunter2").mounted(stack)
    assert error.value.code == "INVALID_ARGUMENT"
    assert error.value.message == "mount option passwrd: nfs: Unknown parameter 'passwrd'"


@pytest.mark.usefixtures("mounting", "directory")
def test_the_client_of_the_kernel_is_asked_or_its_absence_said() -> None:
    """Without a client: FAILED_PRECONDITION. With one: the connection to a server that is not there is refused."""
    absent = Share("127.0.0.1", "/none", ("soft", "timeo=1", "retrans=0", "port=1", "vers=4.2"))
    with ExitStack() as stack:
        if HAS_CLIENT:
            with pytest.raises(OSError, match=r"refused|timed out"):
                absent.mounted(stack)
        else:
            with pytest.raises(CsiError, match=r"127.0.0.1:/none cannot be mounted: the kernel of this node") as error:
                absent.mounted(stack)
            assert error.value.code == "FAILED_PRECONDITION"
