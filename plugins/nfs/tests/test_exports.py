"""Mode export, on the model of NFS-Ganesha: what its bus and its folder of exports seldom show."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import Absent, InProgress, InvalidArgument, Ownership, ResourceExhausted, Unavailable
from volplane_nfs import delete
from volplane_nfs.ganesha import export_manager
from volplane_nfs.ganesha.export_block import remove_file, write_file
from volplane_nfs.markers import VolumeMarker
from volplane_nfs.nfs4 import Client
from volplane_nfs.nfs4.files import write_file as write_data
from volplane_nfs.nfs4.operations import REMOVE, Request
from volplane_nfs.testing import ModelServer
from volplane_nfs.testing.model import DATA, ModelBus

from .conftest import MIB, Site, mounted


@pytest.fixture
def bus(model: ModelServer, tmp_path: Path) -> ModelBus:
    files = tmp_path / "exports.d"
    files.mkdir()
    return ModelBus(model, files)


@pytest.fixture
def exporting(model: ModelServer, bus: ModelBus, tmp_path: Path) -> Site:
    options = {"mode": "export", "server_path": DATA, "config_directory": str(tmp_path / "exports.d")}
    return Site(dial=model.dial, open_bus=lambda _bus, _prefix: bus, **options).start()


def ids(model: ModelServer) -> list[str]:
    return sorted(name.decode() for name in model.share.children[b".volplane"].children[b"exports"].children)


def test_a_volume_is_an_export_until_it_is_deleted(exporting: Site, bus: ModelBus, model: ModelServer) -> None:
    made = exporting.provision()
    assert f"/pv/{made[0].name}" in bus.picture
    exporting.delete(exporting.volume(made))
    assert bus.picture == {}
    assert [name.rpartition(".")[2] for name in ids(model)] == ["free"]


def test_a_bus_that_stays_busy_is_unavailable_and_the_export_is_made_later(
    exporting: Site, bus: ModelBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_manager, "_FIRST_PAUSE", 0.0)
    demand = exporting.demand()
    bus.fault = lambda _method: "busy"
    with pytest.raises(Unavailable, match="busy with other exports"):
        exporting.provision(demand)
    bus.fault = lambda _method: None
    exporting.provision(demand)
    assert f"/pv/{demand.name}" in bus.picture


def test_an_answer_of_the_bus_that_is_lost_makes_no_second_export(exporting: Site, bus: ModelBus) -> None:
    demand = exporting.demand()
    bus.fault = lambda method: "lost after" if method == "AddExport" else None
    with pytest.raises(Unavailable):
        exporting.provision(demand)
    bus.fault = lambda _method: None
    exporting.provision(demand)
    assert [key for key in bus.picture if key.startswith("/pv/")] == [f"/pv/{demand.name}"]


def test_a_demand_that_meets_its_marker_takes_no_second_export_id(exporting: Site, model: ModelServer) -> None:
    demand = exporting.demand()
    exporting.provision(demand)
    (used,) = ids(model)
    volume = model.share.children[b"default"]
    model.leave(volume, next(iter(volume.children)))
    exporting.again().start().provision(demand)
    assert [name for name in ids(model) if name.isdigit()] == [used]


INJECTED = 'x; } EXPORT { Export_Id = 9; Path = "/"; Pseudo = "/all"; Access_Type = RW'


@pytest.mark.parametrize(
    "changed",
    [
        {"squash": f"No_Root_Squash; {INJECTED}"},
        {"protocols": ["4", INJECTED]},
        {"clients": [INJECTED]},
        {"clients": INJECTED},
        {"anonymous_uid": INJECTED},
    ],
    ids=lambda changed: f"{next(iter(changed))} {type(next(iter(changed.values()))).__name__}",
)
def test_what_somebody_wrote_into_a_marker_does_not_reach_the_configuration_of_the_server(
    exporting: Site, tmp_path: Path, changed: dict[str, Any]
) -> None:
    settings = exporting.backend._settings
    marker = marker_of(**changed)
    with pytest.raises(Unavailable, match="the marker of 'pvc-1' was changed, so it is not exported"):
        write_file(settings, VolumeMarker.decode(marker.encode()), "5" * 32)
    assert list((tmp_path / "exports.d").iterdir()) == []


def test_a_marker_with_another_name_or_owner_cannot_add_lines_to_the_configuration(exporting: Site) -> None:
    settings, text = exporting.backend._settings, f"pvc-1\nEXPORT {{ {INJECTED}"
    marker = marker_of()
    with pytest.raises(Unavailable, match="was changed, so it is not exported"):
        write_file(settings, replace(marker, name=text), "5" * 32)
    owned = replace(marker, owner=replace(marker.owner, claim_uid=text))
    lines = write_file(settings, owned, "5" * 32)[0].read_text().splitlines()
    assert [line for line in lines if "EXPORT" in line and not line.startswith("#")] == ["EXPORT {"]


def test_the_block_of_a_marker_has_what_its_class_asks_for(exporting: Site, tmp_path: Path) -> None:
    demand = {
        "clients": ["10.0.0.0/8", "*.example.com"],
        "anonymous_uid": 7,
        "anonymous_gid": 8,
        "protocols": ["3", "4"],
    }
    block = write_file(exporting.backend._settings, marker_of(**demand), "5" * 32)[0].read_text()
    assert "  Anonymous_Uid = 7;\n  Anonymous_Gid = 8;\n" in block
    assert "CLIENT { Clients = 10.0.0.0/8, *.example.com; Access_Type = RW; Squash = root_squash; }" in block
    assert "Protocols = 3, 4;" in block


def marker_of(**demand: Any) -> VolumeMarker:
    owner = Ownership(cluster_id="c", claim_uid="u", volume_name="pvc-1", generation=1)
    whole = {"mode": "0777", "squash": "root_squash", "protocols": ["4"], "clients": [], **demand}
    return VolumeMarker(name="pvc-1", owner=owner, path="ns/data-1", capacity_bytes=1, demand=whole, export_id=7)


def test_a_claim_whose_export_the_server_refuses_is_told_and_can_be_given_up(
    model: ModelServer, bus: ModelBus, tmp_path: Path
) -> None:
    options = {"mode": "export", "server_path": "/elsewhere", "config_directory": str(tmp_path / "exports.d")}
    site = Site(dial=model.dial, open_bus=lambda _bus, _prefix: bus, **options).start()
    demand = site.demand()
    for _ in range(2):
        with pytest.raises(Unavailable, match="is server_path right"):
            site.provision(demand)
        assert list((tmp_path / "exports.d").iterdir()) == [], "the server's next start meets no file that it refuses"
    asset = site.find(demand)
    site.delete(site.volume((demand, asset), uid=""))
    assert site.find(demand) == Absent()
    assert set(model.share.children) == {b".volplane"}


def test_a_limit_of_the_directory_on_this_host_is_what_a_class_requires(
    model: ModelServer, bus: ModelBus, tmp_path: Path
) -> None:
    """The directory is a file system of its own here: to the driver that looks as a project quota does."""
    data = tmp_path / "data"
    options = {"mode": "export", "server_path": str(data), "config_directory": str(tmp_path / "exports.d")}
    bus.data = str(data)
    site = Site(dial=model.dial, open_bus=lambda _bus, _prefix: bus, **options).start()
    demand = site.demand(parameters={"quota": "required"})
    with pytest.raises(Unavailable, match="cannot look at"):
        site.provision(demand)
    (directory,) = (data / "default" / name.decode() for name in model.share.children[b"default"].children)
    directory.mkdir(parents=True)
    with pytest.raises(Unavailable, match="has no limit"):
        site.provision(demand)
    with mounted(directory, "-t", "tmpfs", "-o", f"size={MIB}", "tmpfs"):
        site.provision(demand)
    assert f"/pv/{demand.name}" in bus.picture


def test_a_link_at_the_place_of_a_directory_on_this_host_shows_no_limit(
    model: ModelServer, bus: ModelBus, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "default").symlink_to("/proc")
    options = {"mode": "export", "server_path": str(data), "config_directory": str(tmp_path / "exports.d")}
    site = Site(dial=model.dial, open_bus=lambda _bus, _prefix: bus, **options).start()
    with pytest.raises(Unavailable, match="Not a directory"):
        site.provision(parameters={"quota": "required"})


@pytest.mark.parametrize(
    "parameters",
    [
        {"mode": 0o770},
        {"mode": 0o775, "squash": "all_squash"},
        {"gid": 2000, "squash": "all_squash"},
        {"uid": 1000, "squash": "all_squash", "anonymousUid": 1001},
    ],
    ids=str,
)
def test_a_class_whose_volumes_no_pod_could_write_is_refused_with_what_to_set(
    exporting: Site, parameters: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument, match=r"parameter mode: .* no pod could write .* set "):
        exporting.validate(**parameters)


@pytest.mark.parametrize(
    ("parameters", "mode"),
    [
        ({}, "0777"),
        ({"gid": 2000}, "0770"),
        ({"uid": 1000}, "0770"),
        ({"mode": 0o770, "squash": "no_root_squash"}, "0770"),
        ({"mode": 0o770, "squash": "root_id_squash"}, "0770"),
        ({"uid": 1000, "squash": "all_squash", "anonymousUid": 1000}, "0770"),
        ({"gid": 2000, "squash": "all_squash", "anonymousGid": 2000}, "0770"),
    ],
    ids=str,
)
def test_a_directory_has_a_mode_in_which_pods_can_write(
    exporting: Site, model: ModelServer, parameters: dict[str, Any], mode: str
) -> None:
    exporting.provision(parameters=parameters)
    [directory] = model.share.children[b"default"].children.values()
    assert f"{directory.mode:04o}" == mode


def test_a_demand_of_an_earlier_version_whose_default_was_another_is_the_same_demand(
    site: Site, model: ModelServer
) -> None:
    request, asset = site.provision()
    [marker] = model.share.children[b".volplane"].children[b"volumes"].children.values()
    marker.data = marker.data.replace(b'"mode":"0777"', b'"mode":"0770"')
    assert site.provision(request)[1] == asset


def lose(bus: ModelBus, tmp_path: Path) -> None:
    """The folder of exports is lost with the pod of the server, or by a power cut."""
    for file in (tmp_path / "exports.d").iterdir():
        file.unlink()
    bus.restart()
    assert bus.picture == {}


@pytest.mark.parametrize("repair", ["start", "another start", "probe", "provision"])
def test_an_export_that_is_lost_is_made_again(exporting: Site, bus: ModelBus, tmp_path: Path, repair: str) -> None:
    gone, made = exporting.provision(), exporting.provision()
    exporting.delete(exporting.volume(gone))
    before = bus.picture
    lose(bus, tmp_path)
    if repair == "another start":
        exporting.again().start()
    elif repair in ("start", "probe"):
        getattr(exporting, repair)()
    else:
        assert getattr(exporting, repair)(made[0]) in (made[1], made)
    assert bus.picture == before


def test_one_export_that_cannot_be_made_again_keeps_no_other(
    exporting: Site, bus: ModelBus, model: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = [exporting.provision() for _ in range(3)]
    volumes = model.share.children[b".volplane"].children[b"volumes"].children
    broken = volumes[made[0][0].name.encode()]
    broken.data = broken.data.replace(b"root_squash", b"rather; not")
    lose(bus, tmp_path)
    exporting.again().start()
    assert sorted(key for key in bus.picture if key.startswith("/pv/")) == sorted(
        f"/pv/{request.name}" for request, _ in made[1:]
    )
    assert "was changed, so it is not exported" in caplog.text


def test_a_file_of_an_export_is_on_the_disk_with_its_name(
    exporting: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a name that was not synced is gone, or is there again."""
    folder, synced, sync = tmp_path / "exports.d", [], os.fsync

    def fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(folder):  # noqa: PTH115
            synced.append(len(list(folder.iterdir())))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    made = exporting.provision()
    exporting.delete(exporting.volume(made))
    assert synced == [1, 0]


