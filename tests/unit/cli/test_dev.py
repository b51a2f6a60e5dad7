import asyncio
import gc
import socket
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.binding.objects import claim, volume
from volplane.cli.main import main
from volplane.controller.config import Configuration, DriverSettings
from volplane.errors import ConfigurationError
from volplane.kube.client import Client
from volplane.kube.kinds import STORAGE_CLASSES, VOLUMES
from volplane.kube.names import DEFAULT_CLASS
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.cli import dev, development_cluster
from volplane_embedded.cli.development_cluster import DEFAULT_DRIVER, Directories, with_default_driver
from volplane_embedded.cli.failed_start import undone_unless_started
from volplane_embedded.cli.left_behind import say_what_is_left
from volplane_embedded.cli.node_labels import parse_node_labels
from volplane_embedded.cli.served_twice import served_twice
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.clock import now

NODES = ("node-1", "node-2")


# --- labels of nodes ----------------------------------------------------------------------------------------------


def test_a_label_is_of_all_nodes_or_of_one_which_wins() -> None:
    labels = parse_node_labels(
        ["example.com/disk=slow", "node-2:example.com/disk=fast", "topology.kubernetes.io/zone=z"], NODES
    )
    assert labels == {
        "node-1": {"example.com/disk": "slow", "topology.kubernetes.io/zone": "z"},
        "node-2": {"example.com/disk": "fast", "topology.kubernetes.io/zone": "z"},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zone", "write KEY=VALUE or NODE:KEY=VALUE"),
        (":zone=a", "write KEY=VALUE"),
        ("node-22:zone=a", "there is no node 'node-22'; did you mean 'node-2'?"),
        ("a b=c", "the key name part"),
        ("=c", "the key name part must be non-empty"),
        ("zone=a b", "the value"),
        ("kubernetes.io/hostname=x", "the node agent itself sets kubernetes.io/hostname"),
    ],
)
def test_a_label_that_no_node_can_have_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match="--node-label") as refused:
        parse_node_labels([text], NODES)
    assert words in str(refused.value)


# --- drivers --------------------------------------------------------------------------------------------------------


def test_without_hostpath_installed_there_is_no_default_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = Directories.beneath(tmp_path)
    chosen = with_default_driver(Configuration(), directories, 1).drivers
    assert [driver.name for driver in chosen or ()] == [DEFAULT_DRIVER]
    monkeypatch.setattr("volplane.drivers.discovery.InstalledPlugins.names", lambda *_: [])
    assert with_default_driver(Configuration(), directories, 1).drivers == ()


def test_volumes_are_of_the_default_driver_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config").write_text("drivers: []")
    assert main(["dev", "--config", str(tmp_path / "config"), "--volumes", str(tmp_path / "v")]) == 1
    assert "--volumes is of the default driver" in capsys.readouterr().err
    assert not (tmp_path / "v").exists()


def said(statuses: list[Any], configuration: Configuration, capsys: pytest.CaptureFixture[str]) -> str:
    cluster: Any = SimpleNamespace(
        embedded=SimpleNamespace(url="https://here", kubeconfig="kubeconfig", kubectl=str),
        process=SimpleNamespace(driver_status=lambda: statuses),
        instances=(),
        directories=SimpleNamespace(volumes="/volumes"),
        default_class="standard",
    )
    plan: Any = SimpleNamespace(
        settings=SimpleNamespace(data=None), nodes=1, distributed=False, configuration=configuration
    )
    dev._print_introduction(dev.Console(), plan, cluster, "http://127.0.0.1:1/#token=t")
    shown = capsys.readouterr()
    return shown.out + shown.err


def test_it_names_the_drivers_that_it_has_and_what_is_wrong_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    fast = SimpleNamespace(name="fast.example.com", backend="nfs", healthy=True, state="ready", error="")
    bad = SimpleNamespace(name="bad.example.com", backend="nfs", healthy=False, state="broken", error="no server")
    out = said([fast, bad], Configuration(drivers=()), capsys)
    assert "driver fast.example.com, of backend nfs\n" in out
    assert "driver bad.example.com, of backend nfs: broken, no server\n" in out
    assert "page http://127.0.0.1:1/#token=t\n" in out
    assert DEFAULT_DRIVER not in out


def test_it_says_what_to_install_where_there_is_no_driver(capsys: pytest.CaptureFixture[str]) -> None:
    out = said([], Configuration(), capsys)
    assert 'pip install "volplane[hostpath]"' in out
    assert DEFAULT_DRIVER not in out


def test_a_driver_that_another_process_serves_on_the_same_storage_is_named() -> None:
    def driver(name: str, **options: object) -> DriverSettings:
        return DriverSettings(name=name, backend="b", options=options)

    mine = f"disks-{uuid.uuid4()}.example.com"
    with served_twice([driver(mine, root="/srv/a")]) as first:
        assert first == []
        others = [driver(mine, root="/srv/a", shared=True), driver(mine, root="/srv/b"), driver("x." + mine)]
        with served_twice(others) as second:
            assert second == [mine]
        with served_twice([driver(mine, root="/srv/./b/../a/")]) as spelt_otherwise:
            assert spelt_otherwise == [mine]
    with served_twice([driver(mine, root="/srv/a")]) as later:
        assert later == []


