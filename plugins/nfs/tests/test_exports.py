"""Mode export, on the model of NFS-Ganesha: what its bus and its folder of exports seldom show."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from volplane import InvalidArgument, Unavailable
from volplane_nfs.ganesha import export_manager
from volplane_nfs.testing import ModelServer
from volplane_nfs.testing.model import DATA, ModelBus

from .conftest import MIB, Site


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


def test_a_path_that_the_server_does_not_have_is_told(model: ModelServer, bus: ModelBus, tmp_path: Path) -> None:
    options = {"mode": "export", "server_path": "/elsewhere", "config_directory": str(tmp_path / "exports.d")}
    site = Site(dial=model.dial, open_bus=lambda _bus, _prefix: bus, **options).start()
    with pytest.raises(InvalidArgument, match="is server_path right"):
        site.provision()


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
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MIB}", "tmpfs", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mount(2) is not allowed here")
    try:
        site.provision(demand)
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
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