# --- several drivers of one server ----------------------------------------------------------------------------------


def beside(bus: ModelBus, tmp_path: Path, **options: Any) -> Site:
    """Another driver, or process, of the server: it has a share of its own, whose Export_Ids are free there."""
    other = {"mode": "export", "server_path": "/srv/b", "config_directory": str(tmp_path / "exports.d"), **options}
    return Site(dial=ModelServer().dial, open_bus=lambda _bus, _prefix: bus, **other).start()


def test_the_export_of_another_drivers_volume_keeps_its_file_and_its_id(
    exporting: Site, bus: ModelBus, tmp_path: Path, model: ModelServer
) -> None:
    made = exporting.provision()
    before = bus.picture
    [used] = map(int, ids(model))
    other = beside(bus, tmp_path, first_export_id=used, last_export_id=used)
    with pytest.raises(ResourceExhausted, match="are in use"):
        other.provision()
    assert bus.picture == before
    bus.restart()
    assert bus.picture == before
    exporting.delete(exporting.volume(made))
    assert bus.picture == {}


def test_a_volume_with_the_export_id_of_another_ones_is_told_and_takes_nothing(
    exporting: Site, bus: ModelBus, tmp_path: Path
) -> None:
    """As two drivers that took one id at the same time, or with an earlier version."""
    exporting.provision()
    before = bus.picture
    [file] = (tmp_path / "exports.d").iterdir()
    settings = exporting.backend._settings
    other = replace(marker_of(), export_id=int(file.stem.rpartition("-")[2]))
    with pytest.raises(Unavailable, match="is the export of another volume"):
        write_file(settings, other, "5" * 32)
    remove_file(settings, other)
    assert bus.picture == before
    assert list(tmp_path.iterdir()) == [tmp_path / "exports.d"], "what is written beside the folder is removed"