def test_the_command_says_that_another_process_serves_its_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = DriverSettings(name="disks.example.com", backend="hostpath", options={"root": str(tmp_path)})
    text = f"drivers: [{{name: {served.name}, backend: hostpath, options: {{root: {tmp_path}}}}}]"
    (tmp_path / "config").write_text(text)
    with served_twice([served]), socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends by itself
        port = str(taken.getsockname()[1])
        assert main(["dev", "--config", str(tmp_path / "config"), "--port", port, "--http", "127.0.0.1:0"]) == 1
    said = capsys.readouterr().err
    assert "warning: another volplane dev of this machine serves driver disks.example.com on the same storage" in said
    assert port in said


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "root", "says"),
    [
        (True, "here/volumes", ["left on the storage: 3; a start with the same --data goes on with it"]),
        (
            False,
            "elsewhere",
            [
                "warning: left on the storage: h-1 of driver disks.example.com (volume v-1, of claim default/c)",
                "warning: left on the storage: /v-2 of driver hostpath.volplane.dev (volume v-2)",
                "warning: left on the storage: what was begun for claim default/d, if anything (pvc-uid-d)",
                "warning: the objects are gone with this process: delete it by the means of the storage",
            ],
        ),
        (
            False,
            "here/volumes",
            [
                "warning: left on the storage: h-1 of driver disks.example.com (volume v-1, of claim default/c)",
                "warning: left on the storage: what was begun for claim default/d, if anything (pvc-uid-d)",
                "warning: the objects are gone with this process: delete it by the means of the storage",
            ],
        ),
    ],
    ids=["kept", "in memory", "in memory and a temporary root"],
)
async def test_what_is_left_on_the_storage_is_said_at_the_end(
    kept: bool, root: str, says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    made_by = "pv.kubernetes.io/provisioned-by"
    csi = {"driver": "disks.example.com", "volumeHandle": "h-1"}
    disk = {"annotations": {made_by: "disks.example.com"}, "hostPath": None, "csi": csi}
    volumes = [
        volume("v-1", claim=claim("c"), **disk),
        volume("v-2", annotations={made_by: DEFAULT_DRIVER, "volplane.dev/handle": "/v-2"}),
        volume("by-hand"),
    ]
    claims = [claim("d", annotations={"volplane.dev/intent": "{}"})]

    async def listed(kind: Any) -> Any:
        return SimpleNamespace(items=volumes if kind is VOLUMES else claims)

    places = SimpleNamespace(volumes=Path(root), pods=Path("here/pods"))
    cluster: Any = SimpleNamespace(client=SimpleNamespace(list=listed), directories=places)
    await say_what_is_left(dev.Console(), cluster, kept=kept)
    told = capsys.readouterr()
    assert (told.out + told.err).splitlines() == says


# --- a start that fails -------------------------------------------------------------------------------------------


def test_a_start_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The port of --http is taken, which is noticed when the cluster runs already."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "volplane.kubeconfig").write_text("of a cluster that runs")
    (tmp_path / "empty").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["dev", "--port", "0", "--http", http, "--volumes", "deep/volumes", "--disks", "empty"]
        assert main([*arguments, "--data", "data/of/dev", "--kubeconfig-out", "volplane.kubeconfig"]) == 1
    assert f"--http {http} cannot be used" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "volplane.kubeconfig"]
    assert (tmp_path / "volplane.kubeconfig").read_text() == "of a cluster that runs"


def test_what_was_there_before_a_failed_start_stays(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "kept").write_text("")
    with undone_unless_started([tmp_path / "new"], [data]):
        (data / "added").write_text("")
        (tmp_path / "new").write_text("")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["added", "data", "kept"]


def test_what_started_stays(tmp_path: Path) -> None:
    with undone_unless_started([tmp_path / "new"], []) as started:
        (tmp_path / "new").write_text("")
        started()
    assert (tmp_path / "new").exists()


async def test_the_introduction_does_not_wait_for_drivers_after_ctrl_c() -> None:
    cluster: Any = SimpleNamespace(process=SimpleNamespace(wait_working=asyncio.Event().wait), instances=())
    stop = asyncio.Event()
    stop.set()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with asyncio.timeout(5):
        await dev._wait_for_drivers(cluster, stop)
    gc.collect()
    assert not reported


async def test_a_cluster_without_classes_begins_with_one_for_claims_that_name_none(tmp_path: Path) -> None:
    server = ApiServer(now=now)
    client = Client(InProcessTransport(server))
    directories = Directories.beneath(tmp_path)
    configured = with_default_driver(Configuration(), directories, 1)
    assert await development_cluster._default_class(client, configured, distributed=False) == "standard"
    [made] = (await client.list(STORAGE_CLASSES)).items
    assert (made.provisioner, made.annotation(DEFAULT_CLASS)) == (DEFAULT_DRIVER, "true")
    assert await development_cluster._default_class(client, configured, distributed=False) == "standard"
    await client.patch(STORAGE_CLASSES, "standard", {"metadata": {"annotations": None}})
    assert await development_cluster._default_class(client, configured, distributed=False) == ""
    server.close()