def test_a_mistyped_server_path_changes_no_file_of_a_living_volume(
    exporting: Site, bus: ModelBus, tmp_path: Path
) -> None:
    exporting.provision()
    before = bus.picture
    mistyped = exporting.again(server_path="/nonexistent").start()
    mistyped.probe()
    assert bus.picture == before
    bus.restart()
    assert bus.picture == before


def test_a_file_that_another_driver_has_overwritten_is_made_again(
    exporting: Site, bus: ModelBus, tmp_path: Path
) -> None:
    exporting.provision()
    before = bus.picture
    [file] = (tmp_path / "exports.d").iterdir()
    file.write_text(file.read_text().replace("# volume pvc-", "# volume of-another-").replace(DATA, "/srv/b"))
    exporting.probe()
    assert bus.picture == before


@pytest.mark.parametrize("empty", [False, True])
def test_a_lost_export_of_a_volume_whose_root_is_closed_is_made_again(
    exporting: Site, bus: ModelBus, model: ModelServer, tmp_path: Path, empty: bool
) -> None:
    """As postgres closes it."""
    exporting.provision()
    before = bus.picture
    [directory] = model.share.children[b"default"].children.values()
    if not empty:
        model.enter(directory, b"PG_VERSION", model.make(1, directory, data=b"17"))
    directory.mode = 0o700
    lose(bus, tmp_path)
    exporting.again().start()
    assert bus.picture == before


def test_a_volume_that_is_deleted_on_a_full_share_is_neither_exported_again_nor_found(
    exporting: Site, bus: ModelBus, model: ModelServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = exporting.provision()
    [directory] = model.share.children[b"default"].children.values()
    for number in range(2000):
        write_data(client, directory.fileid.to_bytes(8, "big"), b"%d" % number, b"")
    model.available, model.renames_take_space = 0, True

    def given_back(requests: list[Request]) -> None:
        if any(each.operation is REMOVE for each in requests):
            model.available = MIB

    model.fault = given_back
    monkeypatch.setattr(delete, "SLICE", 0.0)
    assert isinstance(exporting.delete_once(exporting.volume(made)), InProgress)
    assert directory.children
    other = exporting.again().start()
    other.probe()
    assert bus.picture == {}
    with pytest.raises(Unavailable, match="being removed"):
        other.find(made[0], only_look=True)
    monkeypatch.undo()
    other.delete(other.volume((made[0], other.find(made[0])), uid=""))
    assert other.find(made[0]) == Absent()
    assert bus.picture == {}
    assert not directory.children


@pytest.mark.parametrize("mode", [0o3700, 0o700, 0])
def test_no_mode_that_a_pod_gives_its_volume_makes_it_one_that_is_being_deleted(
    exporting: Site, bus: ModelBus, model: ModelServer, tmp_path: Path, mode: int
) -> None:
    made = exporting.provision()
    [directory] = model.share.children[b"default"].children.values()
    model.enter(directory, b"precious", model.make(1, directory, data=b"x"))
    directory.mode = mode
    before = bus.picture
    lose(bus, tmp_path)
    other = exporting.again().start()
    assert bus.picture == before
    assert other.find(made[0]) == made[1]
    assert other.provision(made[0])[1] == made[1]
    assert directory.children
